'use strict';
// What require() says of a library that is not there, or is another one.
const { spawnSync } = require('node:child_process');
const { cpSync, mkdtempSync, readFileSync, realpathSync, rmSync, symlinkSync, unlinkSync } = require('node:fs');
const { tmpdir } = require('node:os');
const { dirname, join } = require('node:path');
const { assert, test, behaviour, node, root, assertRan } = require('./support.js');

const report = (what) =>
  `try { ${what} } catch (e) { console.log(JSON.stringify({ name: e.name, code: e.code, status: e.status, message: e.message })); }`;
const caught = async (ran) => JSON.parse(assertRan(await ran));

behaviour('missing_library', async () => {
  // A copy of the package, built for a prefix that then goes away.
  const dir = mkdtempSync(join(tmpdir(), 'llamabi-'));
  const copy = join(dir, 'llamabi');
  const prefix = spawnSync('pkg-config', ['--variable=prefix', 'llamabi'], { encoding: 'utf8' }).stdout.trim();
  const installed = realpathSync(dirname(require.resolve('llamabi/package.json')));
  cpSync(installed, copy, { recursive: true, filter: (path) => !/\/(build|node_modules\/(?!node-api-headers).+)$/.test(path.slice(installed.length)) });
  symlinkSync(prefix, join(dir, 'prefix'));
  const NODE_PATH = dirname(dirname(require.resolve('node-api-headers/package.json', { paths: [installed] })));
  const PKG_CONFIG_PATH = join(dir, 'prefix/lib/pkgconfig');
  const text = report(`console.log(JSON.stringify(require(${JSON.stringify(copy)}).version))`);

  const unbuilt = await caught(node(['-e', text]));
  assert.match(unbuilt.message, /not been built.*npm rebuild llamabi/);
  const none = await node([join(copy, 'build.js')], { env: { NODE_PATH, PKG_CONFIG_PATH: dir, PKG_CONFIG_LIBDIR: dir } });
  assert.equal(none.code, 1);
  assert.match(none.stderr, /libllamabi is not installed.*make install PREFIX.*PKG_CONFIG_PATH/s);

  assertRan(await node([join(copy, 'build.js')], { env: { NODE_PATH, PKG_CONFIG_PATH } }));
  assert.match(await caught(node(['-e', text])), /^\d+\.\d+\.\d+$/);
  unlinkSync(join(dir, 'prefix'));
  const missing = await caught(node(['-e', text]));
  assert.equal(missing.code, 'ERR_LLAMABI_LIBRARY');
  assert.match(missing.message, /libllamabi could not be loaded; install it .*npm rebuild llamabi.*LD_LIBRARY_PATH.*libllamabi\.so/);
  rmSync(dir, { recursive: true });
});

behaviour('other_abi', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'llamabi-'));
  const made = spawnSync('sh', [root('tests/bindings/other_abi.sh'), dir], { encoding: 'utf8' });
  assert.equal(made.status, 0, made.stderr);
  const refused = await caught(node(['-e', report(`require('llamabi'); console.log('{}')`)], { env: { LD_LIBRARY_PATH: dir } }));
  assert.deepEqual([refused.name, refused.code, refused.status], ['LlamaError', 'LLAMA_E_ABI', -2]);
  assert.match(refused.message, /99\.0\.0 has ABI version 99, this package was built for ABI version 0/);
  rmSync(dir, { recursive: true });
});

// Sets every option to what tests/bindings/fields.txt has, with the library of
// tests/bindings/fields.sh.
behaviour('every_field', async () => {
  const dir = mkdtempSync(join(tmpdir(), 'llamabi-'));
  const script = (...args) => spawnSync('bash', [root('tests/bindings/fields.sh'), ...args], { encoding: 'utf8' });
  const made = script('lib', dir);
  assert.equal(made.status, 0, made.stderr);
  const program = `
    const { Model } = require('llamabi');
    const { signal } = new AbortController();
    const all = async () => {
      const say = (name) => (error) => console.log(name, error.message);
      await Model.open({ ckptDir: 'say', maxSeqLen: 101, maxBatchSize: 102, modelParallelSize: 103, device: 'cuda', deviceIndex: 104,
        nThreads: 105, weightsDtype: 'nf4', kvDtype: 'int8', seed: 5000000106n, signal, onProgress: () => {}, onLog: () => {},
        logLevel: 'debug', gpuMemoryBytes: 5000000107, maxWaiting: 108, precision: 'fast', maxStallMs: 109, maxUnreadMs: 110, devices: [0, 1, 2], rankTimeoutMs: 113, draftDir: 'a', draftWeightsDtype: 'int4', draftKvDtype: 'bf16', medusaDir: 'b', maxStepMs: 114,
        stallMemoryBytes: 5000000111n, chatTemplate: 'a', chatNow: 5000000112,
        adapters: ['a', { dir: 'b', scale: 0.5 }] }).catch(say('llama_build_options'));
      const model = await Model.open('a model');
      await model.textCompletion(['a'], {
        // Numbers of llamabi.h.
        maxGenLen: 201,
        temperature: 0.5,
        topP: 0.25,
        topK: 202,
        minP: 0.125,
        repetitionPenalty: 1.5,
        seed: 5000000203n,
        topLogprobs: 204,
        cacheSalt: 5000000205n,
        numReturnSequences: 206,
        numBeams: 211,
        minGenLen: 207,
        noRepeatNgramSize: 208,
        presencePenalty: 0.75,
        frequencyPenalty: -0.75,
        typicalP: 0.625,
        epsilonCutoff: 0.375,
        etaCutoff: 0.875,
        maxTimeMs: 209,
        adapter: 210,
        lengthPenalty: 1.75,
        draftLen: 212,
        contrastBeta: 0.15625,
        contrastAlpha: 0.1875,
        // End of numbers.
        stop: ['a', 'b'], logitBias: [[1, 0.5]], stopTokens: [1, 2, 3], badWords: [[1], [2, 3], [4], [5]], grammar: { json: true },
        speculation: 'ngram', predicted: [1, 2, 3, 4, 5], earlyStopping: 'never', beamEvents: true, forceWords: [[[1], [2, 3]], [[4]]], shouldStop: () => false, echo: true, logprobs: true, noWait: true,
        ignoreEos: true, special: true, signal }).catch(say('llama_generate_options'));
      console.log('llama_info', JSON.stringify(model.info()));
      console.log('llama_timings', JSON.stringify(model.timings()));
      const events = [];
      for await (const event of model.stream('a')) events.push(event);
      console.log('llama_finish', events.map((event) => event.finishReason).join(' '));
      console.log('llama_request_stats', JSON.stringify(events[0].stats));
    };
    all().then(() => process.exit());`;
  const said = await node(['-e', program], { env: { LD_LIBRARY_PATH: dir } });
  const checked = spawnSync('bash', [root('tests/bindings/fields.sh'), 'check'], { encoding: 'utf8', input: assertRan(said) });
  assert.equal(checked.status, 0, checked.stderr);
  // All of it in TypeScript's types too: options as the program gives them, figures and reasons as
  // it printed them.
  const typesIn = (name) => readFileSync(join(dirname(require.resolve('llamabi/package.json')), name), 'utf8');
  const types = (typesIn('index.d.ts') + typesIn('options.d.ts')).replace(/\/\*[^]*?\*\//g, '');
  const [, reasons] = /^llama_finish (.*)$/m.exec(said.stdout);
  const told = [...program.match(/[a-zA-Z]+(?=: )/g), ...reasons.split(' '), ...said.stdout.match(/(?<=")[a-zA-Z]+(?=":)/g)];
  for (const name of told) assert(new RegExp(`\\b${name}\\b`).test(types), `the types do not have ${name}`);
  rmSync(dir, { recursive: true });
});

test('ESM and CommonJS give the same', async () => {
  const ran = await node(['--input-type=module', '-e', `
    import all, { Model, LlamaError, version, abiVersion } from 'llamabi';
    import { createRequire } from 'node:module';
    const required = createRequire(process.cwd() + '/x.js')('llamabi');
    console.log(required.Model === Model && all.Model === Model && required.LlamaError === LlamaError && version === required.version && abiVersion === 0);`]);
  assert.equal(assertRan(ran), 'true\n');
});
