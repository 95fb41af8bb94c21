'use strict';
const { assert, test, Model, demo, failure, assertFails, sleep } = require('./support.js');

test('encodeAsync, encodeDialogAsync and decodeAsync give what their synchronous namesakes give', async () => {
  const model = await demo();
  const text = 'Once upon a time, there was a caf\u00e9 \u{1f98a}.';
  for (const options of [undefined, { bos: true }, { eos: true }, { bos: true, eos: true }]) {
    assert.deepEqual(await model.encodeAsync(text, options), model.encode(text, options));
  }
  assert.deepEqual(await model.encodeAsync(''), model.encode(''));
  const dialog = [{ role: 'user', content: 'Hi!' }, { role: 'assistant', content: 'Hello.' }, { role: 'user', content: text }];
  assert.deepEqual(await model.encodeDialogAsync(dialog), model.encodeDialog(dialog));
  const tokens = model.encode(text);
  assert.equal(await model.decodeAsync(tokens), model.decode(tokens));
  assert.equal(await model.decodeAsync([...tokens]), model.decode(tokens));
  assert.equal(await model.decodeAsync([]), '');
  await model.close();
});

test('failures reject, and a closed model too', async () => {
  const model = await demo();
  assertFails(await failure(model.decodeAsync([1, 99999])), 'LLAMA_E_INVALID_ARGUMENT', '99999');
  assertFails(await failure(model.encodeDialogAsync([{ role: 'robot', content: 'a' }])), 'LLAMA_E_INVALID_ARGUMENT', 'robot');
  assert((await failure(model.encodeAsync(7))) instanceof TypeError);
  // It may be done before the model is closed, or is cancelled.
  const late = model.encodeAsync('a').catch((error) => assertFails(error, 'LLAMA_CANCELLED'));
  await model.close();
  await late;
  assert.equal((await failure(model.encodeAsync('a'))).code, 'ERR_LLAMABI_CLOSED');
});

test('the event loop turns while a text is encoded', async () => {
  const model = await demo();
  const text = 'x '.repeat(500_000);
  let turns = 0;
  let encoding = true;
  const count = () => encoding && (turns++, setImmediate(count));
  setImmediate(count);
  await model.encodeAsync(text);
  encoding = false;
  assert(turns > 10, `${turns} turns`); // one or two, if the text is encoded on this thread
  await model.close();
});

test('a signal stops an encoding', async () => {
  const model = await demo();
  const text = 'Once upon a time, there was a fox. '.repeat(300_000);
  // In processor time, which others on a busy machine do not lengthen much.
  const costs = async (call) => {
    const before = process.cpuUsage();
    await call();
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1000;
  };
  const whole = await costs(() => model.encodeAsync(text));
  for (const wait of [0, whole / 20]) {
    const stopped = () => costs(async () => {
      const abort = new AbortController();
      const encoding = model.encodeAsync(text, { signal: abort.signal }).catch((error) => error);
      await sleep(wait);
      abort.abort();
      const error = await encoding;
      if (error instanceof Error) assertFails(error, 'LLAMA_CANCELLED', '');
    });
    // There, this thread may have its turn late, even after the end: once in ten times is enough.
    const took = [];
    do took.push(await stopped());
    while (took.at(-1) >= whole / 2 && took.length < 10);
    assert(took.at(-1) < whole / 2, `${took} of ${whole} ms`);
  }
  assertFails(await failure(model.encodeAsync('a', { signal: AbortSignal.abort() })), 'LLAMA_CANCELLED', '');
  assert((await failure(model.encodeAsync('a', { signal: 7 }))) instanceof TypeError);
  assert((await model.encodeAsync('a', { signal: new AbortController().signal })).length > 0);
  await model.close();
});

test('a call finds the prefixes of its own cacheSalt only, and gets the same text', async () => {
  const model = await demo();
  const prompt = 'Once upon a time there was a fox. '.repeat(10);
  const run = (cacheSalt) => model.textCompletion(prompt, { maxGenLen: 20, temperature: 0, cacheSalt });
  const [first, again] = [await run(), await run(0)];
  assert(first.stats.cachedTokens === 0 && again.stats.cachedTokens > 0);
  for (const salt of [7, 2n ** 64n - 1n]) {
    const [alone, twice] = [await run(salt), await run(salt)];
    assert(alone.stats.cachedTokens === 0 && twice.stats.cachedTokens === again.stats.cachedTokens);
    assert(alone.text === first.text && twice.text === first.text);
  }
  assertFails(await failure(run(-1)), 'LLAMA_E_INVALID_ARGUMENT', 'cacheSalt');
  await model.close();
});
