'use strict';
const { AsyncResource } = require('node:async_hooks');
const { existsSync } = require('node:fs');
const { join } = require('node:path');
const { fileURLToPath } = require('node:url');

class LlamaError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
    this.code = codes.get(status) ?? 'LLAMA_E_UNKNOWN';
  }
  get name() {
    return 'LlamaError';
  }
}

function load() {
  try {
    return require('./build/llamabi.node');
  } catch (cause) {
    const rebuild = `run \`npm rebuild llamabi\` (or node ${__dirname}/build.js)`;
    const sentence =
      !existsSync(join(__dirname, 'build.js'))
        ? 'this package brings the library along, for Linux on x86-64 with glibc; it could not be loaded here'
      : cause.code === 'MODULE_NOT_FOUND'
        ? `the addon has not been built; ${rebuild}, which needs a C++ compiler and pkg-config`
        : 'the shared library libllamabi could not be loaded; install it (in its source: make install ' +
          `PREFIX=/usr/local && ldconfig) and ${rebuild}, or name its directory in LD_LIBRARY_PATH`;
    const error = new Error(`llamabi: ${sentence}. (${cause.message.split('\n')[0]})`, { cause });
    error.code = 'ERR_LLAMABI_LIBRARY';
    throw error;
  }
}

const addon = load();
const codes = new Map(Object.entries(addon.statuses).map(([name, status]) => [status, name]));
if (addon.abiVersion !== addon.builtForAbiVersion) {
  throw new LlamaError(
    addon.statuses.LLAMA_E_ABI,
    `llamabi: the library libllamabi ${addon.version} has ABI version ${addon.abiVersion}, this package was built ` +
      `for ABI version ${addon.builtForAbiVersion}; install the library it was built for, or run \`npm rebuild llamabi\``
  );
}
const native = addon.start(LlamaError);

// Errors that come from another thread get the stack of whoever awaits them.
async function traced(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof LlamaError) Error.captureStackTrace(error);
    throw error;
  }
}

// A function of a call's, so that it runs in the call's context (AsyncLocalStorage). What is none
// is for the addon to refuse.
const inContext = (value) => (typeof value === 'function' ? AsyncResource.bind(value, 'llamabi') : value);

// A path as node:fs takes it: of a file URL its path. What is neither is for the addon to refuse.
const isURL = (value) => typeof value?.href === 'string';
const pathOf = (value) => (isURL(value) ? fileURLToPath(value.href) : value);
const adapterOf = (value) => (isURL(value?.dir) ? { ...value, dir: pathOf(value.dir) } : pathOf(value));

// A copy with what the object inherits, for a spread would leave that out. What is no object would
// be one without options, and go unnoticed.
function optionsOf(options, what = 'options must be an object') {
  if (typeof (options ?? {}) !== 'object' || Array.isArray(options) || ArrayBuffer.isView(options)) throw new TypeError(what);
  const all = Object.create(null);
  for (const name in options) all[name] = options[name];
  return all;
}

// Of a call that has one sequence to give: others would be computed and lost.
function checkSingle(options) {
  const n = options?.numReturnSequences;
  if (typeof n !== 'number' || !(n > 1)) return;
  const why = 'a list of prompts, or a stream, gives all of them';
  throw new LlamaError(addon.statuses.LLAMA_E_INVALID_ARGUMENT, `numReturnSequences is ${n}, must be 1 for one prompt: ${why}`);
}

// Options of an encoding.
function encodingOf(options) {
  const { bos = false, eos = false, special = false, maxTokens, ...rest } = optionsOf(options);
  const other = Object.keys(rest).find((name) => rest[name] !== undefined);
  if (other !== undefined) throw new TypeError(`unknown option ${other}`);
  return [bos, eos, special, maxTokens];
}

// Before a call begins: one that nobody gets must not run, and its failure would be nobody's.
function isAborted(signal) {
  if (signal === undefined) return false;
  if (!(signal instanceof AbortSignal)) throw new TypeError('signal must be an AbortSignal');
  return signal.aborted;
}

// Runs `stop` when the signal is aborted; returns what undoes that.
function onAbort(signal, stop) {
  if (signal === undefined) return () => {};
  if (isAborted(signal)) stop();
  signal.addEventListener('abort', stop, { once: true });
  return () => signal.removeEventListener('abort', stop);
}

// Of streams that were dropped: what takes their listeners off. The signal is held weakly, too,
// because it may well hold the stream.
const dropped = new FinalizationRegistry(({ signal, stop }) => signal.deref()?.removeEventListener('abort', stop));

// A function of its own, for closures of one scope share what any of them holds.
const stopOf = (weak) => () => {
  const call = weak.deref();
  if (call !== undefined) native.stop(call);
};

// The same for a stream's call, which ends when nobody holds it any more: a signal that lives long
// must not.
function onAbortOfStream(signal, call) {
  if (signal === undefined) return () => {};
  const stop = stopOf(new WeakRef(call));
  const off = onAbort(signal, stop);
  dropped.register(call, { signal: new WeakRef(signal), stop }, off);
  return () => {
    dropped.unregister(off);
    off();
  };
}

function closed() {
  const error = new LlamaError(addon.statuses.LLAMA_E_INVALID_ARGUMENT, 'the model is closed');
  error.code = 'ERR_LLAMABI_CLOSED';
  return error;
}

// What a call is given: one prompt or several, of tokens, text or messages.
function inputOf(kind, input) {
  if (kind === 'text' && typeof input !== 'string' && !Array.isArray(input)) {
    throw new TypeError('the prompt must be a text or an array of texts');
  }
  const single =
    kind === 'text' ? typeof input === 'string'
    : kind === 'tokens' ? !Array.isArray(input) || input.length === 0 || typeof input[0] === 'number'
    : !Array.isArray(input) || !Array.isArray(input[0]);
  return { kind, single, list: single ? [input] : input };
}

// Half of a surrogate pair, as JSON.stringify writes it; before it, backslashes that are escaped.
const HALF = /(?<!\\)(?:\\\\)*\\ud[89a-f]/;

// A value as JSON. The library's parser would refuse half of a pair by its place in the JSON, which
// nobody sees; here it is named as in other texts.
function jsonOf(name, value) {
  const json = JSON.stringify(value, function (key, inside) {
    if (isLost(inside, Array.isArray(this))) throw new TypeError(`${name} has ${saidOf(inside)} as ${JSON.stringify(key)}, which JSON has not`);
    return inside;
  });
  if (json === undefined) throw new TypeError(`${name} is ${saidOf(value)}, which JSON has not`);
  if (HALF.test(json)) refuseHalf(name, JSON.parse(json));
  return json;
}

// What JSON.stringify would make null of. A member that is undefined, or a function, it leaves out.
const isLost = (value, isElement) =>
  typeof value === 'number' ? !Number.isFinite(value) : isElement && ['undefined', 'function', 'symbol'].includes(typeof value);
const saidOf = (value) => (typeof value === 'function' ? 'a function' : String(value));

function refuseHalf(name, value) {
  if (typeof value === 'string') {
    const index = value.search(/\p{Surrogate}/u);
    if (index < 0) return;
    const unit = value.charCodeAt(index).toString(16).toUpperCase();
    throw new LlamaError(addon.statuses.LLAMA_E_UTF8, `${name} has a lone surrogate, U+${unit}, at index ${index}`);
  }
  if (typeof value !== 'object' || value === null) return;
  for (const [key, inside] of Object.entries(value)) {
    refuseHalf(`a key of ${name}`, key);
    refuseHalf(Array.isArray(value) ? `${name}[${key}]` : `${name}.${key}`, inside);
  }
}

// A dialog of messages with what surrounds it, as texts of JSON.
function messagesOf(request) {
  const { messages, tools, variables, ...chat } = optionsOf(request, 'a chat must be an object with messages');
  if (!Array.isArray(messages)) throw new TypeError('messages must be an array');
  const json = (name, value) => (value === undefined || typeof value === 'string' ? value : jsonOf(name, value));
  return {
    kind: 'messages',
    list: [jsonOf('messages', messages)],
    chat: { ...chat, tools: json('tools', tools), variables: json('variables', variables) },
  };
}

function kindOf(input) {
  if (typeof input === 'string') return 'text';
  let first = input;
  for (let depth = 0; depth < 2 && Array.isArray(first); depth++) first = first[0];
  if (typeof first === 'string') return 'text';
  if (typeof first === 'number' || ArrayBuffer.isView(first)) return 'tokens';
  if (typeof first === 'object' && first !== null && !Array.isArray(first)) return 'dialog';
  throw new TypeError('input must be a text, tokens, messages, or an array of these');
}

// A language that texts are kept in, for the model that made it.
class Grammar {
  #mask;

  constructor(key, kind, source, mask) {
    if (key !== native) throw new TypeError('a Grammar is made by model.grammar()');
    this.source = [kind, source];
    this.#mask = mask;
    Object.freeze(this.source);
    Object.freeze(this);
  }

  mask(tokens = []) {
    const bytes = this.#mask(tokens);
    return new Uint32Array(Uint8Array.from(bytes).buffer);
  }
}

// [kind, source] of a Grammar, or of what makes one.
function sourceOf(spec) {
  if (spec instanceof Grammar) return spec.source;
  const kinds = { jsonSchema: 1, json: 2, regex: 3, lark: 4, choice: 5 };
  const given = Object.entries(typeof spec === 'object' && spec !== null ? spec : {}).filter(([, value]) => value !== undefined);
  const [[name, value] = ['']] = given;
  if (!Object.hasOwn(kinds, name) || given.length > 1)
    throw new TypeError('grammar must be a Grammar or have one of jsonSchema, json, regex, lark, choice');
  if (name === 'json') {
    if (value !== true) throw new TypeError('grammar.json must be true: a schema is jsonSchema');
    return [kinds.json, ''];
  }
  const isText = typeof value === 'string';
  if (isText || name === 'regex' || name === 'lark') return [kinds[name], value];
  return [kinds[name], jsonOf(`grammar.${name}`, value)];
}

class Model {
  #open;
  #onLog; // the addon holds it weakly
  #closing; // promise of close()

  constructor(key, handle, onLog) {
    if (key !== native) throw new TypeError('a Model is made by Model.open()');
    this.#open = handle;
    this.#onLog = onLog;
  }

  static async open(ckptDir, options) {
    const what = 'Model.open needs a checkpoint directory or options';
    const isPath = typeof ckptDir === 'string' || isURL(ckptDir);
    if (!isPath && (ckptDir ?? null) === null) throw new TypeError(what);
    const all = optionsOf(isPath ? options : ckptDir, what);
    if (isPath) all.ckptDir = ckptDir;
    const { signal, onProgress, onLog, ...rest } = all;
    for (const name of ['ckptDir', 'tokenizerPath', 'draftDir', 'medusaDir']) rest[name] = pathOf(rest[name]);
    if (Array.isArray(rest.adapters)) rest.adapters = rest.adapters.map(adapterOf);
    const call = native.open(rest, inContext(onProgress), onLog, isAborted(signal));
    const settled = native.promise(call);
    const off = onAbort(signal, () => native.stop(call));
    try {
      return new Model(native, await traced(settled), onLog);
    } finally {
      off();
    }
  }

  get #handle() {
    if (this.#closing !== undefined) throw closed();
    return this.#open;
  }

  #start(input, options, streaming) {
    const { signal, shouldStop: decide, ...rest } = optionsOf(options);
    const shouldStop = inContext(decide);
    if (rest.grammar !== undefined) rest.grammar = sourceOf(rest.grammar);
    const call = native.generate(this.#handle, input.kind, input.list, rest, streaming, input.chat ?? {}, shouldStop, isAborted(signal));
    // shouldStop: of a stream, the addon holds it weakly
    return { call, shouldStop, off: streaming ? onAbortOfStream(signal, call) : onAbort(signal, () => native.stop(call)) };
  }

  async #run(kind, prompt, options) {
    const input = inputOf(kind, prompt);
    if (input.single) checkSingle(options);
    const { call, off } = this.#start(input, options, false);
    try {
      const sequences = await traced(native.promise(call));
      return input.single ? sequences[0] : sequences;
    } finally {
      off();
    }
  }

  generate(tokens, options) {
    return this.#run('tokens', tokens, options);
  }

  textCompletion(prompt, options) {
    return this.#run('text', prompt, options);
  }

  chatCompletion(dialog, options) {
    return this.#run('dialog', dialog, options);
  }

  async chat(request, options) {
    checkSingle(options);
    const { call, off } = this.#start(messagesOf(request), options, false);
    try {
      return (await traced(native.promise(call)))[0];
    } finally {
      off();
    }
  }

  streamChat(request, options) {
    const input = messagesOf(request);
    return new Stream(native, () => this.#start(input, options, true));
  }

  async compress(segments, options) {
    const { signal, ...rest } = optionsOf(options);
    const call = native.compress(this.#handle, segments, rest, isAborted(signal));
    const settled = native.promise(call);
    const off = onAbort(signal, () => native.stop(call));
    try {
      return await traced(settled);
    } finally {
      off();
    }
  }

  stream(input, options) {
    const kind = kindOf(input);
    return new Stream(native, () => this.#start(inputOf(kind, input), options, true));
  }

  encode(text, options) {
    return native.encode(this.#handle, text, ...encodingOf(options));
  }

  encodeDialog(messages) {
    return native.encodeDialog(this.#handle, messages);
  }

  decode(tokens) {
    return native.decode(this.#handle, tokens);
  }

  async encodeAsync(text, options) {
    const { signal, ...rest } = optionsOf(options);
    const encoding = encodingOf(rest);
    const handle = this.#handle;
    // Of a short text the call may be over before it hears of that.
    if (isAborted(signal)) throw new LlamaError(addon.statuses.LLAMA_CANCELLED, 'the encoding was stopped before it began');
    const call = native.tokenize(handle, 'text', text, ...encoding, {});
    const off = onAbort(signal, () => native.stop(call));
    try {
      return await traced(native.promise(call));
    } finally {
      off();
    }
  }

  async encodeDialogAsync(messages) {
    return this.#tokenize('dialog', messages);
  }

  async encodeChatAsync(request) {
    const { list, chat } = messagesOf(request);
    return this.#tokenize('messages', list[0], chat);
  }

  async renderChatAsync(request) {
    const { list, chat } = messagesOf(request);
    return this.#tokenize('render', list[0], chat);
  }

  async decodeAsync(tokens) {
    return this.#tokenize('tokens', tokens);
  }

  #tokenize(kind, input, chat = {}) {
    return traced(native.promise(native.tokenize(this.#handle, kind, input, false, false, false, undefined, chat)));
  }

  tokenBytes(token) {
    return native.tokenBytes(this.#handle, token);
  }

  async grammar(spec) {
    const [kind, source] = sourceOf(spec);
    const handle = this.#handle;
    await traced(native.promise(native.compile(handle, kind, source)));
    return new Grammar(native, kind, source, (tokens) => native.grammarMask(this.#handle, kind, source, tokens));
  }

  async addAdapter(dir, scale = 1) {
    return traced(native.promise(native.addAdapter(this.#handle, pathOf(dir), scale)));
  }

  dropAdapter(id) {
    native.dropAdapter(this.#handle, id);
  }

  info() {
    return native.info(this.#handle);
  }

  timings() {
    return native.timings(this.#handle);
  }

  rank(number) {
    return native.rank(this.#handle, number);
  }

  checkHealth() {
    native.checkHealth(this.#handle);
  }

  close() {
    this.#closing ??= native.promise(native.close(this.#open));
    return this.#closing;
  }
}

// Milliseconds that a stream hands out events without a turn of the event loop.
const STINT = 5;

class Stream {
  #start;
  #running; // what #start gives, from the first `next` to the end
  #events = [];
  #taken = 0;
  #ended = false;
  #turn = Promise.resolve();
  #since = performance.now();

  constructor(key, start) {
    if (key !== native) throw new TypeError('a Stream is made by Model.stream()');
    this.#start = start;
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  // The call begins here and not in its turn, before which the model may be closed.
  next() {
    try {
      this.#begin();
    } catch (error) {
      this.#end();
      return Promise.reject(error);
    }
    const turn = this.#turn.then(() => this.#next());
    this.#turn = turn.catch(() => {});
    return turn;
  }

  // Events that are there already are handed out without a turn of the event loop. A reader that is
  // slower than the model would never come to an end of them, and nothing else would run meanwhile.
  async #next() {
    if (performance.now() - this.#since > STINT) {
      await new Promise(setImmediate);
      this.#since = performance.now();
    }
    while (this.#taken === this.#events.length) {
      if (this.#ended) return { done: true, value: undefined };
      await this.#fetch();
    }
    return { done: false, value: this.#events[this.#taken++] };
  }

  #begin() {
    if (!this.#ended) this.#running ??= this.#start();
  }

  async #fetch() {
    try {
      this.#events = (await traced(native.next(this.#running.call))) ?? this.#end();
      this.#taken = 0;
    } catch (error) {
      this.#end();
      throw error;
    }
  }

  #end() {
    this.#ended = true;
    if (this.#running !== undefined) {
      this.#running.off();
      this.#running = undefined;
    }
    return [];
  }

  stop(index = 0) {
    if (this.#ended) return;
    this.#begin();
    native.stopSequence(this.#running.call, index);
  }

  // Stops at once, also while a `next` waits; settles when the call has ended and its slot is free.
  async return(value) {
    if (this.#running === undefined) this.#ended = true;
    else native.stop(this.#running.call);
    const rest = async () => {
      while (!this.#ended) await this.#fetch();
      this.#events = [];
      this.#taken = 0;
    };
    this.#turn = this.#turn.then(rest).catch(() => {});
    await this.#turn;
    return { done: true, value };
  }
}

const asyncDispose = Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose');
const hidden = (value) => ({ value, writable: true, configurable: true });
Object.defineProperty(Model.prototype, asyncDispose, hidden(function () { return this.close(); }));
Object.defineProperty(Stream.prototype, asyncDispose, hidden(async function () { await this.return(); }));

module.exports = { Model, Grammar, LlamaError, version: addon.version, abiVersion: addon.abiVersion };
