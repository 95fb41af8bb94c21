'use strict';
// What the tests share. They run in a project that has the package installed as a user has it;
// LLAMABI_SOURCE is the source tree, for its models and recorded outputs.
const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const { readFileSync } = require('node:fs');
const { join } = require('node:path');
const { test } = require('node:test');
const { Model, LlamaError } = require('llamabi');

const source = process.env.LLAMABI_SOURCE;
if (!source) throw new Error('set LLAMABI_SOURCE to the source tree of llamabi');

const root = (path) => join(source, path);
const reference = (path) => root(`tests/data/reference/${path}`);
const json = (path) => JSON.parse(readFileSync(path, 'utf8'));
const demo = (options) => Model.open({ ckptDir: root('demo/meta'), ...options });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Takes many seconds, however fast the machine is; `room` for it.
const long = { maxGenLen: 32_000, ignoreEos: true };
const room = { maxSeqLen: 32_768 };

// For what hangs, and more than a busy machine needs for anything else.
const PATIENCE = 300_000;

// A line of bindings/behaviours.txt.
const behaviour = (name, body) => test(`behaviour ${name}`, { timeout: 2 * PATIENCE }, body);

async function until(condition, what, ms = PATIENCE) {
  const end = Date.now() + ms;
  while (!(await condition())) {
    if (Date.now() > end) assert.fail(`not within ${ms} ms: ${what}`);
    await sleep(1);
  }
}

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

// The error of a promise or function that must fail.
async function failure(body) {
  try {
    await (typeof body === 'function' ? body() : body);
  } catch (error) {
    return error;
  }
  assert.fail('this should have failed');
}

function assertFails(error, code, ...parts) {
  assert(error instanceof LlamaError, `${error}`);
  assert.equal(error.code, code, error.message);
  for (const part of parts) assert(error.message.includes(part), `"${error.message}" has no "${part}"`);
}

// Runs a program with node; gives its exit code, signal and output.
function node(args, { env = {}, ms = PATIENCE } = {}) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, args, { env: { ...process.env, ...env }, timeout: ms, cwd: __dirname });
    const ran = { stdout: '', stderr: '' };
    child.stdout.on('data', (data) => (ran.stdout += data));
    child.stderr.on('data', (data) => (ran.stderr += data));
    child.on('close', (code, signal) => resolve({ ...ran, code, signal }));
  });
}

// The same for a program text, which has `Model`, `demo`, ... of this file.
const script = (text, options = {}) =>
  node([...(options.flags ?? []), '-e', `const s = require('./support.js'); ${text}`], options);

function assertRan(ran) {
  assert.deepEqual([ran.code, ran.signal], [0, null], `${ran.stdout}\n${ran.stderr}`);
  return ran.stdout;
}

module.exports = {
  assert, test, behaviour, Model, LlamaError, root, reference, json, demo, sleep, long, room, until, collect, failure,
  assertFails, node, script, assertRan,
};
