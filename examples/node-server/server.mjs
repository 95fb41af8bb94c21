// An HTTP service in the OpenAI completions and chat-completions protocol, with one model, and a
// playground page at /.
//
//   node server.mjs --ckpt_dir ../../demo/meta --port 8080
//
// Requests run together in the model's own batches: max_batch_size sequences at a time, as many as
// --queue more wait, and further requests are answered 429. A client that leaves frees its slot.
//
// server.mjs starts and stops (flags.mjs: the command line, drain.mjs: the end of connections);
// routes.mjs has the routes, the queue and the errors; auth.mjs says who may ask; body.mjs and
// request.mjs read requests, messages.mjs the messages of chats (tools.mjs: those with tools, for
// the model's chat template, which template.mjs asks what it can do); answer.mjs runs them
// (tokenize.mjs: /tokenize and /detokenize); sending.mjs and backlog.mjs send answers as fast as
// their clients take them; spelling.mjs makes texts and the tokens that spell them, calls.mjs finds
// tool calls in them, constraint.mjs and forced.mjs are the languages that answers are kept in;
// json.mjs reads JSON as it was written; http.mjs has the form of answers and errors; metrics.mjs
// and access.mjs count and write down; public/ is the page.
import { randomInt } from 'node:crypto';
import { createServer } from 'node:http';
import { basename, resolve } from 'node:path';
import { Model, version } from 'llamabi';
import { accessLog } from './access.mjs';
import { Auth } from './auth.mjs';
import { Drain } from './drain.mjs';
import { readFlags } from './flags.mjs';
import { notLoaded } from './http.mjs';
import { Service } from './routes.mjs';
import { probeTemplate } from './template.mjs';

const log = (line) => console.error(`node-server: ${line}`);

async function main() {
  const stopping = new AbortController();
  const stop = () => {
    process.off('SIGTERM', stop).off('SIGINT', stop); // a second signal kills
    stopping.abort();
  };
  process.on('SIGTERM', stop).on('SIGINT', stop);
  const f = readFlags();
  const name = f.model_name || basename(resolve(f.ckpt_dir));
  checkNames(name, f.adapter);
  const writeAccess = accessLog(f.access_log, log);
  // First the port: one that is taken is known at once.
  let service;
  // Of heads Node would take 16 KiB only, which cookies and tokens of a proxy in front can fill.
  const limits = { maxHeaderSize: 64 << 10, headersTimeout: 10_000, requestTimeout: 60_000, keepAliveTimeout: 120_000, connectionsCheckingInterval: 5_000 };
  const server = createServer(limits, (req, res) => {
    if (service) service.handle(req, res);
    else notLoaded(req, res);
  });
  const drain = new Drain(server);
  // Each request of a pipeline adds a listener.
  server.on('connection', (socket) => socket.setMaxListeners(0));
  await new Promise((resolve, reject) => server.once('error', reject).listen(f.port, f.host, resolve));

  const seed = f.seed || randomInt(1, 2 ** 47);
  log(`seed ${seed}`);
  const model = await Model.open(f.ckpt_dir, {
    tokenizerPath: f.tokenizer_path || undefined,
    chatTemplate: f.chat_template,
    maxSeqLen: f.max_seq_len,
    maxBatchSize: f.max_batch_size,
    device: f.device.kind,
    deviceIndex: f.device.index,
    gpuMemoryBytes: f.gpu_memory,
    maxWaiting: f.max_waiting || Math.max(f.max_batch_size + f.queue, 1),
    maxStepMs: Math.ceil(f.max_step * 1000),
    maxStallMs: Math.ceil(f.max_stall * 1000),
    maxUnreadMs: Math.ceil(f.max_unread * 1000),
    stallMemoryBytes: f.stall_memory,
    devices: f.ranks,
    nThreads: f.threads,
    weightsDtype: f.weights_dtype,
    kvDtype: f.kv_dtype,
    precision: f.precision,
    ...(f.draft_dir && { draftDir: f.draft_dir }),
    ...(f.medusa_dir && { medusaDir: f.medusa_dir }),
    draftWeightsDtype: f.draft_weights_dtype,
    seed,
    signal: stopping.signal,
    onLog: (level, message) => log(message),
  }).catch((error) => {
    server.close();
    server.closeAllConnections();
    if (error.code === 'LLAMA_CANCELLED') return null; // as it was told to
    throw error;
  });
  if (model === null) return;

  const adapters = new Map();
  for (const { name, dir } of f.adapter) {
    const id = await model.addAdapter(dir).catch((error) => {
      server.close();
      server.closeAllConnections();
      throw new Error(`--adapter ${name}=${dir}: ${error.message}`);
    });
    adapters.set(name, id);
  }
  const template = ['none', 'llama2'].includes(model.info().chatFormat) ? null : await probeTemplate(model);
  const { address, family, port } = server.address();
  service = new Service(model, {
    template,
    name,
    adapters,
    fingerprint: `llamabi-${version}`,
    queue: f.queue,
    maxBody: f.max_body,
    maxAnswer: f.max_answer,
    timeout: f.timeout,
    auth: new Auth({ address, allowedHosts: f.allowed_host, origins: f.cors, keys: f.api_key, cacheScope: f.cache_scope }),
    reportCached: f.cached_tokens,
    accessLog: writeAccess,
    log,
  });
  console.log(`listening on http://${family === 'IPv6' ? `[${address}]` : address}:${port}`);

  const stopped = new Promise((resolve) => server.once('close', resolve));
  const leave = () => {
    service.leaving = true;
    if (f.drain === 0) return end();
    log(`not ready any more; requests are taken for another ${f.drain} s`);
    setTimeout(end, f.drain * 1000);
  };
  const end = () => {
    service.draining = true;
    drain.begin();
    setTimeout(() => {
      log(`${drain.answers} requests still run after ${f.grace} s, and are cancelled`);
      service.abandonAll();
      setTimeout(() => {
        log(`${drain.answers} answers have not been taken, and are cut`);
        server.closeAllConnections();
      }, 5000).unref();
    }, f.grace * 1000).unref();
  };
  if (stopping.signal.aborted) leave();
  else stopping.signal.addEventListener('abort', leave);
  await stopped;
  await model.close();
}

// Refuses a name that two of the models have.
function checkNames(name, adapters) {
  const seen = new Set([name]);
  for (const { name, dir } of adapters) {
    if (seen.has(name)) throw new Error(`--adapter ${name}=${dir}: there is a model of that name`);
    seen.add(name);
  }
}

main().catch((error) => {
  log(error.message);
  process.exitCode = 1;
});
