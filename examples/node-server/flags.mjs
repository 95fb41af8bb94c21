// The command line.
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

const DTYPES = ['auto', 'f32', 'f16', 'bf16', 'int8', 'int4', 'nf4', 'fp8'];

const UNITS = { ms: 0.001, s: 1, m: 60, h: 3600 };
const SIZES = { '': 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 };

// How a flag's text becomes its value; throws what it must be.
const text = (given) => given;
const integer = (given) => {
  if (!/^\d+$/.test(given) || !Number.isSafeInteger(Number(given))) throw 'an integer and not negative';
  return Number(given);
};
const seconds = (given) => {
  const [, number, unit = 's'] = /^(\d+(?:\.\d+)?)(ms|s|m|h)?$/.exec(given) ?? [];
  if (number === undefined || number * UNITS[unit] > 2 ** 21) throw 'seconds, or a number with ms, s, m or h, of at most 2^21 s';
  return number * UNITS[unit];
};
const secondsOrNever = (given) => {
  if (given === 'never') return Infinity;
  try {
    return seconds(given);
  } catch (expected) {
    throw `never, ${expected}`;
  }
};
const bytes = (given) => {
  const [, number, unit] = /^(\d+)([KMG]?)(?:iB|B)?$/.exec(given) ?? [];
  if (!Number.isSafeInteger(number * SIZES[unit])) throw 'bytes, or a number with K, M or G (powers of 1024)';
  return number * SIZES[unit];
};
const oneOf = (...names) => (given) => {
  if (!names.includes(given)) throw `one of ${names.join(', ')}`;
  return given;
};
const device = (given) => {
  const [, kind, index] = /^(auto|cpu|cuda)(?::(\d{1,4}))?$/.exec(given) ?? [];
  if (kind === undefined || (index !== undefined && kind !== 'cuda')) throw 'auto, cpu, cuda or cuda:N';
  return { kind, index: Number(index ?? 0) };
};
const ranks = (given) => {
  if (given === '') return [];
  const nodes = given.split(',');
  if (nodes.length > 64 || !nodes.every((node) => /^\d{1,4}$/.test(node))) throw 'numbers with commas between them, at most 64';
  return nodes.map(Number);
};
// Lists: a flag that may be given several times.
const adapter = (given) => {
  const [, name, dir] = /^([^=]+)=(.+)$/s.exec(given) ?? [];
  if (name === undefined) throw 'NAME=DIR';
  return [{ name, dir }];
};
const keys = (given) => given.split(',').map(checkedKey);
const origin = (given) => {
  if (given !== '*' && !/^[a-z][a-z0-9+.-]*:\/\/[^/\s]+$/i.test(given)) throw 'an origin, as https://example.org, or *';
  return [given];
};
const host = (given) => {
  if (!/^(\[[0-9a-f:.]+\]|[^\s:/[\]]+)$/i.test(given)) throw "a host's name without a port";
  return [given.toLowerCase()];
};

function checkedKey(key) {
  if (!/^[\x21-\x7e]+$/.test(key)) throw 'keys of visible ASCII characters, with commas between them';
  return key;
}

// The text of a chat template, from its file.
function template(file) {
  if (file === '') return undefined;
  const content = readFileSync(file, 'utf8');
  if (content === '') throw 'a file that is not empty';
  return content;
}

// name: how it is read, its default, what it is.
const FLAGS = {
  ckpt_dir: [text, '', 'directory of the checkpoint, or its .gguf file (required)'],
  tokenizer_path: [text, '', "file of a tokenizer, instead of the checkpoint's own; also --tokenizer"],
  chat_template: [template, '', "file of a Jinja template for chats, instead of the checkpoint's own"],
  model_name: [text, '', "the model's name, as requests give it and /v1/models (default: the last part of --ckpt_dir)"],
  adapter: [adapter, [], 'LoRA adapter in a directory, as NAME=DIR, which requests choose by NAME as their model; repeatable'],
  draft_dir: [text, '', 'directory of a draft model, or its .gguf file: smaller, with the same tokens, it guesses at them (same answers, sooner)'],
  medusa_dir: [text, '', 'directory of Medusa heads trained for the checkpoint, which guess at tokens (same answers, sooner)'],
  draft_weights_dtype: [oneOf(...DTYPES), 'auto', "convert the draft model's weights, to one of the same types"],
  max_seq_len: [integer, '512', 'most tokens of a sequence, prompt included'],
  max_batch_size: [integer, '8', 'sequences that run at the same time'],
  device: [device, 'auto', 'auto, cpu, cuda or cuda:N'],
  gpu_memory: [bytes, '0', 'most bytes of GPU memory, as 20G (0: as many as are free)'],
  ranks: [ranks, '', 'NUMA nodes, as 0,1 (with a device of cuda: GPUs): each gets a rank with its share of the model (default: one rank)'],
  threads: [integer, '0', 'threads of the CPU backend, of each rank (0: all)'],
  weights_dtype: [oneOf(...DTYPES), 'auto', `convert the weights: ${DTYPES.join(', ')}`],
  kv_dtype: [oneOf(...DTYPES), 'auto', 'type of the KV cache, one of the same'],
  precision: [oneOf('auto', 'full', 'fast'), 'auto', 'how exactly the CPU multiplies: full, fast (for many sequences) or auto'],
  seed: [integer, '0', 'of requests without one, in turn (0: random)'],
  queue: [integer, '64', 'sequences that may wait; while so many do, requests are answered 429'],
  max_waiting: [integer, '0', 'calls that may wait for slots in the model; more are answered 429 (0: as many as --queue lets in)'],
  max_step: [seconds, '0', 'seconds that a step should take at most that computes a part of a prompt beside running answers (0: 0.1)'],
  max_stall: [seconds, '0', 'seconds that an answer whose reader is behind keeps its slot while others wait (0: 1)'],
  max_unread: [secondsOrNever, '0', 'seconds after which an answer that nobody reads ends, or never (0: 60)'],
  stall_memory: [bytes, '0', 'most bytes of memory for answers that have lost their slots so (0: as many as the KV cache has)'],
  max_body: [bytes, '1M', 'most bytes of a request'],
  max_answer: [integer, String(2 ** 20), 'most tokens of an answer that is sent as a whole, of all its sequences and with their alternatives'],
  timeout: [seconds, '600', 'seconds that a request may take in all, waiting and sending included (0: no limit)'],
  host: [text, '127.0.0.1', 'address to listen on'],
  port: [integer, '8080', 'port to listen on (0: any)'],
  allowed_host: [host, [], 'further name by which requests may call this host, for a loopback address; repeatable'],
  api_key: [keys, [], 'key that requests must bring; repeatable, or several with commas'],
  api_key_file: [text, '', 'file with such keys, one on a line; lines that begin with # are comments'],
  cors: [origin, [], 'origin whose pages may call from a browser, * for all; repeatable'],
  cached_tokens: [null, false, "report in an answer's usage how many prompt tokens came from the prefix cache"],
  cache_scope: [oneOf('request', 'key', 'all'), 'key', 'who finds whose cached prefixes: a request its own, those of one API key, all'],
  access_log: [text, '-', 'file that gets a line of JSON for each request (-: standard output; none: nowhere)'],
  drain: [seconds, '0', 'seconds for which requests are taken after SIGTERM, while /readyz sends them elsewhere'],
  grace: [seconds, '30', 'seconds that running requests have after SIGTERM'],
};

export function readFlags() {
  const options = { tokenizer: { type: 'string' }, help: { type: 'boolean' } };
  for (const [name, [read, missing]] of Object.entries(FLAGS)) {
    options[name] = { type: read === null ? 'boolean' : 'string', multiple: Array.isArray(missing) };
  }
  // A dash for an underscore, as in --api-key.
  const args = process.argv.slice(2).map((arg) => arg.replace(/^--[^=]+/, (name) => `--${name.slice(2).replaceAll('-', '_')}`));
  const { values } = parseArgs({ args, options });
  if (values.help) {
    for (const [name, [, value, about]] of Object.entries(FLAGS)) {
      console.log(`  --${name.padEnd(16)} ${about}${typeof value === 'string' && value !== '' ? ` (${value})` : ''}`);
    }
    console.log('A dash may stand for each underscore.');
    process.exit(0);
  }
  values.tokenizer_path ??= values.tokenizer;
  const flags = {};
  for (const [name, [read, missing]] of Object.entries(FLAGS)) {
    const given = values[name] ?? missing;
    try {
      flags[name] = read === null ? given : Array.isArray(given) ? given.flatMap(read) : read(given);
    } catch (expected) {
      if (typeof expected !== 'string') throw expected;
      throw new Error(name === 'api_key' ? `--api_key must be ${expected}` : `--${name} is ${given}, must be ${expected}`);
    }
  }
  if (flags.ckpt_dir === '') throw new Error('--ckpt_dir is missing; --help lists the flags');
  if (flags.api_key_file !== '') flags.api_key.push(...keysOf(flags.api_key_file));
  return flags;
}

function keysOf(file) {
  const lines = readFileSync(file, 'utf8').split('\n').map((line) => line.trim());
  const keys = lines.filter((line) => line !== '' && !line.startsWith('#'));
  if (keys.length === 0) throw new Error(`--api_key_file ${file} has no key`);
  keys.forEach((key) => {
    if (!/^[\x21-\x7e]+$/.test(key)) throw new Error(`--api_key_file ${file} has a key with other than visible ASCII characters`);
  });
  return keys;
}
