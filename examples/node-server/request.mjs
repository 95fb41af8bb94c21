// Reads requests: what the protocol allows, what this service can do of it, and the model's names
// for it.

import { isDeepStrictEqual } from 'node:util';
import { BEAM_FIELDS, searchOf } from './beams.mjs';
import { CONSTRAINTS, constraintOf } from './constraint.mjs';
import { badRequest } from './http.mjs';
import { isObject, kind, wellFormed } from './json.mjs';
import { contentOf, dialogOf, listOf } from './messages.mjs';
import { bytesOf } from './spelling.mjs';
import { checkStreamOptions, streamOptionsOf } from './streaming.mjs';
import { conversationOf, toolsOf, variablesOf } from './tools.mjs';

const INT32 = 2 ** 31 - 1;
const FLOAT32 = (2 - 2 ** -23) * 2 ** 127;
// As the library has them.
const MAX_STOPS = 1024;
const MAX_BAD_TOKENS = 65536;
const MAX_STOP_BYTES = 4096;
const MAX_SEQUENCES = 65536;

// A number from lowest to highest, or `missing` where there is none.
function number(body, name, missing, lowest, highest) {
  const value = body[name] ?? null;
  if (value === null) return missing;
  if (typeof value !== 'number') throw badRequest(name, `'${name}' must be a number, not ${kind(value)}.`);
  if (!(value >= lowest && value <= highest)) throw badRequest(name, `'${name}' is ${value}, must be from ${lowest} to ${highest}.`);
  return value;
}

function integer(body, name, missing, lowest, highest) {
  const value = number(body, name, missing, lowest, highest);
  if (value !== missing && !Number.isInteger(value)) throw badRequest(name, `'${name}' is ${value}, must be an integer.`);
  return value;
}

// A number that is less than `highest` as a float32, too.
function below(body, name, missing, lowest, highest) {
  const value = number(body, name, missing, lowest, highest);
  if (Math.fround(value) >= highest) throw badRequest(name, `'${name}' is ${value}, must be less than ${highest}.`);
  return value;
}

export function flag(body, name) {
  const value = body[name] ?? false;
  if (typeof value !== 'boolean') throw badRequest(name, `'${name}' must be true or false, not ${kind(value)}.`);
  return value;
}

// Which of two names of the same field is there.
function either(body, name, other) {
  const [a, b] = [body[name] ?? null, body[other] ?? null];
  // 0 and -0 are the same number, and different ones to `isDeepStrictEqual`.
  if (a !== null && b !== null && a !== b && !isDeepStrictEqual(a, b)) {
    throw badRequest(other, `'${name}' and '${other}' are two names of the same, but have different values.`);
  }
  return b === null ? name : other;
}

function stopsOf(body) {
  const value = body.stop ?? [];
  const stops = typeof value === 'string' ? [value] : value;
  const refuse = (sentence) => {
    throw badRequest('stop', sentence);
  };
  if (!Array.isArray(stops)) refuse(`'stop' must be a string or an array of strings, not ${kind(value)}.`);
  stops.forEach((stop, i) => typeof stop === 'string' || refuse(`'stop[${i}]' must be a string, not ${kind(stop)}.`));
  if (stops.length > MAX_STOPS) refuse(`'stop' has ${stops.length} strings, at most ${MAX_STOPS} are looked for.`);
  for (const stop of stops) {
    const bytes = Buffer.byteLength(stop);
    if (bytes === 0) refuse("'stop' has an empty string, which would stop everything.");
    if (bytes > MAX_STOP_BYTES) refuse(`'stop' has a string of ${bytes} bytes, at most ${MAX_STOP_BYTES} are looked for.`);
    if (stop.includes('\0')) refuse("'stop' has a string with a NUL character, which is not looked for.");
  }
  return stops.map(wellFormed);
}

// OpenAI's fields that change nothing here, whatever they say ...
const IGNORED = ['metadata', 'parallel_tool_calls', 'prompt_cache_key', 'prompt_cache_retention', 'safety_identifier', 'service_tier', 'store', 'user'];
// ... and values of further ones with which they ask for nothing.
const HARMLESS = {
  function_call: ['auto', 'none'],
  functions: [[]],
  modalities: [['text']],
  suffix: [''],
  tool_choice: ['auto', 'none'],
  tools: [[]],
};
const COMMON = ['model', 'draft_len', 'repeat_penalty', 'repetition_penalty', 'stop', 'seed', 'stream', 'stream_options', 'n', 'max_tokens',
  'bad_words', 'ignore_eos', 'logit_bias', 'speculation', 'stop_token_ids', ...BEAM_FIELDS, ...CONSTRAINTS];

/** Refuses every field but those that are known, and what changes nothing. */
export function checkNames(body, known) {
  for (const name of Object.keys(body).sort()) {
    const value = body[name];
    if (value === null || known.includes(name) || IGNORED.includes(name)) continue;
    const harmless = Object.hasOwn(HARMLESS, name) ? HARMLESS[name] : null;
    if (harmless === null) throw badRequest(name, `'${name}' is not supported.`);
    if (!harmless.some((one) => isDeepStrictEqual(one, value))) throw badRequest(name, `'${name}' is not supported with this value.`);
  }
}

// The model's seed; undefined: one of its own choice.
function seedOf(body) {
  const seed = integer(body, 'seed', -1, -(2 ** 63), 2 ** 63);
  if (seed === -1) return undefined;
  if (seed === 0) return 2n ** 63n; // to the model: a seed of its own choice
  return BigInt.asUintN(64, BigInt(seed));
}

// Whether tokens are guessed at, and by what; undefined: as the service does it.
function speculationOf(body, { draft, medusa }) {
  const value = body.speculation ?? undefined;
  if (value === undefined || value === 'off' || value === 'auto' || value === 'ngram') return value;
  if (value !== 'draft' && value !== 'medusa') throw badRequest('speculation', "'speculation' must be 'off', 'auto', 'ngram', 'draft' or 'medusa'.");
  if (value === 'medusa' && !medusa) throw badRequest('speculation', "'speculation' is 'medusa', and this service has no Medusa heads.");
  if (value === 'draft' && !draft) throw badRequest('speculation', "'speculation' is 'draft', and this service has no draft model.");
  return value;
}

// Numbers of examples/requests.txt, in its order. A top_k of -1 is vLLM's for none.
const NUMBERS = [
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'min_tokens',
  'presence_penalty',
  'frequency_penalty',
  'typical_p',
  'epsilon_cutoff',
  'eta_cutoff',
  'no_repeat_ngram_size',
];

const numbersOf = (body) => ({
  temperature: number(body, 'temperature', 1, 0, 2),
  topP: number(body, 'top_p', 1, 0, 1),
  topK: Math.max(integer(body, 'top_k', 0, -1, INT32), 0),
  minP: number(body, 'min_p', 0, 0, 1),
  minGenLen: integer(body, 'min_tokens', 0, 0, INT32),
  presencePenalty: number(body, 'presence_penalty', 0, -2, 2),
  frequencyPenalty: number(body, 'frequency_penalty', 0, -2, 2),
  typicalP: number(body, 'typical_p', 0, 0, 1),
  epsilonCutoff: below(body, 'epsilon_cutoff', 0, 0, 1),
  etaCutoff: below(body, 'eta_cutoff', 0, 0, 1),
  noRepeatNgramSize: integer(body, 'no_repeat_ngram_size', 0, 0, INT32),
});
// End of numbers

// An object of tokens and numbers, of which -100 and below ban.
function logitBiasOf(body, vocabSize) {
  const value = body.logit_bias ?? {};
  const refuse = (sentence) => {
    throw badRequest('logit_bias', sentence);
  };
  if (!isObject(value)) refuse(`'logit_bias' must be an object, not ${kind(value)}.`);
  return Object.keys(value).sort().map((key) => {
    const [token, bias] = [Number(key), value[key]];
    if (!/^(0|[1-9][0-9]*)$/.test(key) || token >= vocabSize) refuse(`'logit_bias' has '${key}', which is no token from 0 to ${vocabSize - 1}.`);
    if (typeof bias !== 'number') refuse(`'logit_bias.${key}' must be a number, not ${kind(bias)}.`);
    if (bias > 100) refuse(`'logit_bias.${key}' is ${bias}, must be at most 100.`);
    return [token, bias <= -100 ? -Infinity : bias];
  });
}

// Texts, as the tokens that they have at the start of a text and behind a space.
function badWordsOf(body, model) {
  const value = body.bad_words ?? [];
  const refuse = (sentence) => {
    throw badRequest('bad_words', sentence);
  };
  if (!Array.isArray(value)) refuse(`'bad_words' must be an array of strings, not ${kind(value)}.`);
  if (value.length > MAX_STOPS) refuse(`'bad_words' has ${value.length} strings, at most ${MAX_STOPS} are taken.`);
  let tokens = 0;
  return value.flatMap((given, i) => {
    if (typeof given !== 'string') refuse(`'bad_words[${i}]' must be a string, not ${kind(given)}.`);
    const word = wellFormed(given).replace(/^ +/, '');
    const bytes = Buffer.byteLength(given);
    if (word === '') refuse("'bad_words' has an empty string, which would forbid everything.");
    if (bytes > MAX_STOP_BYTES) refuse(`'bad_words' has a string of ${bytes} bytes, at most ${MAX_STOP_BYTES} are taken.`);
    const [bare, spaced] = [model.encode(word), model.encode(` ${word}`)];
    // A tokenizer may drop characters.
    if (bare.length === 0) refuse(`'bad_words[${i}]' has no tokens, so nothing can be forbidden.`);
    const both = spaced.length === bare.length && spaced[0] !== bare[0] ? [bare, spaced] : [bare];
    tokens += both.length * bare.length;
    if (tokens > MAX_BAD_TOKENS) refuse(`'bad_words' has more than ${MAX_BAD_TOKENS} tokens, the most that are taken.`);
    return both;
  });
}

// Fields with which a request forbids tokens.
const FORBIDDING = ['bad_words', 'logit_bias', 'no_repeat_ngram_size', 'min_tokens'];

// What the two protocols share. Of several things that are wrong go-server names the same one: both
// look at the fields in one order.
function common(service, body, own) {
  checkNames(body, [...COMMON, ...NUMBERS, ...own]);
  const { model = null } = body;
  if (model === null || model === '') throw badRequest('model', "You must provide a 'model' parameter.");
  if (typeof model !== 'string') throw badRequest('model', `'model' must be a string, not ${kind(model)}.`);
  const adapter = service.adapterOf(model);
  const n = integer(body, 'n', 1, 1, 128);
  const stream = flag(body, 'stream');
  const stop = stopsOf(body);
  const told = streamOptionsOf(body, stream, flag);
  const penalty = either(body, 'repetition_penalty', 'repeat_penalty');
  const repetitionPenalty = number(body, penalty, 1, -FLOAT32, FLOAT32);
  if (Math.fround(repetitionPenalty) <= 0) throw badRequest(penalty, `'${penalty}' is ${repetitionPenalty}, must be more than 0.`);
  const options = {
    stop,
    repetitionPenalty,
    ...numbersOf(body),
    logitBias: logitBiasOf(body, service.vocabSize),
    badWords: badWordsOf(body, service.model),
    stopTokens: body.stop_token_ids == null ? [] : tokensOf('stop_token_ids', 'stop_token_ids', body.stop_token_ids, service.vocabSize),
    ignoreEos: flag(body, 'ignore_eos'),
    adapter,
  };
  const search = searchOf(body, { n, isOnlyWhole: stream && !told.includeBeams, slots: service.slots }, { flag, either, integer, number });
  Object.assign(options, search?.options, { beamEvents: told.includeBeams && search?.beams > 1 });
  const speculation = speculationOf(body, service);
  options.draftLen = integer(body, 'draft_len', 0, 0, 16);
  const constraint = constraintOf(body, options.ignoreEos);
  options.seed = seedOf(body);
  // A search has all answers of a prompt, which the model gets once.
  const forbidding = FORBIDDING.filter((name) => body[name] != null);
  return { model, options, forbidding, n, beams: search?.beams ?? 0, copies: search ? 1 : n, stream, ...told, constraint, speculation };
}

// The most tokens of an answer, by the `name` that the field has.
function maxTokensOf(body, name, missing, { minGenLen }) {
  const maxTokens = integer(body, name, missing, 0, INT32);
  if (minGenLen > maxTokens) throw badRequest('min_tokens', `'min_tokens' is ${minGenLen}, must be at most '${name}', ${maxTokens}.`);
  return maxTokens;
}

/** Tokens of the array called `name`, which is the field `param` or part of it. */
export function tokensOf(param, name, value, vocabSize) {
  if (!Array.isArray(value)) throw badRequest(param, `'${name}' must be an array of tokens, not ${kind(value)}.`);
  value.forEach((token, i) => {
    if (typeof token !== 'number') throw badRequest(param, `'${name}[${i}]' must be a token, not ${kind(token)}.`);
    if (Number.isInteger(token) && token >= 0 && token < vocabSize) return;
    throw badRequest(param, `'${name}[${i}]' is ${token}, must be a token from 0 to ${vocabSize - 1}.`);
  });
  return value;
}

// A text, texts, tokens, or lists of tokens: as a list of texts or of tokens.
function promptsOf(prompt, vocabSize) {
  if (typeof prompt === 'string') return [wellFormed(prompt)];
  if (prompt === undefined || prompt === null || (Array.isArray(prompt) && prompt.length === 0)) throw badRequest('prompt', "You must provide a 'prompt' parameter.");
  if (!Array.isArray(prompt)) {
    throw badRequest('prompt', `'prompt' must be a string, an array of strings, of tokens, or of arrays of tokens, not ${kind(prompt)}.`);
  }
  if (typeof prompt[0] === 'number') return [tokensOf('prompt', 'prompt', prompt, vocabSize)];
  if (Array.isArray(prompt[0])) {
    return prompt.map((tokens, i) => {
      if (Array.isArray(tokens) && tokens.length === 0) throw badRequest('prompt', `'prompt[${i}]' is empty: it must have at least one token.`);
      return tokensOf('prompt', `prompt[${i}]`, tokens, vocabSize);
    });
  }
  if (typeof prompt[0] !== 'string') {
    throw badRequest('prompt', `'prompt[0]' must be a string, a token or an array of tokens, not ${kind(prompt[0])}.`);
  }
  prompt.forEach((text, i) => {
    if (typeof text !== 'string') throw badRequest('prompt', `'prompt[${i}]' must be a string as the first one is, not ${kind(text)}.`);
  });
  return prompt.map(wellFormed);
}

const repeated = (list, n) => list.flatMap((one) => Array(n).fill(one));

// Refuses an answer that would take too much memory until it is whole: one that may have so many
// tokens, each with so many alternatives.
function checkAnswer({ maxAnswer }, stream, tokens, alternatives) {
  const most = tokens * (1 + alternatives);
  if (stream || most <= maxAnswer) return;
  throw badRequest('max_tokens', `The answer may have ${most} tokens and alternatives, at most ${maxAnswer} are sent as a whole; a stream may have any number.`);
}

// How many tokens a sequence can have in its answer; `prompt` is how many of them may be the
// prompt's.
const mostTokens = (room, maxTokens, prompt) => (maxTokens === undefined ? room : Math.min(room, prompt + maxTokens));

export function completion(service, body) {
  const job = common(service, body, ['prompt', 'echo', 'logprobs', 'best_of']);
  job.options.maxGenLen = maxTokensOf(body, 'max_tokens', 16, job.options);
  const echo = flag(body, 'echo');
  const top = integer(body, 'logprobs', null, 0, 20);
  checkStreamOptions(job, { isSearch: job.beams > 0, logprobs: top !== null });
  const given = job.n;
  // A beam search ranks its answers itself.
  if (job.beams === 0) job.n = job.copies = integer(body, 'best_of', given, 1, 128);
  if (job.n < given) throw badRequest('best_of', `'best_of' is ${job.n}, must be at least 'n', ${given}.`);
  if (job.n > given && job.stream) {
    const why = "which answers are best is not known before their end, and 'stream' is true";
    throw badRequest('best_of', `'best_of' is ${job.n}, more than 'n', ${given}: ${why}.`);
  }
  const asked = promptsOf(body.prompt, service.vocabSize);
  const sequences = asked.length * job.n;
  if (sequences > MAX_SEQUENCES) {
    // Said before there are so many.
    throw badRequest('prompt', `The request is for ${sequences} sequences, at most ${MAX_SEQUENCES} are taken.`);
  }
  // Of a text: its tokens, BOS, and a space in front.
  const length = (prompt) => (typeof prompt === 'string' ? Buffer.byteLength(prompt) + 2 : prompt.length);
  const tokens = asked.reduce((sum, prompt) => sum + job.n * mostTokens(service.room, job.options.maxGenLen, echo ? length(prompt) : 0), 0);
  checkAnswer(service, job.stream, tokens, top ?? 0);
  // What continues a prompt without a text begins as every text does.
  const hasText = (prompt) => (typeof prompt === 'string' ? prompt !== '' : prompt.some((token) => bytesOf(service.model, token).length > 0));
  const haveText = asked.map(hasText);
  Object.assign(job.options, { echo, logprobs: top !== null || job.n > given, topLogprobs: top ?? 0 });
  return { ...job, given, input: repeated(asked, job.copies), sequences, haveText, logprobs: top !== null, echo, kind: 'completion', param: 'prompt' };
}

export function chat(service, body) {
  const own = ['messages', 'max_completion_tokens', 'logprobs', 'top_logprobs', 'tools', 'tool_choice', 'chat_template_kwargs', 'prediction'];
  const job = common(service, body, own);
  const limit = either(body, 'max_tokens', 'max_completion_tokens'); // the second is the newer name
  job.options.maxGenLen = maxTokensOf(body, limit, undefined, job.options);
  const logprobs = flag(body, 'logprobs');
  const top = integer(body, 'top_logprobs', 0, 0, 20);
  if (body.top_logprobs != null && !logprobs) throw badRequest('top_logprobs', "'top_logprobs' needs 'logprobs' to be true.");
  checkStreamOptions(job, { isSearch: job.beams > 0, logprobs });
  const prediction = predictionOf(body);
  const prompt = chatPrompt(service, body, job);
  checkAnswer(service, job.stream, job.n * mostTokens(service.room, job.options.maxGenLen, 0), top);
  Object.assign(job.options, { logprobs, topLogprobs: top, special: prompt.tools?.marker != null });
  const constraint = prompt.tools?.forced ?? job.constraint;
  return { ...job, ...prompt, constraint, prediction, given: job.n, sequences: job.n, logprobs, echo: false, kind: 'chat', param: 'messages' };
}

// A text that the answer may repeat in parts, as an edited file repeats the old one; null: there is
// none.
function predictionOf({ prediction = null }) {
  if (prediction === null) return null;
  if (!isObject(prediction)) throw badRequest('prediction', `'prediction' must be an object with a 'type' and a 'content', not ${kind(prediction)}.`);
  if (prediction.type !== 'content') throw badRequest('prediction.type', "'prediction.type' must be 'content'.");
  const known = ['type', 'content'];
  if (Object.entries(prediction).some(([name, value]) => value !== null && !known.includes(name))) {
    throw badRequest('prediction', "'prediction' has other fields than 'type' and 'content'.");
  }
  return contentOf('prediction.content', prediction.content ?? null);
}

// Tools and messages: for the model's template, as `request`, or for Meta's Llama 2 format, which
// has no tools, as `input` and what is `begun` of the answer.
function chatPrompt({ model, template }, body, { copies, constraint }) {
  if (model.info().chatFormat === 'none') {
    throw badRequest('messages', 'The model has no chat template; it continues texts (/v1/completions).');
  }
  const tools = toolsOf(body, template, constraint);
  const variables = variablesOf(body, template);
  if (template === null) {
    const { dialog, begun } = dialogOf(body.messages);
    return { tools, begun, input: Array(copies).fill(dialog), haveText: [begun !== ''] };
  }
  const { messages, begun } = conversationOf(body.messages, template);
  return { tools, request: { messages, tools: tools?.json, variables, continueFinal: begun }, haveText: [begun] };
}

// Of the playground: a language that is only looked at.
export function grammar(service, body) {
  const constraint = constraintOf(body, false);
  if (constraint === null) throw badRequest(null, `The request must have one of ${CONSTRAINTS.join(', ')}.`);
  return { sequences: 1, n: 1, copies: 1, constraint, param: constraint.field };
}

// Of the playground: what may follow a text, or a dialog and the beginning of its answer.
export function next(service, body) {
  if (body.messages === undefined) {
    if (typeof body.prompt !== 'string') throw badRequest('prompt', "'prompt' must be a text.");
    return { sequences: 1, n: 1, copies: 1, prompt: body.prompt, hasText: body.prompt !== '', param: 'prompt' };
  }
  const answer = body.answer ?? '';
  if (typeof answer !== 'string') throw badRequest('answer', "'answer' must be a text.");
  const job = { sequences: 1, n: 1, copies: 1, param: 'messages' };
  if (service.template === null) {
    const { dialog, begun } = dialogOf(body.messages);
    return { ...job, dialog, answer: begun + answer, hasText: begun + answer !== '' };
  }
  const said = answer === '' ? [] : [{ role: 'assistant', content: answer }];
  const { messages, begun } = conversationOf([...listOf(body.messages), ...said], service.template);
  return { ...job, request: { messages, continueFinal: begun }, hasText: begun };
}
