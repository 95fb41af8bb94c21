// An HTTP service in the OpenAI completions and chat-completions protocol, with one model, and a
// playground page at /.
//
//   node server.mjs --ckpt_dir ../../demo/meta --port 8080
//
// Requests run together in the model's own batches: max_batch_size sequences at a time, as many as
// --queue more wait, and the next one is answered 429. A client that leaves frees its slot.
//
// server.mjs starts and stops; routes.mjs has the routes, the queue and the errors; request.mjs reads
// requests; answer.mjs runs and answers them; http.mjs has the form of answers and errors; metrics.mjs
// counts; public/ is the page.
import { randomInt } from 'node:crypto';
import { createServer } from 'node:http';
import { basename, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { Model, version } from 'llamabi';
import { notLoaded } from './http.mjs';
import { Service } from './routes.mjs';

const DTYPES = ['auto', 'f32', 'f16', 'bf16', 'int8', 'int4', 'nf4', 'fp8'];

const FLAGS = {
  ckpt_dir: ['', 'directory of the checkpoint (required)'],
  tokenizer_path: ['', 'tokenizer.model, if it is not in ckpt_dir; also --tokenizer'],
  model_name: ['', "what /v1/models calls the model (default: the directory's name)"],
  max_seq_len: [512, 'most tokens of a sequence, prompt included'],
  max_batch_size: [8, 'sequences that run at the same time'],
  threads: [0, 'threads of the CPU backend (0: all)'],
  weights_dtype: ['auto', `convert the weights: ${DTYPES.join(', ')}`],
  kv_dtype: ['auto', 'type of the KV cache, one of the same'],
  seed: [0, 'of requests without one, in turn (0: random)'],
  queue: [64, 'sequences that may wait; more are answered 429'],
  max_body: [1 << 20, 'most bytes of a request'],
  host: ['127.0.0.1', 'address to listen on; there is no authentication'],
  port: [8080, 'port to listen on (0: any)'],
  grace: [30, 'seconds that running requests have after SIGTERM'],
};

function flags() {
  const options = Object.fromEntries([...Object.keys(FLAGS), 'tokenizer'].map((name) => [name, { type: 'string' }]));
  const { values } = parseArgs({ options: { ...options, help: { type: 'boolean' } } });
  if (values.help) {
    for (const [name, [value, about]] of Object.entries(FLAGS)) console.log(`  --${name.padEnd(16)} ${about}${value === '' ? '' : ` (${value})`}`);
    process.exit(0);
  }
  values.tokenizer_path ??= values.tokenizer;
  const result = {};
  for (const [name, [missing]] of Object.entries(FLAGS)) {
    result[name] = values[name] ?? missing;
    if (typeof missing !== 'number') continue;
    result[name] = Number(result[name]);
    if (!Number.isSafeInteger(result[name]) || result[name] < 0) throw new Error(`--${name} is ${values[name]}, must be an integer and not negative`);
  }
  for (const name of ['weights_dtype', 'kv_dtype']) {
    if (!DTYPES.includes(result[name])) throw new Error(`--${name} is ${result[name]}, must be one of ${DTYPES.join(', ')}`);
  }
  if (result.ckpt_dir === '') throw new Error('--ckpt_dir is missing; --help lists the flags');
  return result;
}

const log = (line) => console.error(`node-server: ${line}`);

async function main() {
  const f = flags();
  // First the port: one that is taken is known at once.
  let service;
  const server = createServer({ requestTimeout: 30_000, keepAliveTimeout: 120_000 }, (req, res) => {
    if (service) service.handle(req, res);
    else notLoaded(req, res);
  });
  server.on('connection', (socket) => socket.setMaxListeners(0)); // one for each request of a pipeline
  await new Promise((resolve, reject) => server.once('error', reject).listen(f.port, f.host, resolve));

  const loading = new AbortController();
  const stopLoading = () => loading.abort();
  process.once('SIGTERM', stopLoading).once('SIGINT', stopLoading);
  const seed = f.seed || randomInt(1, 2 ** 47);
  log(`seed ${seed}`);
  const model = await Model.open(f.ckpt_dir, {
    tokenizerPath: f.tokenizer_path || undefined,
    maxSeqLen: f.max_seq_len,
    maxBatchSize: f.max_batch_size,
    nThreads: f.threads,
    weightsDtype: f.weights_dtype,
    kvDtype: f.kv_dtype,
    seed,
    signal: loading.signal,
    onLog: (level, message) => log(message),
  }).catch((error) => {
    server.close();
    server.closeAllConnections();
    throw error;
  });
  process.off('SIGTERM', stopLoading).off('SIGINT', stopLoading);

  service = new Service(model, {
    name: f.model_name || basename(resolve(f.ckpt_dir)),
    fingerprint: `llamabi-${version}`,
    queue: f.queue,
    maxBody: f.max_body,
    log,
  });
  const { address, family, port } = server.address();
  console.log(`listening on http://${family === 'IPv6' ? `[${address}]` : address}:${port}`);

  const stopped = new Promise((resolve) => server.once('close', resolve));
  const stop = () => {
    process.off('SIGTERM', stop).off('SIGINT', stop); // a second signal kills
    service.draining = true;
    server.close();
    server.closeIdleConnections();
    setTimeout(() => {
      log(`requests still run after ${f.grace} s, and are cancelled`);
      service.abandonAll();
      setTimeout(() => server.closeAllConnections(), 5000).unref();
    }, f.grace * 1000).unref();
  };
  process.on('SIGTERM', stop).on('SIGINT', stop);
  await stopped;
  await model.close();
}

main().catch((error) => {
  log(error.message);
  process.exitCode = 1;
});
