'use strict';
// What is refused: each with its code and the library's sentence.
const { rmSync, mkdtempSync, writeFileSync } = require('node:fs');
const { tmpdir } = require('node:os');
const { basename, join } = require('node:path');
const { assert, test, behaviour, Model, root, demo, sleep, failure, assertFails, long, room } = require('./support.js');

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
  assertFails(await text({ numReturnSequences: 2 }), 'LLAMA_E_INVALID_ARGUMENT', 'numReturnSequences is 2, must be 1 for one prompt');
  assertFails(await failure(model.chat({ messages: [{ role: 'user', content: 'a' }] }, { numReturnSequences: 3 })), 'LLAMA_E_INVALID_ARGUMENT', 'numReturnSequences is 3');
  assert.equal((await model.textCompletion('a', { numReturnSequences: 1, maxGenLen: 1 })).tokens.length, 1);
  assertFails(await text({ seed: -1 }), 'LLAMA_E_INVALID_ARGUMENT', 'seed', '-1');
  assertFails(await text({ stop: ['a\0b'] }), 'LLAMA_E_INVALID_ARGUMENT', 'stop');
  assertFails(await failure(model.generate([1, 1024])), 'LLAMA_E_INVALID_ARGUMENT', '1024');
  assertFails(await failure(model.generate([1, 2 ** 40])), 'LLAMA_E_INVALID_ARGUMENT', 'prompts[0][1] is 1099511627776');
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
  for (const chatNow of [NaN, Infinity, -1e300, 2 ** 53]) assertFails(await failure(demo({ chatNow })), 'LLAMA_E_INVALID_ARGUMENT', 'chatNow');
  await (await demo({ chatNow: Date.now() / 1000 })).close();
  assertFails(await text({ earlyStopping: 'always' }), 'LLAMA_E_INVALID_ARGUMENT', 'earlyStopping is "always", must be true, false or "never"');
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
    () => model.textCompletion('a', 5),
    () => model.textCompletion('a', [5]),
    () => model.stream('a', '5').next(),
    () => model.compress(['a b'], 0.5),
    () => model.stream(null),
    () => model.encode('a', true),
    () => model.encode('a', { addBos: true }),
    () => model.encode('a', { signal: AbortSignal.abort() }),
    () => model.encodeAsync('a', { maxToken: 5 }),
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
    [() => Model.open(Buffer.from('x')), /^Model\.open needs a checkpoint directory or options$/],
    [() => Model.open(new URL('http://localhost/x')), /scheme file/],
    [() => model.textCompletion('a', { badWords: ['x'] }), /^badWords\[0\] must be an Int32Array or an array of numbers$/],
    [() => model.textCompletion('a', { badWords: [[1], [2, 'x']] }), /^badWords\[1\]\[1\] must be a number$/],
    [() => model.textCompletion('a', { forceWords: [[[1]], [[2], [3, null]]] }), /^forceWords\[1\]\[1\]\[1\] must be a number$/],
    [() => model.textCompletion('a', { stopTokens: 2 }), /^stopTokens must be/],
    [() => model.textCompletion('a', { predicted: [1, 'x'] }), /^predicted\[1\] must be/],
    [() => model.generate([[1], [2, 'x']]), /^prompts\[1\]\[1\] must be a number$/],
    [() => model.decode(['x']), /^tokens\[0\] must be a number$/],
    [() => model.generate([1], 20), /^options must be an object$/],
    [() => model.encode('a', { addBos: true }), /^unknown option addBos$/],
    [() => model.textCompletion('a', { earlyStopping: 1 }), /^earlyStopping must be true, false or "never"$/],
  ]) {
    assert.match((await failure(wrong)).message, sentence);
  }
  // Errors that come from another thread have the stack of the caller.
  assert((await text({ temperature: -1 })).stack.includes(basename(__filename)));
  assert.equal((await model.textCompletion('a', { maxGenLen: 1, topK: undefined })).tokens.length, 1);
  // No options.
  assert.deepEqual(model.encode('a', null), model.encode('a', { bos: undefined, other: undefined }));
  assert.equal((await model.compress(['a b'], null)).length, 1);
  await model.close();
});

test('careless arguments are refused, and not taken for others', async () => {
  const model = await demo({ maxSeqLen: 64 });
  const refused = async (what, sentence) => {
    const error = await failure(what);
    assert(error instanceof TypeError && sentence.test(error.message), `${what}: ${error}`);
  };
  const text = (options) => () => model.textCompletion('a', { maxGenLen: 1, ...options });
  // An array may have a length and nothing else: there is no waiting for four billion elements.
  const endless = new Array(2 ** 32 - 1);
  for (const [what, sentence] of [
    [text({ stop: endless }), /^stop\[0\] must be a string$/],
    [text({ badWords: endless }), /^badWords\[0\] must be/],
    [text({ logitBias: endless }), /^logitBias must be an array of \[token, bias\]$/],
    [text({ logitBias: [endless] }), /^logitBias must be/],
    [text({ forceWords: [endless] }), /^forceWords\[0\]\[0\] must be/],
    [() => model.textCompletion(endless), /^prompts\[0\] must be a string$/],
    [() => model.chatCompletion([endless]), /^a message must be an object/],
    [() => model.compress(endless), /^segments\[0\] must be/],
    [() => demo({ devices: endless }), /^devices\[0\] must be a number$/],
  ]) await refused(what, sentence);
  const circular = [];
  circular[0] = circular;
  await refused(() => model.stream(circular), /^input must be/);
  await refused(() => model.stream([[['a']]]), /^input must be/);

  // What JSON has not would become null, or vanish.
  const messages = [{ role: 'user', content: 'a' }];
  await refused(model.chat({ messages, tools: () => {} }), /^tools is a function, which JSON has not$/);
  await refused(model.chat({ messages, tools: [undefined] }), /^tools has undefined as "0", which JSON has not$/);
  await refused(model.renderChatAsync({ messages, variables: { now: NaN } }), /^variables has NaN as "now"/);
  await refused(text({ grammar: { jsonSchema: { enum: [1, NaN] } } }), /^grammar\.jsonSchema has NaN as "1"/);
  await refused(model.grammar({ jsonSchema: { maximum: Infinity } }), /^grammar\.jsonSchema has Infinity as "maximum"/);
  await refused(text({ grammar: { json: false } }), /^grammar\.json must be true/);
  await refused(text({ grammar: { json: '{"type": "string"}' } }), /^grammar\.json must be true/);
  await refused(model.chat(null), /^messages must be an array$/);
  await refused(model.chat('a'), /^a chat must be an object with messages$/);
  await (await model.grammar({ jsonSchema: { type: 'null', title: undefined }, regex: undefined })).mask();

  // Options may be inherited.
  const defaults = { temperature: 0, maxGenLen: 3 };
  const inherited = await model.textCompletion('a', Object.create(defaults));
  assert.deepEqual(inherited.tokens, (await model.textCompletion('a', defaults)).tokens);
  await refused(() => model.textCompletion('a', Object.create({ maxGenLength: 3 })), /^unknown option maxGenLength$/);
  await refused(() => model.textCompletion('a', JSON.parse('{"__proto__": {"maxGenLen": 1}}')), /^unknown option __proto__$/);
  await (await Model.open(root('demo/meta'), Object.create({ maxSeqLen: 16 }))).close();

  // Sentences have the value and its place.
  const invalid = async (what, ...parts) => assertFails(await failure(what), 'LLAMA_E_INVALID_ARGUMENT', ...parts);
  await invalid(text({ temperature: 1e300 }), 'temperature is 1e+300, which is beyond a number of 32 bits');
  await invalid(text({ logitBias: [[5, 1], [5, -1e300]] }), 'logitBias[1][1] is -1e+300');
  await invalid(text({ logitBias: [[0.1, 1]] }), 'logitBias[0][0] is 0.1, must be an integer');
  await invalid(text({ seed: 2n ** 64n }), 'seed is 18446744073709551616, must be between 0 and 2^64 - 1');
  await invalid(demo({ devices: [0, 0.5] }), 'devices[1] is 0.5');
  await invalid(demo({ chatNow: NaN }), 'chatNow is NaN');
  await invalid(demo({ adapters: [{ dir: 'a', scale: 1e300 }] }), 'adapters[0].scale is 1e+300');
  // A sequence that there is not, before the call has begun as well as behind it.
  for (const early of [true, false]) {
    const stream = model.stream(['a', 'b'], { maxGenLen: 20, numReturnSequences: 2, ignoreEos: true });
    if (!early) await stream.next();
    await invalid(() => stream.stop(4), 'index is 4, the call has 4 sequences');
    stream.stop(3);
    await stream.return();
  }
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
  // Within what becomes JSON.
  const messages = [{ role: 'user', content: 'a\ud83d\ude00' }, { role: 'user', content: [{ type: 'text', text: '\\\udc00' }] }];
  await refused(model.chat({ messages }), 'messages[1].content[0].text has a lone surrogate, U+DC00, at index 1');
  await refused(() => model.streamChat({ messages }), 'messages[1].content[0].text');
  messages.pop();
  await refused(model.renderChatAsync({ messages, tools: [{ type: 'function', 'x\ud83d': 1 }] }), 'a key of tools[0] has', 'index 1');
  await refused(model.encodeChatAsync({ messages, variables: { now: '\ud83d!' } }), 'variables.now has', 'index 0');
  await refused(model.grammar({ choice: ['a', '\ud83d'] }), 'grammar.choice[1] has');
  await refused(model.textCompletion('a', { grammar: { jsonSchema: { const: '\ud83d' } } }), 'grammar.jsonSchema.const has');
  // A backslash and letters are no half.
  messages[0].content += '\\ud83d \\\\ud83d';
  assert.equal(await model.renderChatAsync({ messages, chatTemplate: '{{ messages[0].content }}' }), messages[0].content);
  // Whole pairs, and a U+FFFD that was meant, are text.
  for (const text of ['\ud83d\ude00', '\ufffd', '\ufffd\ud83d\ude00\ufffd']) assert.equal(model.decode(model.encode(text)), text);
  await model.close();
});

test('a wrong signal is refused before a call begins', async () => {
  const model = await demo({ ...room, maxBatchSize: 1 });
  for (const signal of [new AbortController(), { aborted: true }, 5, null]) {
    for (const wrong of [
      () => Model.open('/nonexistent', { signal }),
      () => model.generate([1], { ...long, signal }),
      () => model.chat({ messages: [{ role: 'user', content: 'a' }] }, { ...long, signal }),
      () => model.stream('Once', { ...long, signal }).next(),
      () => model.compress(['a'], { rate: 2, signal }),
      () => model.encodeAsync('a b', { maxTokens: 1, signal }),
    ]) {
      const error = await failure(wrong);
      assert(error instanceof TypeError && /signal must be an AbortSignal/.test(error.message), `${wrong}: ${error}`);
    }
  }
  // What had begun would run by now, or have failed unheard, which fails this test.
  await sleep(200);
  const { running, waiting } = model.timings();
  assert.deepEqual([running, waiting], [0, 0]);
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
