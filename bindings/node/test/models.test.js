'use strict';
// What a model can be loaded with, and what is told of it meanwhile.
const { join } = require('node:path');
const { assert, test, behaviour, Model, root, demo, failure, assertFails } = require('./support.js');

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

test('options beside the directory', async () => {
  const model = await Model.open(root('demo/meta'), { maxSeqLen: 64, maxBatchSize: 3 });
  const { maxSeqLen, maxBatchSize } = model.info();
  assert.deepEqual([maxSeqLen, maxBatchSize], [64, 3]);
  await model.close();
});

test('file URLs, as node:fs takes them', async () => {
  const { pathToFileURL } = require('node:url');
  const data = (name) => pathToFileURL(root(join('tests/data/adapters', name)));
  const adapter = data('plain');
  for (const adapters of [[adapter], [{ dir: adapter, scale: 2 }]]) {
    const model = await Model.open(data('base'), { weightsDtype: 'f32', maxBatchSize: 3, adapters });
    assert.equal(model.info().maxBatchSize, 3);
    await model.addAdapter(adapter);
    await model.close();
  }
  for (const name of ['ckptDir', 'tokenizerPath', 'draftDir', 'medusaDir'])
    assertFails(await failure(demo({ [name]: new URL('file:///no/such%20thing') })), 'LLAMA_E_IO', '/no/such thing');
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
