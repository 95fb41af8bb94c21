// Reads requests: what the protocol allows, what this service can do of it, and the model's names for it.

import { isDeepStrictEqual } from 'node:util';
import { badRequest } from './http.mjs';

const INT32 = 2 ** 31 - 1;
// Whatever a client has sent, in a few words: it may be nested deeper than JSON.stringify can go.
const shown = (value) => (typeof value === 'object' && value !== null ? (Array.isArray(value) ? 'a list' : 'an object') : JSON.stringify(value).slice(0, 100));
const FLOAT32 = (2 - 2 ** -23) * 2 ** 127;
const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

// A number from lowest to highest, or `missing` where there is none.
function within(body, name, missing, lowest, highest, integer = false) {
  const value = body[name] ?? missing;
  if (value === missing) return missing;
  if (typeof value !== 'number' || !(value >= lowest && value <= highest) || (integer && !Number.isInteger(value))) {
    throw badRequest(name, `'${name}' is ${shown(value)}, must be ${integer ? 'an integer ' : ''}from ${lowest} to ${highest}.`);
  }
  return value;
}

export function flag(body, name) {
  const value = body[name] ?? false;
  if (typeof value !== 'boolean') throw badRequest(name, `'${name}' must be true or false.`);
  return value;
}

function texts(body, name) {
  const value = body[name] ?? [];
  if (typeof value === 'string') return [value];
  if (!Array.isArray(value) || !value.every((text) => typeof text === 'string')) {
    throw badRequest(name, `'${name}' must be a text or a list of texts.`);
  }
  return value;
}

// OpenAI's fields that change nothing here, whatever they say ...
export const IGNORED = ['metadata', 'parallel_tool_calls', 'prediction', 'prompt_cache_key', 'prompt_cache_retention', 'safety_identifier', 'service_tier', 'store', 'user'];
// ... and values of further ones with which they ask for nothing.
const HARMLESS = {
  frequency_penalty: [0],
  function_call: ['auto', 'none'],
  functions: [[]],
  logit_bias: [{}],
  modalities: [['text']],
  presence_penalty: [0],
  response_format: [{ type: 'text' }],
  suffix: [''],
  tool_choice: ['auto', 'none'],
  tools: [[]],
};
const COMMON = ['model', 'temperature', 'top_p', 'top_k', 'min_p', 'repetition_penalty', 'stop', 'seed', 'stream', 'stream_options', 'n', 'max_tokens', 'logprobs'];

// Refuses every field but COMMON, `own`, and what changes nothing.
function checkNames(body, own) {
  const known = new Set([...COMMON, ...own, ...IGNORED]);
  for (const [name, value] of Object.entries(body)) {
    if (value === null || known.has(name)) continue;
    const harmless = Object.hasOwn(HARMLESS, name) ? HARMLESS[name] : [];
    if (harmless.some((one) => isDeepStrictEqual(one, value))) continue;
    throw badRequest(name, `'${name}' is not supported, or not with this value.`);
  }
}

// What the two protocols share.
function common(service, body, own, maxTokens) {
  checkNames(body, own);
  if (typeof body.model !== 'string' || body.model === '') throw badRequest('model', "You must provide a 'model' parameter.");
  service.checkModel(body.model);
  const options = {
    temperature: within(body, 'temperature', 1, 0, 2),
    topP: within(body, 'top_p', 1, 0, 1),
    topK: within(body, 'top_k', 0, 0, INT32, true), // this and the next two: not of OpenAI, as other servers have them
    minP: within(body, 'min_p', 0, 0, 1),
    repetitionPenalty: within(body, 'repetition_penalty', 1, 2 ** -126, FLOAT32),
    maxGenLen: maxTokens,
    stop: texts(body, 'stop'),
  };
  const seed = within(body, 'seed', undefined, -(2 ** 63), 2 ** 63, true);
  // 0 would be a seed of the model's own choice.
  if (seed !== undefined) options.seed = seed === 0 ? 2n ** 63n : BigInt.asUintN(64, BigInt(seed));
  const streaming = body.stream_options ?? {};
  if (!isObject(streaming)) throw badRequest('stream_options', "'stream_options' must be an object.");
  return {
    options,
    n: within(body, 'n', 1, 1, 128, true),
    stream: flag(body, 'stream'),
    includeUsage: flag(streaming, 'include_usage'),
  };
}

// A text, texts, tokens, or lists of tokens: as a list of texts or of tokens.
function prompts(prompt) {
  const isTokens = (value) => Array.isArray(value) && value.length > 0 && value.every((token) => Number.isInteger(token));
  if (typeof prompt === 'string') return [prompt];
  if (isTokens(prompt)) return [prompt];
  if (!Array.isArray(prompt) || prompt.length === 0) throw badRequest('prompt', "You must provide a 'prompt' parameter.");
  if (prompt.every((text) => typeof text === 'string') || prompt.every(isTokens)) return prompt;
  throw badRequest('prompt', "'prompt' must be a text, a list of texts, a list of tokens or a list of such lists.");
}

const repeated = (list, n) => list.flatMap((one) => Array(n).fill(one));

export function completion(service, body) {
  const job = common(service, body, ['prompt', 'echo', 'best_of'], within(body, 'max_tokens', 16, 0, INT32, true));
  const top = within(body, 'logprobs', null, 0, 20, true);
  const echo = flag(body, 'echo');
  if (body.best_of != null && body.best_of !== job.n) throw badRequest('best_of', "'best_of' is not supported.");
  const given = prompts(body.prompt);
  service.checkSequences(given.length * job.n); // before there are so many
  const input = repeated(given, job.n);
  Object.assign(job.options, { echo, logprobs: top !== null, topLogprobs: top ?? 0 });
  return { ...job, input, sequences: input.length, logprobs: top !== null, echo, kind: 'completion', param: 'prompt' };
}

// A text, or a list of parts that are texts.
function contentOf(content) {
  if (typeof content === 'string') return content;
  if (!Array.isArray(content) || !content.every(isObject)) {
    throw badRequest('messages', "A message's 'content' must be a text or a list of parts.");
  }
  for (const part of content) {
    if (part.type !== 'text') throw badRequest('messages', `A part of type ${shown(part.type ?? null)} is not supported; 'text' is.`);
    if (typeof part.text !== 'string') throw badRequest('messages', "A part's 'text' must be a text.");
  }
  return content.map((part) => part.text).join('');
}

function dialogOf(messages) {
  if (!Array.isArray(messages)) throw badRequest('messages', "You must provide a 'messages' parameter.");
  if (messages.length === 0) throw badRequest('messages', 'messages is empty');
  return messages.map((message) => {
    if (!isObject(message) || typeof message.role !== 'string') throw badRequest('messages', "A message must have a 'role' and a 'content'.");
    const role = message.role === 'developer' ? 'system' : message.role; // the newer name of the same
    return { role, content: contentOf(message.content) };
  });
}

export function chat(service, body) {
  const limit = body.max_completion_tokens != null ? 'max_completion_tokens' : 'max_tokens'; // the newer name of the same
  const own = ['messages', 'max_completion_tokens', 'top_logprobs'];
  const job = common(service, body, own, within(body, limit, undefined, 0, INT32, true));
  const logprobs = flag(body, 'logprobs');
  const top = within(body, 'top_logprobs', 0, 0, 20, true);
  if (body.top_logprobs != null && !logprobs) throw badRequest('top_logprobs', "'top_logprobs' needs 'logprobs' to be true.");
  const input = Array(job.n).fill(dialogOf(body.messages));
  Object.assign(job.options, { logprobs, topLogprobs: top });
  return { ...job, input, sequences: job.n, logprobs, echo: false, kind: 'chat', param: 'messages' };
}

// Of the playground: what may follow a text, or a dialog and the beginning of its answer.
export function next(service, body) {
  if (body.messages === undefined) {
    if (typeof body.prompt !== 'string') throw badRequest('prompt', "'prompt' must be a text.");
    return { sequences: 1, prompt: body.prompt, param: 'prompt' };
  }
  if (typeof (body.answer ?? '') !== 'string') throw badRequest('answer', "'answer' must be a text.");
  return { sequences: 1, dialog: dialogOf(body.messages), answer: body.answer ?? '', param: 'messages' };
}
