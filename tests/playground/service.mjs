// The Node service beyond what the official clients send: its flags, odd requests, clients that
// leave.
//
//   node service.mjs SERVER.MJS CHECKPOINT
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [SERVER, CHECKPOINT] = process.argv.slice(2);
process.setMaxListeners(0); // one for each service
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(condition, what) {
  for (const end = Date.now() + 300_000; !(await condition()); await sleep(5)) assert(Date.now() < end, what);
}

function start(...flags) {
  return run([SERVER, '--ckpt_dir', CHECKPOINT, ...flags]);
}

// A service; `log` grows, `ended` resolves with its exit code.
function run(args) {
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  const service = { log: '', child, ended: new Promise((resolve) => child.once('close', resolve)) };
  for (const pipe of [child.stdout, child.stderr]) pipe.on('data', (data) => (service.log += data));
  process.once('exit', () => child.kill());
  return service;
}

async function started(...flags) {
  const service = start('--port', '0', ...flags);
  await until(() => (service.url = /^listening on (.*)$/m.exec(service.log)?.[1]), `it starts: ${service.log}`);
  return service;
}

async function post(url, path, body) {
  const response = await fetch(url + path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
}

const model = CHECKPOINT.split('/').at(-1);
const TEXT = { model, prompt: 'Once upon a time', temperature: 0, max_tokens: 20 };
const CHAT = { model, messages: [{ role: 'user', content: 'What color is the sky?' }], temperature: 0, max_tokens: 20 };
const paths = [['/v1/completions', TEXT], ['/v1/chat/completions', CHAT]];

async function fields(url) {
  const harmless = {
    user: 'a', metadata: { a: 'b' }, store: true, service_tier: 'auto', parallel_tool_calls: true, prompt_cache_key: 'a', logit_bias: {},
    presence_penalty: 0, frequency_penalty: 0, response_format: { type: 'text' }, tools: [], tool_choice: 'auto', seed: null, whatever: null,
  };
  const refused = {
    temprature: 1, logit_bias: { x: 5 }, presence_penalty: 'a', frequency_penalty: '', response_format: 5, guided_regex: '(', tool_choice: 'required',
    tools: [{}], suffix: 'a', modalities: ['audio'], constructor: 1, repetition_penalty: 0,
  };
  for (const [path, body] of paths) {
    const { status, body: answer } = await post(url, path, { ...body, ...harmless });
    assert.equal(status, 200, JSON.stringify(answer));
    for (const [name, value] of Object.entries(refused)) {
      const { status, body: { error } } = await post(url, path, { ...body, [name]: value });
      assert.deepEqual([status, error?.type, error?.param], [400, 'invalid_request_error', name], `${path} ${name}`);
    }
  }
  assert.equal((await post(url, '/v1/chat/completions', { ...CHAT, prompt: 'a' })).body.error.param, 'prompt');
  const text = async (more) => (await post(url, '/v1/completions', { ...TEXT, max_tokens: 100, ...more })).body.choices[0].text;
  assert.equal(await text({ repetition_penalty: 1 }), await text({}));
  assert.notEqual(await text({ repetition_penalty: 1.5 }), await text({}));
}

async function params(url) {
  const long = 'x '.repeat(5000);
  const chat = (messages) => ({ ...CHAT, messages });
  for (const [path, body, param, message] of [
    ['/v1/completions', { ...TEXT, prompt: long }, 'prompt', /room for \d+ tokens/],
    ['/v1/completions', { ...TEXT, prompt: [1, 99999] }, 'prompt', /99999/],
    ['/v1/completions', { ...TEXT, stop: [''] }, 'stop', /stop/],
    ['/v1/chat/completions', chat([{ role: 'user', content: long }]), 'messages', /room for \d+ tokens/],
    ['/v1/chat/completions', chat([{ role: 'wizard', content: 'a' }]), 'messages[0].role', /wizard/],
    ['/v1/chat/completions', chat([{ role: 'assistant', content: 'a' }]), 'messages[0].role', /assistant/],
    ['/v1/chat/completions', chat([]), 'messages', /^messages is empty/],
    ['/v1/chat/completions', chat(undefined), 'messages', /must provide/],
    ['/playground/next', { prompt: long }, 'prompt', /room for \d+ tokens/],
  ]) {
    const { status, body: { error } } = await post(url, path, body);
    assert.deepEqual([status, error.param], [400, param], JSON.stringify(error));
    assert.match(error.message, message);
  }
}

// A client that leaves while it sends its request.
async function leaves(service) {
  const { port } = new URL(service.url);
  const socket = connect(port, '127.0.0.1');
  socket.write('POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"model":', () => setTimeout(() => socket.destroy(), 100));
  const metrics = async () => (await fetch(`${service.url}/metrics`)).text();
  await until(async () => /^llamabi_abandoned_requests_total 1$/m.test(await metrics()), 'it is counted');
  assert.match(await metrics(), /^llamabi_requests_total{route="\/v1\/completions",code="499"} 1$/m);
  assert.doesNotMatch(service.log, /error|^ +at /m);
}

async function flags(first) {
  const { port } = new URL(first.url);
  const second = start('--port', port);
  assert.equal(await second.ended, 1);
  assert.match(second.log, /EADDRINUSE/);
  assert.doesNotMatch(second.log, /loaded|seed/, 'the port comes before the model');
  const wrong = start('--weights_dtype', 'f64');
  assert.equal(await wrong.ended, 1);
  assert.match(wrong.log, /--weights_dtype is f64, must be one of auto, /);

  // Texts of requests without a seed: the same after a restart only with --seed.
  const texts = async (...flags) => {
    const service = await started(...flags);
    const { body } = await post(service.url, '/v1/completions', { ...TEXT, temperature: 1, max_tokens: 40 });
    service.child.kill();
    assert.equal(await service.ended, 0, service.log);
    return { text: body.choices[0].text, log: service.log };
  };
  const [a, b] = [await texts(), await texts()];
  assert.notEqual(a.text, b.text);
  const seed = /^node-server: seed (\d+)$/m.exec(a.log)[1];
  assert.equal((await texts('--seed', seed)).text, a.text);
  const quantised = await texts('--weights_dtype', 'int8', '--kv_dtype', 'int8', '--seed', seed);
  assert.match(quantised.log, /int8 weights.* int8 KV/);
}

// A service whose binding has been changed by a program, which sees Model, before it starts.
function changed(program, ...flags) {
  const all = `import { createRequire } from 'node:module';
    const { Model } = createRequire(${JSON.stringify(SERVER)})('llamabi');
    ${program}`;
  return run(['--import', `data:text/javascript,${encodeURIComponent(all)}`, SERVER, '--ckpt_dir', CHECKPOINT, ...flags]);
}

// A text that is still being encoded when the request's time is over, or the service's.
async function cancelled() {
  const slow = `const { encodeAsync } = Model.prototype;
    Model.prototype.encodeAsync = async function (text, options) {
      console.error('encodes');
      if (!options.signal.aborted) await new Promise((resolve) => options.signal.addEventListener('abort', resolve));
      return encodeAsync.call(this, text, options);
    };`;
  const content = 'The sky';
  const requests = [
    ['/v1/chat/completions', { ...CHAT, prediction: { type: 'content', content } }],
    ['/v1/chat/completions', { ...CHAT, messages: [...CHAT.messages, { role: 'assistant', content }] }],
    ['/playground/next', { messages: CHAT.messages, answer: content }],
    ['/tokenize', { content }],
  ];
  for (const [code, ...flags] of [['timeout', '--timeout', '2'], ['shutting_down', '--grace', '0.1']]) {
    const service = changed(slow, '--port', '0', ...flags);
    await until(() => (service.url = /^listening on (.*)$/m.exec(service.log)?.[1]), `it starts: ${service.log}`);
    const answers = requests.map(([path, body]) => post(service.url, path, body));
    await until(() => service.log.split('encodes').length > requests.length, 'all are encoded');
    if (code === 'shutting_down') service.child.kill();
    for (const { status, body } of await Promise.all(answers)) assert.deepEqual([status, body.error.code], [503, code], JSON.stringify(body));
    if (code === 'timeout') service.child.kill();
    assert.equal(await service.ended, 0, service.log);
    assert.doesNotMatch(service.log, /internal error/);
  }
}

// What may follow an answer is what the chat says that does: here, too, the model's template makes
// the text.
async function templates() {
  const folder = await mkdtemp(join(tmpdir(), 'llamabi-'));
  const file = join(folder, 'chat.jinja');
  await writeFile(file, "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}");
  const service = await started('--chat-template', file);
  for (const answer of ['', 'Once', 'The f', '\n']) {
    const next = await post(service.url, '/playground/next', { messages: CHAT.messages, answer });
    const messages = answer === '' ? CHAT.messages : [...CHAT.messages, { role: 'assistant', content: answer }];
    const chat = await post(service.url, '/v1/chat/completions', { ...CHAT, messages, max_tokens: 1, logprobs: true, top_logprobs: 5 });
    assert.deepEqual([next.status, next.body.prompt_tokens], [200, chat.body.usage.prompt_tokens], answer);
    const [{ top_logprobs: top }] = chat.body.choices[0].logprobs.content;
    const found = top.map((_, i) => Math.abs(next.body.logprobs[i] - top[i].logprob) < 1e-3);
    assert(found.every(Boolean), `${answer}: ${next.body.logprobs.slice(0, 5)}, ${top.map(({ logprob }) => logprob)}`);
    assert.equal(next.body.texts[0], top[0].token || next.body.texts[0]);
  }
  service.child.kill();
  assert.equal(await service.ended, 0, service.log);
  await rm(folder, { recursive: true });
}

// While the model, here a slow one, is being loaded.
async function loading() {
  const probe = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => probe.once('listening', resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  const slow = `const { open } = Model;
    Model.open = (...args) => new Promise((resolve) => setTimeout(resolve, 1000)).then(() => open(...args));`;
  const service = changed(slow, '--port', String(port));
  const url = `http://127.0.0.1:${port}`;
  const health = () => fetch(`${url}/healthz`).then((response) => response.status, () => 0);
  await until(health, 'it listens');
  assert.equal(await health(), 503);
  const { status, body } = await post(url, '/v1/completions', TEXT);
  assert.deepEqual([status, body.error.type, body.error.code], [503, 'server_error', 'loading']);
  assert.doesNotMatch(service.log, /listening on/);
  await until(() => /^listening on /m.test(service.log), 'it is loaded');
  assert.equal(await health(), 200);
  assert.equal((await post(url, '/v1/completions', TEXT)).status, 200);
  service.child.kill();
  assert.equal(await service.ended, 0, service.log);
}

const service = await started('--queue', '4');
await fields(service.url);
await params(service.url);
await leaves(service);
await flags(service);
await loading();
await cancelled();
await templates();
service.child.kill();
assert.equal(await service.ended, 0, service.log);
console.log('playground: the service: fields, params, leaves, flags, loading, cancelled, templates ok');
