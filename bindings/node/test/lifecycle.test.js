'use strict';
// Ends of processes and workers, and what is left behind by ten thousand calls. In processes of
// their own: each must end by itself, with code 0.
const { assert, test, script, assertRan } = require('./support.js');

// AddressSanitizer keeps what is freed; leaks.js is for it.
const skip = process.env.ASAN_OPTIONS ? 'AddressSanitizer keeps freed memory' : false;
const endless = '{ maxGenLen: 4000, ignoreEos: true }';

test('a process that is done ends, whatever still runs', async () => {
  // An abandoned stream and an open model keep nothing alive.
  const ran = await script(`s.demo({ maxSeqLen: 4096 }).then(async (model) => {
    globalThis.kept = [model, model.stream('Once', ${endless})];
    await kept[1].next();
    console.log('left');
  })`);
  assert.equal(assertRan(ran), 'left\n');
});

test('process.exit() while calls, streams and loads run', async () => {
  for (const delay of [0, 1, 5, 20]) {
    const ran = await script(`s.demo({ maxSeqLen: 4096 }).then(async (model) => {
      for (let i = 0; i < 6; i++) model.textCompletion('Once', ${endless});
      (async () => { for await (const event of model.stream('Once', ${endless})); })();
      for (let i = 0; i < 4; i++) s.demo();
      setTimeout(() => { console.log('left'); process.exit(0); }, ${delay});
    })`);
    assert.equal(assertRan(ran), 'left\n');
  }
});

test('an uncaught exception ends the process as ever', async () => {
  const ran = await script(`s.demo({ maxSeqLen: 4096, onLog: () => { throw new Error('mine'); } })`);
  assert.deepEqual([ran.code, ran.signal], [1, null]);
  assert.match(ran.stderr, /Error: mine/);
});

test('a process that goes on behind what onLog throws hears the other lines', async () => {
  const ran = await script(`
    const caught = [];
    process.on('uncaughtException', (error) => caught.push(error.message));
    let lines = 0;
    const onLog = () => { throw new Error('line ' + ++lines); };
    (async () => {
      const model = await s.demo({ logLevel: 'debug', onLog });
      const before = lines;
      await model.textCompletion(['a', 'b', 'c', 'd'], { maxGenLen: 1 }); // a line for each
      await s.until(() => lines === before + 4, 'all four lines');
      await model.close();
      // What a load that fails has to log is not its error.
      s.assertFails(await s.failure(s.demo({ ckptDir: '/none', logLevel: 'debug', onLog })), 'LLAMA_E_IO', '/none');
      await s.sleep(10);
      s.assert.deepEqual(caught, Array.from({ length: lines }, (_, i) => 'line ' + (i + 1)));
      console.log('heard');
    })()`);
  assert.equal(assertRan(ran), 'heard\n');
});

test('a stream that nobody holds any more frees its slot', async () => {
  const ran = await script(
    `s.demo({ maxSeqLen: 4096, maxBatchSize: 1 }).then(async (model) => {
      const lose = async () => void (await model.stream('Once', ${endless}).next());
      await lose();
      s.assert.equal(model.timings().running, 1);
      await s.until(() => (gc(), model.timings().running === 0), 'collected');
      console.log('freed');
    })`,
    { flags: ['--expose-gc'] }
  );
  assert.equal(assertRan(ran), 'freed\n');
});

test('streams that were dropped leave nothing on a signal that lives on', async () => {
  const ran = await script(
    `s.demo({ maxSeqLen: 4096, maxBatchSize: 16 }).then(async (model) => {
      const { signal } = (globalThis.app = new AbortController());
      const listeners = () => require('node:events').getEventListeners(signal, 'abort').length;
      const threads = () => require('node:fs').readdirSync('/proc/self/task').length;
      const before = threads();
      const held = model.stream('Once', { ...${endless}, signal });
      await held.next();
      const lose = async () => void (await model.stream('Once', { ...${endless}, signal }).next());
      for (let i = 0; i < 10; i++) await lose();
      // So are those whose own signal holds them.
      const loseBoth = async () => {
        const own = new AbortController();
        const stream = model.stream('Once', { ...${endless}, signal: own.signal });
        own.signal.addEventListener('abort', () => stream.return());
        await stream.next();
      };
      for (let i = 0; i < 3; i++) await loseBoth();
      await s.until(() => (gc(), threads() <= before + 1 && listeners() === 1), 'only one is left');
      // The one that is held still hears the signal, however often the collector has run.
      app.abort();
      s.assert.equal((await s.collect(held)).at(-1).finishReason, 'cancelled');
      s.assert.equal(listeners(), 0);
      console.log('freed');
    })`,
    { flags: ['--expose-gc'] }
  );
  assert.equal(assertRan(ran), 'freed\n');
});

test('a model that nobody holds any more is freed, its calls run on', async () => {
  const ran = await script(
    `(async () => {
      const call = s.demo({ onLog: (level, line) => {} }).then((model) => {
        globalThis.registry = new FinalizationRegistry(() => (globalThis.freed = true));
        registry.register(model, 0);
        return model.textCompletion('Once', { maxGenLen: 400, ignoreEos: true });
      });
      const gcs = setInterval(gc, 1);
      s.assert.equal((await call).tokens.length, 400);
      await s.until(() => globalThis.freed, 'collected');
      clearInterval(gcs);
      console.log('freed');
    })()`,
    { flags: ['--expose-gc'] }
  );
  assert.equal(assertRan(ran), 'freed\n');
});

test('worker_threads: several at once, each with its model', async () => {
  const ran = await script(`
    const { Worker, isMainThread } = require('node:worker_threads');
    const text = ${JSON.stringify(`
      const s = require('./support.js');
      s.demo({ onLog: () => {} }).then(async (model) => {
        const { text } = await model.textCompletion('Once upon a time', { temperature: 0, maxGenLen: 30 });
        let streamed = '';
        for await (const event of model.stream('Once upon a time', { temperature: 0, maxGenLen: 30 })) streamed += event.text;
        s.assert.equal(streamed, text);
        require('node:worker_threads').parentPort.postMessage(text);
      });`)};
    (async () => {
      const model = await s.demo();
      const workers = Array.from({ length: 4 }, () => new Promise((resolve, reject) => {
        const worker = new Worker(text, { eval: true });
        let got;
        worker.on('message', (message) => (got = message)).on('error', reject).on('exit', (code) => resolve([got, code]));
      }));
      const want = (await model.textCompletion('Once upon a time', { temperature: 0, maxGenLen: 30 })).text;
      for (const [got, code] of await Promise.all(workers)) s.assert.deepEqual([got, code], [want, 0]);
      console.log('equal');
    })()`);
  assert.equal(assertRan(ran), 'equal\n');
});

test('worker.terminate() in the middle of calls, streams and loads', async () => {
  const ran = await script(`
    const { Worker } = require('node:worker_threads');
    const text = ${JSON.stringify(`
      const s = require('./support.js');
      const { parentPort } = require('node:worker_threads');
      s.demo({ maxSeqLen: 4096, maxBatchSize: 2, onLog: () => {}, onProgress: () => {} }).then(async (model) => {
        for (let i = 0; i < 3; i++) model.textCompletion('Once', ${endless});
        (async () => { for await (const event of model.stream('Once', ${endless})); })();
        parentPort.postMessage('running');
        for (;;) await s.demo({ onProgress: () => {}, onLog: () => {} });
      });`)};
    (async () => {
      const base = await s.demo();
      for (let round = 0; round < 24; round++) {
        const worker = new Worker(text, { eval: true });
        // Every fourth while it still starts.
        await new Promise((resolve) => round % 4 === 3 ? setTimeout(resolve, 10 + round) : worker.once('message', resolve));
        await s.sleep(round % 7);
        await worker.terminate();
      }
      // The process is sound, and nothing of the workers computes any more.
      await base.textCompletion('Once', { maxGenLen: 20 });
      await s.until(async () => {
        const before = process.cpuUsage();
        await s.sleep(300);
        return process.cpuUsage(before).user < 100_000;
      }, 'a third of a second in which less than a third of a processor is busy');
      console.log('sound');
    })()`);
  assert.equal(assertRan(ran), 'sound\n');
});

test('no leak over 10,000 calls and 2,000 streams that are left', { skip }, async () => {
  const ran = await script(
    `s.demo({ maxSeqLen: 128 }).then(async (model) => {
      const signal = new AbortController().signal;
      const calls = async (n) => {
        for (let i = 0; i < n; i += 20) {
          await Promise.all(Array.from({ length: 20 }, (_, k) => k === 0
            ? s.failure(model.textCompletion('Once', { temperature: -1 }))
            : model.textCompletion('Once', { maxGenLen: 1, logprobs: true, topLogprobs: 5, stop: ['x'], signal })));
        }
      };
      const streams = async (n) => {
        for (let i = 0; i < n; i++) for await (const event of model.stream('Once', { signal })) break;
      };
      const resident = () => { gc(); gc(); return process.memoryUsage().rss; };
      await calls(2000);
      await streams(400);
      const grows = async () => {
        const before = resident();
        await calls(10000);
        await streams(2000);
        return (resident() - before) / 1e6;
      };
      let growth = await grows();
      if (growth >= 8) growth = await grows(); // the collector may have had room to take, once
      console.log('grew by ' + growth.toFixed(1) + ' MB');
      s.assert(growth < 8, growth + ' MB');
      s.assert.deepEqual([model.timings().running, model.timings().pagesUsed], [0, 0]);
      s.assert.equal(require('node:events').getEventListeners(signal, 'abort').length, 0);
    })`,
    { flags: ['--expose-gc'] }
  );
  assert.match(assertRan(ran), /^grew by/);
  console.log(`no leak: 10,000 calls, 2,000 streams: ${ran.stdout.trim()}`);
});

test('no leak over 200 models', { skip }, async () => {
  const ran = await script(
    `(async () => {
      const models = async (n) => {
        for (let i = 0; i < n; i++) {
          const model = await s.demo({ maxSeqLen: 64, onProgress: () => {}, onLog: () => {} });
          await model.textCompletion('Once', { maxGenLen: 1 });
          await model.close();
          await s.failure(s.demo({ ckptDir: '/none', onLog: () => {}, onProgress: () => {} }));
        }
      };
      const resident = () => { gc(); gc(); return process.memoryUsage().rss; };
      await models(50);
      const grows = async () => {
        const before = resident();
        await models(200);
        return (resident() - before) / 1e6;
      };
      let growth = await grows();
      if (growth >= 20) growth = await grows();
      s.assert(growth < 20, growth + ' MB; a model has 8');
      console.log(growth);
    })()`,
    { flags: ['--expose-gc'] }
  );
  assertRan(ran);
});
