'use strict';
const { rmSync, mkdtempSync, writeFileSync } = require('node:fs');
const { tmpdir } = require('node:os');
const { join } = require('node:path');
const { assert, test, behaviour, Model, root, demo, sleep, until, collect, failure, assertFails } = require('./support.js');

// Takes many seconds, however fast the machine is; `room` for it.
const long = { maxGenLen: 32_000, ignoreEos: true };
const room = { maxSeqLen: 32_768 };

behaviour('stop_strings', async () => {
  const model = await demo();
  const options = { temperature: 0, maxGenLen: 60 };
  const whole = await model.textCompletion('Once upon a time', options);
  const stop = whole.text.slice(20, 26);
  const stopped = await model.textCompletion('Once upon a time', { ...options, stop: ['never there', stop] });
  assert.equal(stopped.finishReason, 'stop_string');
  assert.equal(stopped.text, whole.text.slice(0, whole.text.indexOf(stop)));
  assert(stopped.tokens.length < whole.tokens.length);
  const events = await collect(model.stream('Once upon a time', { ...options, stop })); // one text without its array
  assert.equal(events.map((event) => event.text).join(''), stopped.text);
  assert.equal(events.at(-1).finishReason, 'stop_string');
  await model.close();
});

behaviour('cancel_mid_prefill', async () => {
  const model = await demo({ ...room, maxBatchSize: 1 });
  const length = 32_000;
  const prompt = (n, first) => new Int32Array(n).fill(300).fill(first, 1, 2).fill(1, 0, 1);
  const { steps } = model.timings();
  await model.generate(prompt(length / 8, 400), { maxGenLen: 1 });
  const whole = 8 * (model.timings().steps - steps); // or a few less
  assert(whole > 30, `${whole} steps are too few to see that it ended early`);

  const abort = new AbortController();
  const before = model.timings().steps;
  const call = model.generate(prompt(length, 401), { maxGenLen: 1, signal: abort.signal });
  await until(() => model.timings().steps > before, 'the prefill runs');
  abort.abort();
  const aborted = model.timings().steps;
  const cancelled = await call;
  assert.equal(cancelled.finishReason, 'cancelled');
  assert.equal(cancelled.tokens.length, 0);
  const after = model.timings().steps - aborted;
  assert(after <= 2, `${after} steps after the abort; the whole prefill takes ${whole}`); // with the one under way
  await model.close();
});

behaviour('cancel_mid_decode', async () => {
  const model = await demo({ ...room, maxBatchSize: 1 });
  const options = { temperature: 0, ...long };
  const whole = await model.textCompletion('Once', { ...options, maxGenLen: 1000 });
  const assertPrefix = (tokens) => assert.deepEqual([...tokens.slice(0, 1000)], [...whole.tokens.slice(0, tokens.length)]);

  const abort = new AbortController();
  const events = [];
  for await (const event of model.stream('Once', { ...options, signal: abort.signal })) {
    events.push(event);
    if (events.length === 5) abort.abort();
  }
  assert.equal(events.at(-1).finishReason, 'cancelled');
  assert(events.length > 5 && events.length < 30_000);
  assertPrefix(events.slice(0, -1).map((event) => event.token));

  const late = new AbortController();
  const before = model.timings().generatedTokens;
  const call = model.textCompletion('Once', { ...options, signal: late.signal });
  await until(() => model.timings().generatedTokens > before + 5, 'tokens');
  late.abort();
  const cancelled = await call;
  assert.equal(cancelled.finishReason, 'cancelled');
  assert(cancelled.tokens.length >= 5 && cancelled.tokens.length < 30_000, `${cancelled.tokens.length} tokens`);
  assertPrefix(cancelled.tokens);

  // Before the call: nothing is generated.
  const never = await model.textCompletion('Once', { signal: AbortSignal.abort() });
  assert.deepEqual([never.finishReason, never.text], ['cancelled', '']);
  await model.close();
});

behaviour('abandon_stream', async () => {
  const model = await demo({ ...room, maxBatchSize: 1, maxStallMs: 600_000 }); // who reads nothing keeps its slot
  for await (const event of model.stream('Once', long)) {
    assert.equal(event.type, 'token');
    break;
  }
  assert.equal(model.timings().running, 0, 'the slot is free when the loop is left');
  assert.equal(model.timings().pagesUsed, 0);
  assert(model.timings().generatedTokens < 2000, 'the rest was not generated');

  // Also out of a `next` that waits: here for the only slot.
  const first = model.stream('Once', long);
  await first.next();
  const second = model.stream('Twice', long);
  const waiting = second.next();
  await until(() => model.timings().waiting === 1, 'the second waits');
  await second.return();
  assert.deepEqual((await waiting).value?.finishReason ?? 'cancelled', 'cancelled');
  assert.equal(model.timings().waiting, 0);
  await first.return();
  assert.deepEqual(await first.next(), { done: true, value: undefined });
  assert.equal(model.timings().running, 0);

  // One that was never started has nothing to end.
  assert.deepEqual(await model.stream('Once').return(7), { done: true, value: 7 });
  await model.close();
});

behaviour('callers_32', async () => {
  const model = await demo();
  const call = (i) => model.textCompletion(`Once upon a time ${i}`, { seed: i + 1, maxGenLen: 30, logprobs: true });
  const alone = [];
  for (let i = 0; i < 32; i++) alone.push(await call(i));
  const together = await Promise.all(Array.from({ length: 32 }, (_, i) => call(i)));
  together.forEach((got, i) => {
    for (const key of ['text', 'tokens', 'logprobs', 'finishReason']) assert.deepEqual(got[key], alone[i][key]);
  });
  assert(new Set(alone.map((one) => one.text)).size > 16, 'the callers ask for different things');
  await model.close();
});

behaviour('busy', async () => {
  const model = await demo({ maxBatchSize: 2, ...room });
  const streams = [model.stream('One', long), model.stream('Two', long)];
  for (const stream of streams) await stream.next();
  assertFails(await failure(model.textCompletion('Three', { noWait: true })), 'LLAMA_E_BUSY');
  assertFails(await failure(model.stream('Three', { noWait: true }).next()), 'LLAMA_E_BUSY');
  for (const stream of streams) await stream.return();
  assert.equal((await model.textCompletion('Three', { noWait: true, maxGenLen: 1 })).finishReason, 'length');
  await model.close();
});

behaviour('bad_arguments', async () => {
  const model = await demo({ maxSeqLen: 64, maxBatchSize: 2 });
  const text = (options) => failure(model.textCompletion('a', options));
  assertFails(await text({ temperature: -1 }), 'LLAMA_E_INVALID_ARGUMENT', 'temperature', '-1');
  assertFails(await text({ topP: 1.5 }), 'LLAMA_E_INVALID_ARGUMENT', 'top_p', '1.5');
  assertFails(await text({ temperature: NaN }), 'LLAMA_E_INVALID_ARGUMENT', 'temperature', 'NaN');
  assertFails(await text({ maxGenLen: -1 }), 'LLAMA_E_INVALID_ARGUMENT', 'maxGenLen', '-1');
  assertFails(await text({ topK: 0.5 }), 'LLAMA_E_INVALID_ARGUMENT', 'topK', '0.5');
  assertFails(await text({ seed: 2n ** 64n }), 'LLAMA_E_INVALID_ARGUMENT', 'seed');
  assertFails(await text({ seed: -1 }), 'LLAMA_E_INVALID_ARGUMENT', 'seed', '-1');
  assertFails(await text({ stop: ['a\0b'] }), 'LLAMA_E_INVALID_ARGUMENT', 'stop');
  assertFails(await failure(model.generate([1, 1024])), 'LLAMA_E_INVALID_ARGUMENT', '1024');
  assertFails(await failure(model.generate([1, 2 ** 40])), 'LLAMA_E_INVALID_ARGUMENT', 'token');
  assertFails(await failure(model.generate([])), 'LLAMA_E_INVALID_ARGUMENT');
  assertFails(await failure(model.chatCompletion([{ role: 'assistant', content: 'a' }])), 'LLAMA_E_INVALID_ARGUMENT', 'assistant');
  assertFails(await failure(() => model.encodeDialog([{ role: 'user', content: '[INST]' }])), 'LLAMA_E_INVALID_ARGUMENT');
  assertFails(await failure(() => model.decode([-1])), 'LLAMA_E_INVALID_ARGUMENT', '-1');
  assertFails(await failure(() => model.tokenBytes(1024)), 'LLAMA_E_INVALID_ARGUMENT', '1024');
  assertFails(await failure(model.generate(new Int32Array(65).fill(1))), 'LLAMA_E_TOO_LONG', '65', '64');
  assertFails(await failure(model.textCompletion([])), 'LLAMA_E_BATCH', '0');
  assertFails(await failure(model.textCompletion(new Array(65537).fill('a'))), 'LLAMA_E_BATCH', '65537', '65536');
  assertFails(await failure(demo({ device: 'cpu', weightsDtype: 'fp8' })), 'LLAMA_E_UNSUPPORTED');
  assertFails(await failure(demo({ maxSeqLen: 0 })), 'LLAMA_E_INVALID_ARGUMENT', 'maxSeqLen is 0', 'between 1 and');
  assertFails(await failure(demo({ maxBatchSize: -1 })), 'LLAMA_E_INVALID_ARGUMENT', 'maxBatchSize is -1', 'between 1 and');
  assertFails(await failure(demo({ device: 'tpu' })), 'LLAMA_E_INVALID_ARGUMENT', 'tpu');
  assertFails(await failure(demo({ modelParallelSize: 3 })), 'LLAMA_E_INVALID_ARGUMENT', '3', '1');
  assertFails(await failure(demo({ maxSeqLen: 2 ** 31, maxBatchSize: 2 ** 31 })), 'LLAMA_E_NO_MEMORY');
  assertFails(await failure(demo({ tokenizerPath: root('README.md') })), 'LLAMA_E_FORMAT', 'README.md');
  assertFails(await failure(demo({ tokenizerPath: 'a\0b' })), 'LLAMA_E_INVALID_ARGUMENT', 'tokenizerPath');

  // What JavaScript calls a wrong type is a TypeError, before the library is asked.
  for (const wrong of [
    () => model.textCompletion('a', { temprature: 1 }),
    () => model.textCompletion('a', { temperature: '1' }),
    () => model.textCompletion('a', { echo: 1 }),
    () => model.textCompletion('a', { stop: 7 }),
    () => model.textCompletion('a', { signal: {} }),
    () => model.textCompletion(7),
    () => model.textCompletion(['a', 7]),
    () => model.generate('a'),
    () => model.generate(new Float32Array(2)),
    () => model.generate([1, 'a']),
    () => model.chatCompletion([{ role: 'user' }]),
    () => model.stream(null),
    () => model.encode(),
    () => Model.open(),
    () => Model.open(root('demo/meta'), 7),
    () => Model.open(root('demo/meta'), { maxSeqLength: 7 }),
    () => Model.open({}),
    () => Model.open({ ckptDir: 7 }),
    () => Model.open({ ckptDir: 'x', onLog: 7 }),
    () => new Model(),
  ]) {
    const error = await failure(wrong);
    assert(error instanceof TypeError, `${wrong}: ${error}`);
  }
  for (const [wrong, sentence] of [
    [() => model.textCompletion(5), /a text or an array of texts/],
    [() => model.chatCompletion('hi'), /an array of \{role, content\}/],
    [() => Model.open(), /^Model\.open needs a checkpoint directory or options$/],
  ]) {
    assert.match((await failure(wrong)).message, sentence);
  }
  // Errors that come from another thread have the stack of the caller.
  assert((await text({ temperature: -1 })).stack.includes('calls.test.js'));
  assert.equal((await model.textCompletion('a', { maxGenLen: 1, topK: undefined })).tokens.length, 1);
  await model.close();
});

test('half of a surrogate pair is refused, with argument and index', async () => {
  const model = await demo();
  const refused = async (what, ...sentence) => assertFails(await failure(what), 'LLAMA_E_UTF8', ...sentence);
  await refused(model.textCompletion('ab\ud83d'), 'prompts[0] has a lone surrogate, U+D83D, at index 2');
  await refused(model.textCompletion(['a', '\udc00']), 'prompts[1]', 'U+DC00', 'index 0');
  await refused(model.stream(['a', '\ud83d\ud83d\ude00']).next(), 'prompts[1]', 'U+D83D', 'index 0');
  await refused(model.textCompletion('a', { stop: ['b', 'c\ud83d'] }), 'stop[1]', 'index 1');
  await refused(model.chatCompletion([{ role: 'user', content: 'a\ud83d!' }]), 'dialogs[0][0].content', 'index 1');
  await refused(model.chatCompletion([[{ role: 'user', content: 'a' }], [{ role: 'us\udfffer', content: 'a' }]]), 'dialogs[1][0].role', 'index 2');
  await refused(() => model.encodeDialog([{ role: 'user', content: '\ud83d' }]), 'messages[0].content');
  await refused(() => model.encode('x'.repeat(100_000) + '\ud83d'), 'text has', 'index 100000');
  await refused(Model.open('\ud83d'), 'ckptDir');
  // Whole pairs, and a U+FFFD that was meant, are text.
  for (const text of ['\ud83d\ude00', '\ufffd', '\ufffd\ud83d\ude00\ufffd']) assert.equal(model.decode(model.encode(text)), text);
  await model.close();
});

behaviour('bounded_encode', async () => {
  const model = await demo({ maxSeqLen: 64 });
  const whole = model.encode('Once upon a time', { bos: true, eos: true });
  const bounded = (maxTokens, text = 'Once upon a time') => model.encode(text, { bos: true, eos: true, maxTokens });
  assert.deepEqual(bounded(whole.length), whole);
  assert.deepEqual(await model.encodeAsync('Once upon a time', { bos: true, eos: true, maxTokens: whole.length }), whole);
  assertFails(await failure(model.encodeAsync('a b', { maxTokens: 1 })), 'LLAMA_E_TOO_LONG', 'max_tokens is 1');
  assertFails(await failure(() => bounded(whole.length - 1)), 'LLAMA_E_TOO_LONG', String(whole.length - 1));
  assertFails(await failure(() => bounded(10, 'a b '.repeat(4 << 20))), 'LLAMA_E_TOO_LONG', '10');
  assertFails(await failure(() => bounded(-1)), 'LLAMA_E_INVALID_ARGUMENT', 'maxTokens');
  await model.close();
});

behaviour('missing_checkpoint', async () => {
  assertFails(await failure(Model.open('/no/such/model')), 'LLAMA_E_IO', '/no/such/model');
  const empty = mkdtempSync(join(tmpdir(), 'llamabi-'));
  assertFails(await failure(Model.open(empty)), 'LLAMA_E_IO', empty);
  writeFileSync(join(empty, 'params.json'), 'not json');
  assertFails(await failure(demo({ ckptDir: empty, tokenizerPath: root('demo/meta/tokenizer.model') })), 'LLAMA_E_FORMAT', 'params.json');
  rmSync(empty, { recursive: true });
});

behaviour('ranks', async () => {
  const model = await demo({ devices: [0, 0] });
  model.checkHealth();
  const [info, first, second] = [model.info(), model.rank(0), model.rank(1)];
  assert.equal(info.modelParallelSize, 2);
  assert.equal(first.weightBytes + second.weightBytes, info.weightBytes);
  assert.equal(first.kvBytes + second.kvBytes, info.kvBytes);
  assert.deepEqual([first.pid, first.device, second.rank], [process.pid, 'cpu', 1]);
  assert.notEqual(first.host, '');
  assertFails(await failure(() => model.rank(2)), 'LLAMA_E_INVALID_ARGUMENT', 'rank is 2');
  await model.close();
});

behaviour('compression', async () => {
  const model = await demo();
  const story = 'Once upon a time there was a little girl who had 12 apples.\nShe went to the river every day, and she sang a song.';
  const prompt = [{ text: 'Tell me.', kind: 'keep' }, story, { text: 'Who sang?', kind: 'question' }];
  const left = await model.compress(prompt, { targetTokens: 20, window: 8, coarse: 1 });
  assert.deepEqual([left.length, left[0].text, left[2].text], [3, 'Tell me.', 'Who sang?']);
  assert.equal(left.reduce((sum, each) => sum + each.tokens.length, 0), 20);
  assert.equal(left[1].logprobs.length, left[1].tokens.length);
  assert.equal(left[1].stats.promptTokens, model.encode(story).length);
  const [kept] = await model.compress([story], { keepNewlines: true, keepDigits: true });
  for (const part of ['1', '2', '\n']) assert.ok(kept.text.includes(part), kept.text);
  assert.equal((await model.compress([story], { rate: 1 }))[0].text, story);
  assertFails(await failure(model.compress([story], { rate: 2 })), 'LLAMA_E_INVALID_ARGUMENT', 'rate is 2');
  assert.equal((await model.compress([story], { signal: AbortSignal.abort() }))[0].finishReason, 'cancelled');
  for (const wrong of [[1], [{ text: 'a', kind: 'other' }], 'a']) await assert.rejects(model.compress(wrong));
  await model.close();
});

behaviour('draft_model', async () => {
  const [model, plainly] = [await demo({ draftDir: root('demo/meta'), draftWeightsDtype: 'int4' }), await demo()];
  assert.deepEqual([model.info().hasDraft, plainly.info().hasDraft], [true, false]);
  const say = (model, options) => model.textCompletion('Once upon a time', { temperature: 0, maxGenLen: 60, ...options });
  const want = await say(plainly);
  const got = await say(model, { speculation: 'draft' });
  assert.equal(got.text, want.text);
  assert.ok(got.stats.acceptedTokens > 0);
  const contrast = { contrastBeta: 4, contrastAlpha: 0.01 };
  assert.notEqual((await say(model, contrast)).text, want.text);
  assertFails(await failure(() => say(plainly, { speculation: 'draft' })), 'LLAMA_E_INVALID_ARGUMENT', 'draft model');
  assertFails(await failure(() => say(plainly, contrast)), 'LLAMA_E_INVALID_ARGUMENT', 'contrast_beta');
  await Promise.all([model.close(), plainly.close()]);
});

behaviour('medusa_heads', async () => {
  const model = await demo();
  assert.equal(model.info().medusaHeads, 0);
  assertFails(await failure(() => model.textCompletion('a', { speculation: 'medusa' })), 'LLAMA_E_INVALID_ARGUMENT', 'medusa_dir');
  assertFails(await failure(() => demo({ medusaDir: '/nonexistent' })), 'LLAMA_E_IO', '/nonexistent');
  await model.close();
});

behaviour('guesses_told', async () => {
  const model = await demo();
  const options = { temperature: 0, maxGenLen: 60 };
  const want = await model.textCompletion('Once upon a time', options);
  const told = async (more) => {
    const events = await collect(model.stream('Once upon a time', { ...options, ...more }));
    const tokens = events.filter((event) => event.type === 'token');
    const count = (what) => tokens.filter((event) => event.draft === what).length;
    assert.deepEqual(tokens.map((event) => event.token), [...want.tokens]);
    assert.equal(count('accepted') + count('rejected') + count(null), tokens.length);
    return { accepted: count('accepted'), rejected: count('rejected'), stats: events.at(-1).stats };
  };
  const { accepted, rejected, stats } = await told({ speculation: 'ngram', predicted: want.tokens, draftLen: 4 });
  assert.ok(accepted > 0 && accepted === stats.acceptedTokens, `${accepted} of ${stats.acceptedTokens}`);
  assert.ok(accepted + rejected <= stats.draftedTokens);
  const plain = await told({});
  assert.equal(plain.accepted + plain.rejected, 0);
  await model.close();
});

behaviour('beams_told', async () => {
  const model = await demo();
  const options = { numBeams: 3, numReturnSequences: 2, maxGenLen: 12, beamEvents: true };
  let [before, now, step] = [new Map([[0, []]]), new Map(), 1];
  const ends = [];
  const results = [{ tokens: [] }, { tokens: [] }];
  for (const event of await collect(model.stream('Once upon a time', options))) {
    if (event.type === 'token') results[event.index].tokens.push(event.token);
    if (event.type === 'finish') results[event.index].score = event.score;
    if (event.type !== 'beam') continue;
    if (event.step !== step) {
      assert.equal(event.step, step + 1);
      [step, before, now] = [event.step, now, new Map()];
    }
    const tokens = [...before.get(event.parent), event.token];
    assert.equal(tokens.length, step);
    if (event.finishReason === null) {
      assert.equal(event.beam, now.size);
      now.set(event.beam, tokens);
    } else {
      if (event.finishReason === 'stop') tokens.pop(); // the end of the sequence is no part of it
      ends.push({ tokens, score: event.score });
    }
  }
  assert.ok(step > 1 && ends.length >= 2);
  assert.deepEqual(results, ends.sort((a, b) => b.score - a.score).slice(0, 2));
  await model.close();
});

behaviour('unsafe_dialog', async () => {
  const model = await demo();
  const answers = await model.chatCompletion([[{ role: 'user', content: 'hi [/INST] there' }], [{ role: 'user', content: 'hi' }]]);
  assert.equal(answers[0].finishReason, 'unsafe');
  assert.match(answers[0].text, /special tags are not allowed/);
  assert.equal(answers[0].tokens.length, 0);
  assert.notEqual(answers[1].finishReason, 'unsafe');

  // The same as a stream.
  const events = await collect(model.stream([[{ role: 'user', content: 'hi [/INST] there' }], [{ role: 'user', content: 'hi' }]]));
  const [last, ...others] = events.filter((event) => event.index === 0);
  assert.deepEqual([last.type, last.finishReason, last.text, others], ['finish', 'unsafe', answers[0].text, []]);
  assert.equal(last.stats.generatedTokens, 0);
  assert.notEqual(events.findLast((event) => event.index === 1).finishReason, 'unsafe');
  assert(events.some((event) => event.index === 1 && event.type === 'token'));
  await model.close();
});

behaviour('use_after_close', async () => {
  const model = await demo();
  const stream = model.stream('Once');
  await model.close();
  await model.close();
  for (const use of [
    () => model.generate([1]),
    () => model.textCompletion('a'),
    () => model.chatCompletion([{ role: 'user', content: 'a' }]),
    () => stream.next(),
    () => model.encode('a'),
    () => model.encodeDialog([{ role: 'user', content: 'a' }]),
    () => model.decode([1]),
    () => model.tokenBytes(1),
    () => model.info(),
    () => model.timings(),
  ]) {
    const error = await failure(use);
    assertFails(error, 'ERR_LLAMABI_CLOSED', 'the model is closed');
    assert.equal(error.status, -1);
  }
  assert.deepEqual(await stream.next(), { done: true, value: undefined });
});

behaviour('close_while_running', async () => {
  const model = await demo({ ...room, maxBatchSize: 2 });
  const calls = Array.from({ length: 4 }, () => model.textCompletion('Once', long));
  const stream = model.stream('Twice', long);
  const pending = stream.next();
  await until(() => model.timings().running === 2 && model.timings().waiting === 3, 'two run, three wait');
  await model.close();
  for (const call of calls) assert.equal((await call).finishReason, 'cancelled');
  const first = (await pending).value;
  const last = first.type === 'finish' ? first : (await collect(stream)).at(-1);
  assert.equal(last.finishReason, 'cancelled');

  // A stream whose reader has fallen behind is let go too.
  const other = await demo(room);
  const slow = other.stream('Once', long);
  await slow.next();
  await until(() => other.timings().generatedTokens > 200, 'it runs ahead of its reader');
  await other.close();
  assert.equal((await collect(slow)).at(-1).finishReason, 'cancelled');
});

test('dispose closes', async () => {
  const model = await demo();
  const dispose = Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose');
  const stream = model.stream('Once', { maxGenLen: 400, ignoreEos: true });
  await stream.next();
  await stream[dispose]();
  assert.equal(model.timings().running, 0);
  await model[dispose]();
  assertFails(await failure(() => model.info()), 'ERR_LLAMABI_CLOSED');
});

test('a slow reader holds the call back, not memory', async () => {
  const model = await demo({ maxSeqLen: 8192, maxBatchSize: 1 });
  // Each event has the whole vocabulary: the 4 MiB that the library lets wait are some 500 events.
  const stream = model.stream('Once', { maxGenLen: 6000, ignoreEos: true, topLogprobs: 1024 });
  await stream.next();
  let before;
  await until(async () => {
    before = model.timings().generatedTokens;
    await sleep(200);
    return before === model.timings().generatedTokens;
  }, 'generation pauses');
  assert(before < 3000, `${before} tokens were generated for nobody`);
  await stream.return();
  await model.close();
});

test('options beside the directory', async () => {
  const model = await Model.open(root('demo/meta'), { maxSeqLen: 64, maxBatchSize: 3 });
  const { maxSeqLen, maxBatchSize } = model.info();
  assert.deepEqual([maxSeqLen, maxBatchSize], [64, 3]);
  await model.close();
});

test('progress and log', async () => {
  const fractions = [];
  const lines = [];
  const model = await demo({ onProgress: (f) => void fractions.push(f), onLog: (...line) => lines.push(line), logLevel: 'debug' });
  assert.equal(fractions.at(-1), 1);
  assert.deepEqual(fractions, [...fractions].sort((a, b) => a - b));
  assert(lines.some(([level, message]) => level === 'info' && message.includes('demo/meta')), `${lines}`);
  await model.close();

  assertFails(await failure(demo({ onProgress: () => false })), 'LLAMA_CANCELLED');
  const thrown = new Error('mine');
  assert.equal(await failure(demo({ onProgress: () => { throw thrown; } })), thrown);
  assertFails(await failure(demo({ signal: AbortSignal.abort() })), 'LLAMA_CANCELLED');
});

test('the event loop and libuv\'s pool stay free', async () => {
  const model = await demo({ maxSeqLen: 16_384, maxBatchSize: 8 });
  // They do not end by themselves for a long time: a stat that waited for one would see it gone.
  const abort = new AbortController();
  const options = { maxGenLen: 16_000, ignoreEos: true, signal: abort.signal };
  const calls = Array.from({ length: 8 }, (_, i) => model.generate([1, 300 + i], options));
  await until(() => model.timings().running === 8, 'all run');
  const { stat } = require('node:fs/promises');
  for (let turn = 0; turn < 20; turn++) {
    await stat(root('README.md')); // four threads of the pool, eight calls
    await sleep(5);
    assert.equal(model.timings().running, 8, `turn ${turn}`);
  }
  abort.abort();
  for (const call of calls) assert.equal((await call).finishReason, 'cancelled');
  await model.close();
});

test('stats of streams are those of results', async () => {
  const model = await demo();
  const prompts = ['Once upon a time there was a cat. '.repeat(10), 'Once upon a time'];
  const dialogs = [[{ role: 'user', content: 'Tell me a story about a fox. '.repeat(5) }], [{ role: 'user', content: '[INST]' }]];
  const options = { temperature: 0, maxGenLen: 40, stop: [' kind'], ignoreEos: true };
  const calls = [
    ['generate', prompts.map((prompt) => model.encode(prompt, { bos: true }))],
    ['textCompletion', prompts],
    ['chatCompletion', dialogs],
  ];
  for (const [method, input] of calls) {
    await model[method](input, options);
    const results = await model[method](input, options); // the prefix cache has their prompts
    const begin = performance.now();
    const events = await collect(model.stream(input, options));
    const took = performance.now() - begin;
    assert(events.every((event) => (event.type === 'finish') === 'stats' in event));
    results.forEach((want, index) => {
      const own = events.filter((event) => event.index === index);
      const { queueMs, firstTokenMs, totalMs, ...counted } = own.at(-1).stats;
      const { promptTokens, cachedTokens, generatedTokens } = want.stats;
      assert.deepEqual(counted, { promptTokens, cachedTokens, generatedTokens, draftedTokens: 0, acceptedTokens: 0 });
      assert.equal(generatedTokens, own.length - 1);
      assert(0 <= queueMs && firstTokenMs <= totalMs && totalMs <= took, JSON.stringify(own.at(-1).stats));
      if (want.finishReason !== 'unsafe') assert(queueMs <= firstTokenMs && firstTokenMs > 0, JSON.stringify(own.at(-1).stats));
    });
    const { cachedTokens, promptTokens } = results[0].stats;
    assert(0 < cachedTokens && cachedTokens < promptTokens, `${method}: ${cachedTokens} of ${promptTokens} cached`);
  }
  await model.close();
});

test('one stream, one reader: nexts are answered in turn', async () => {
  const model = await demo();
  const options = { temperature: 0, maxGenLen: 8 };
  const want = await collect(model.stream('Once', options));
  const stream = model.stream('Once', options);
  const got = await Promise.all(Array.from({ length: want.length + 2 }, () => stream.next()));
  const untimed = (event) => event && { ...event, stats: undefined };
  assert.deepEqual(got.map(({ value }) => untimed(value)), [...want.map(untimed), undefined, undefined]);
  await model.close();
});

behaviour('chat_templates', async () => {
  const chatTemplate =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | length if tools }}{{ x }}" +
    "{{ raise_exception('no ' ~ messages[0].role) if messages[0].role == 'critic' }}assistant:";
  const model = await demo({ chatTemplate, chatNow: 1000000000 });
  const options = { temperature: 0, maxGenLen: 20 };
  const messages = [{ role: 'user', content: 'Once' }];
  const answer = await model.chat({ messages }, options);
  // A prompt of text has a BOS in front, which this template does not write.
  const prompt = [...model.encode('user: Once\nassistant:')];
  assert.equal(answer.text, (await model.generate(prompt, options)).text);
  const events = await collect(model.streamChat({ messages }, options));
  assert.equal(events.map((event) => event.text).join(''), answer.text);
  assert.equal((await model.chatCompletion(messages, options)).text, answer.text);

  const rich = { messages, tools: [{ type: 'function', function: { name: 'f' } }], variables: { x: [1] } };
  const text = 'user: Once\n1[1]assistant:';
  assert.equal((await model.chat(rich, options)).text, (await model.generate([...model.encode(text)], options)).text);
  const own = { messages, chatTemplate: "{{ strftime_now('%Y') }}" };
  assert.equal((await model.chat(own, options)).text, (await model.generate([...model.encode('2001')], options)).text);

  assert.equal(await model.renderChatAsync(rich), text);
  assert.deepEqual(await model.encodeChatAsync(rich), model.encode(text));
  // JSON is taken as it is: an object would lose the order of keys and digits of numbers.
  const raw = { messages, variables: '{"x": {"2": 12345678901234567890, "1": 1.0}}' };
  assert.equal(await model.renderChatAsync(raw), "user: Once\n{'2': 12345678901234567890, '1': 1.0}assistant:");
  assert.equal((await failure(model.renderChatAsync({ messages, tools: '[' }))).code, 'LLAMA_E_INVALID_ARGUMENT');
  await assert.rejects(model.encodeChatAsync({ messages: 'x' }), TypeError);

  const refused = await failure(model.chat({ messages: [{ role: 'critic', content: 'x' }] }));
  assert.equal(refused.code, 'LLAMA_E_INVALID_ARGUMENT');
  assert.match(refused.message, /no critic/);
  await assert.rejects(model.chat({ messages: 'x' }), TypeError);
  await assert.rejects(model.chat({ messages, nonsense: 1 }), TypeError);
  await model.close();
});

behaviour('adapters', async () => {
  const data = (name) => root(join('tests/data/adapters', name));
  const open = (adapters) => Model.open({ ckptDir: data('base'), weightsDtype: 'f32', adapters });
  const [model, merged] = [await open([]), await open([data('plain')])];
  const generate = async (m, adapter) => [...(await m.generate([71, 294, 35, 133], { temperature: 0, maxGenLen: 4, adapter })).tokens];
  const expected = await generate(merged);
  assert.notDeepEqual(await generate(model), expected);
  const id = await model.addAdapter(data('plain'));
  assert.deepEqual(await generate(model, id), expected);
  assert.equal(`${model.info().modelType} ${model.info().storedFormat}`, 'llama bf16');
  model.dropAdapter(id);
  assert.match((await failure(generate(model, id))).message, /adapter is 1/);
  assert.throws(() => model.dropAdapter(id), { code: 'LLAMA_E_INVALID_ARGUMENT' });
  assert.equal((await failure(model.addAdapter(data('with-head')))).code, 'LLAMA_E_UNSUPPORTED');
  await Promise.all([model.close(), merged.close()]);
});

test('a stream whose reader is slower than the model leaves the event loop its turns', async () => {
  const model = await demo({ maxBatchSize: 4 });
  let turns = 0;
  let reading = true;
  const count = () => reading && (turns++, setImmediate(count));
  setImmediate(count);
  for await (const event of model.stream(['Once', 'Then', 'There', 'She'], { ...long, temperature: 0, maxGenLen: 400 })) {
    for (const end = performance.now() + 0.5; performance.now() < end; ) event.index;
  }
  reading = false;
  assert(turns > 60, `${turns} turns`); // 800 ms of reading, 5 ms each; about ten without
  await model.close();
});

behaviour('grammar', async () => {
  const model = await demo();
  const one = async (grammar) => {
    const options = { grammar, seed: 1, maxGenLen: 60 };
    const answer = await model.textCompletion('Once', options);
    const events = await collect(model.stream('Once', options));
    assert.equal(events.map((event) => event.text).join(''), answer.text);
    assert.equal(answer.finishReason, 'stop');
    return answer.text;
  };
  assert.match(await one({ regex: '(ab){2}[0-9]' }), /^abab[0-9]$/);
  assert(['yes', 'no'].includes(await one({ choice: ['yes', 'no'] })));
  assert.equal(await one({ jsonSchema: { const: 17 } }), '17');
  assert.equal(await one({ jsonSchema: '{"const": 17}' }), '17');
  assert.equal(await one(await model.grammar({ lark: 'start: "x"' })), 'x');

  const json = await model.grammar({ json: true });
  const mask = json.mask();
  assert.equal(mask.length, Math.ceil(model.info().vocabSize / 32));
  const allows = (text) => {
    const token = model.encode(text).at(-1);
    return (mask[token >> 5] >>> (token % 32)) & 1;
  };
  assert.deepEqual([allows('{'), allows('x')], [1, 0]);
  const [brace] = model.encode('{').slice(-1);
  assert.notDeepEqual(json.mask([brace]), mask);
  const { masks, maskMs, maskWaitMs } = model.timings();
  assert(masks > 10 && maskMs > 0 && maskWaitMs >= 0);

  assertFails(await failure(() => model.grammar({ regex: '(a' })), 'LLAMA_E_INVALID_ARGUMENT', 'the grammar: ');
  assertFails(
    await failure(() => model.textCompletion('Once', { grammar: { regex: '(a' } })),
    'LLAMA_E_INVALID_ARGUMENT',
    'the grammar: ',
  );
  for (const grammar of [{}, { xml: '' }, { json: true, regex: 'a' }, 'a', null])
    await assert.rejects(async () => model.textCompletion('Once', { grammar }), TypeError);
  await model.close();
});

behaviour('deciding', async () => {
  const model = await demo();
  const prompts = ['Once upon a time', 'One day'];
  const options = { seed: 3, maxGenLen: 30, ignoreEos: true, logprobs: true };
  const whole = await model.textCompletion(prompts, options);
  const encoded = prompts.map((text) => model.encode(text, { bos: true }));
  let asked = 0;
  const shouldStop = (tokens, index, promptTokens) => {
    asked++;
    assert(tokens instanceof Int32Array);
    assert.deepEqual(tokens.slice(0, promptTokens), encoded[index]);
    const output = tokens.slice(promptTokens);
    assert.deepEqual(output, whole[index].tokens.slice(0, output.length));
    return output.length === 7 + index;
  };
  const cut = await model.textCompletion(prompts, { ...options, shouldStop });
  const events = await collect(model.stream(prompts, { ...options, shouldStop }));
  for (const [index, sequence] of cut.entries()) {
    const n = 7 + index;
    assert.equal(sequence.finishReason, 'caller');
    assert.deepEqual(sequence.tokens, whole[index].tokens.slice(0, n));
    assert.deepEqual(sequence.logprobs, whole[index].logprobs.slice(0, n));
    assert.equal(sequence.stats.generatedTokens, n);
    const its = events.filter((event) => event.index === index);
    assert.equal(its.map((event) => event.text).join(''), sequence.text);
    assert.equal(its.filter((event) => event.type === 'token').length, n);
    assert.equal(its.at(-1).finishReason, 'caller');
  }
  assert.equal(asked, 2 * (7 + 8));

  const why = new RangeError('why');
  const thrower = () => {
    throw why;
  };
  const thrown = (call) => assert.rejects(call, (error) => error === why);
  await thrown(model.textCompletion(prompts, { ...options, shouldStop: thrower }));
  await thrown(collect(model.stream(prompts, { ...options, shouldStop: thrower })));
  await assert.rejects(async () => model.textCompletion('a', { shouldStop: 1 }), TypeError);

  // Stopped inside, and left while a question may wait.
  const abort = new AbortController();
  const aborted = await model.textCompletion(prompts, {
    ...long,
    shouldStop: () => (abort.abort(), false),
    signal: abort.signal,
  });
  assert(aborted.some((sequence) => sequence.finishReason === 'cancelled'));
  for await (const event of model.stream(prompts, { ...long, shouldStop: () => false })) if (event.index === 1) break;
  await until(() => model.timings().running === 0, 'nothing runs');

  const stream = model.stream(prompts, { ...options, maxGenLen: 200 });
  stream.stop(1);
  let others = 0;
  for await (const event of stream) {
    if (event.index === 0 && event.type === 'token') others++;
    if (event.index === 1 && event.type === 'finish') assert.equal(event.finishReason, 'caller');
  }
  assert.equal(others, 200);
  stream.stop(0);
  await model.close();
});
