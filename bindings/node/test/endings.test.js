'use strict';
// Calls, streams and models that end before they are done, and whom they keep waiting meanwhile.
const { assert, test, behaviour, root, demo, sleep, until, collect, failure, assertFails, long, room } = require('./support.js');

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
  // At most two: the step that was under way counts too.
  assert(after <= 2, `${after} steps after the abort; the whole prefill takes ${whole}`);
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
  // A stream that nobody reads keeps its slot.
  const model = await demo({ ...room, maxBatchSize: 1, maxStallMs: 600_000 });
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
  // A promise is no answer, neither is anything else but a boolean.
  const wrong = { name: 'TypeError', message: 'what shouldStop returns must be a boolean' };
  for (const answer of [async () => false, () => {}, () => 1]) {
    await assert.rejects(model.textCompletion(prompts, { ...options, shouldStop: answer }), wrong);
    await assert.rejects(collect(model.stream(prompts, { ...options, shouldStop: answer })), wrong);
  }

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

test('functions run in the context of their call', async () => {
  const { AsyncLocalStorage } = require('node:async_hooks');
  const { setImmediate: turn } = require('node:timers/promises');
  const context = new AsyncLocalStorage();
  const seen = new Set();
  const see = (answer) => (seen.add(context.getStore()), answer);
  const model = await context.run('open', () => demo({ onProgress: () => see(undefined) }));
  const options = { maxGenLen: 3, shouldStop: () => see(false) };
  const run = async () => {
    await model.textCompletion('Once', options);
    if (globalThis.gc) globalThis.gc();
    for await (const event of model.stream('Once', options)) await turn(event);
  };
  await Promise.all([context.run(1, run), context.run(2, run)]);
  assert.deepEqual(seen, new Set(['open', 1, 2]));
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

  // So are calls that have just begun: the threads of some get to the library after the close.
  for (let round = 0; round < 4; round++) {
    const model = await demo(room);
    const calls = Array.from({ length: 60 }, () => model.textCompletion(['Once', 'Twice'], { ...long, numReturnSequences: 2 }));
    const streams = Array.from({ length: 60 }, () => model.stream(['Once', 'Twice'], long));
    const pending = streams.map((stream) => stream.next());
    const compressed = model.compress(['Once upon a time'.repeat(1000)]);
    const encoded = failure(model.encodeAsync('a b '.repeat(4 << 20)));
    const added = failure(model.addAdapter(root('tests/data/adapters/plain')));
    const closed = model.close();
    assertFails(await failure(model.textCompletion('Once')), 'ERR_LLAMABI_CLOSED');
    assertFails(await failure(model.stream('Once').next()), 'ERR_LLAMABI_CLOSED');
    for (const call of calls) assert.deepEqual((await call).map((each) => each.finishReason), Array(4).fill('cancelled'));
    for (const [i, stream] of streams.entries()) {
      const events = [(await pending[i]).value, ...(await collect(stream))];
      const ends = events.filter((event) => event.type === 'finish').map((event) => event.finishReason);
      assert.deepEqual(ends, ['cancelled', 'cancelled']);
    }
    assert.equal((await compressed)[0].finishReason, 'cancelled');
    for (const error of await Promise.all([encoded, added])) assertFails(error, 'LLAMA_CANCELLED');
    await closed;
  }
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

test('a grammar that takes long to compile keeps calls with others from nothing', async () => {
  const model = await demo();
  const quick = { maxGenLen: 1, grammar: { regex: 'b+' } };
  const known = await model.grammar({ choice: ['a', 'b'] });
  await model.textCompletion('a', quick);
  // This takes seconds to compile.
  const properties = Object.fromEntries(Array.from({ length: 4000 }, (_, i) => [`p${i}`, { type: 'integer' }]));
  let compiled = 0;
  const slow = [0, 1].map(() => model.grammar({ jsonSchema: { type: 'object', properties } }).then(() => compiled++));
  await sleep(50);
  known.mask();
  await model.textCompletion('a', quick);
  await model.textCompletion('a', { ...quick, grammar: { regex: 'c+' } });
  assert.equal(compiled, 0);
  await Promise.all(slow);
  // Those that wait for one that cannot be compiled all hear why; so do later ones.
  const wrong = () => failure(model.textCompletion('a', { grammar: { regex: 'a(' } }));
  for (const error of [...(await Promise.all([wrong(), wrong(), wrong()])), await wrong()]) assertFails(error, 'LLAMA_E_INVALID_ARGUMENT', 'regex');
  await model.close();
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
