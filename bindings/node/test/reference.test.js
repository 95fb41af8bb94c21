'use strict';
const { assert, behaviour, Model, reference, json, collect } = require('./support.js');

const LOGPROB_TOLERANCE = 2e-3;

function assertClose(got, want, what) {
  assert.equal(got.length, want.length, what);
  want.forEach((w, i) => assert(Math.abs(got[i] - w) <= LOGPROB_TOLERANCE, `${what}: ${i} is ${got[i]}, reference ${w}`));
}

function assertCompletion(model, got, want, what) {
  assert.equal(got.text, want.generation.content ?? want.generation, what);
  assert.deepEqual(Array.from(got.tokens, (token) => model.decode([token])), want.tokens, what);
  assertClose(got.logprobs, want.logprobs, what);
}

behaviour('reference', async () => {
  let seen = 0;
  for (const name of ['mha-f32', 'gqa-bf16', 'gqa-f16-mp2']) {
    const { cases } = json(reference(`${name}/cases.json`));
    for (const form of ['meta', 'hf']) {
      const model = await Model.open({ ckptDir: reference(`${name}/${form}`), weightsDtype: 'f32', maxSeqLen: 64, maxBatchSize: 4 });
      for (const [i, { kind, args, ...want }] of cases.entries()) {
        const what = `${name}/${form} case ${i}, ${kind}`;
        const options = { maxGenLen: args.max_gen_len, temperature: 0, logprobs: true, echo: args.echo };
        if (kind === 'generate') {
          const got = await model.generate(args.prompt_tokens, options);
          assert.equal(got.length, want.tokens.length);
          got.forEach((sequence, row) => {
            assert.deepEqual([...sequence.tokens], want.tokens[row], what);
            assertClose(sequence.logprobs, want.logprobs[row], what);
            assert.equal(sequence.text, model.decode(sequence.tokens), what);
          });
        } else if (kind === 'text_completion') {
          args.prompts.forEach((p, row) => assert.deepEqual([...model.encode(p, { bos: true })], want.prompt_tokens[row]));
          const got = await model.textCompletion(args.prompts, options);
          want.result.forEach((w, row) => assertCompletion(model, got[row], w, what));
        } else if (kind === 'chat_completion') {
          const got = await model.chatCompletion(args.dialogs, options);
          want.result.forEach((w, row) => assertCompletion(model, got[row], w, what));
        } else continue;
        seen++;
      }
      await model.close();
    }
  }
  assert.equal(seen, 54);
});

behaviour('stream_equals_result', async () => {
  const model = await Model.open({ ckptDir: reference('gqa-bf16/meta'), maxSeqLen: 64, maxBatchSize: 4 });
  const dialog = (content) => [{ role: 'user', content }];
  const inputs = [
    ['generate', [[1, 20, 30], [1, 7], [1, 80, 3, 9, 400]]],
    ['textCompletion', ['Once upon', 'Top-p: é ✓ 你好']],
    ['chatCompletion', [dialog('hi'), dialog('a [INST] b'), dialog('é')]],
  ];
  for (const [method, input] of inputs) {
    for (const options of [
      { temperature: 0, logprobs: true, topLogprobs: 3 },
      { seed: 5, maxGenLen: 20, echo: true, logprobs: true, topLogprobs: 3, temperature: 1.5 },
    ]) {
      const result = await model[method](input, options);
      const events = await collect(model.stream(input, options));
      result.forEach((sequence, index) => {
        const own = events.filter((event) => event.index === index);
        const tokens = own.filter((event) => event.type === 'token');
        assert.equal(own.map((event) => event.text).join(''), sequence.text);
        assert.deepEqual(tokens.map((event) => event.token), [...sequence.tokens]);
        assert.deepEqual(tokens.map((event) => event.logprob), [...sequence.logprobs]);
        assert.deepEqual(tokens.map((event) => event.top), sequence.top);
        const finishes = own.filter((event) => event.type === 'finish');
        assert.deepEqual(finishes.map((event) => event.finishReason), [sequence.finishReason]);
        assert.equal(own.at(-1), finishes[0]);
        assert.equal(finishes[0].stats.generatedTokens, sequence.stats.generatedTokens);
        assert.equal(finishes[0].stats.promptTokens, sequence.stats.promptTokens);
      });
    }
  }
  await model.close();
});
