// Runs a job: gives the bytes of a whole answer, or sends one as server-sent events.
import { randomUUID } from 'node:crypto';
import { setImmediate as othersTurn } from 'node:timers/promises';
import { Backlog } from './backlog.mjs';
import { beamOf } from './beams.mjs';
import { grammarOf } from './constraint.mjs';
import { ApiError, badRequest, endedEarly, FINISH, jsonOf } from './http.mjs';
import { PATIENCE, taken } from './sending.mjs';
import { bytesOf, droppedSpaces, printable, Spelling, writable } from './spelling.mjs';
import { AnswerReader, deltasOf } from './tools.mjs';

const MOST_PREDICTED = 65536; // tokens

// What differs between the two protocols' answers. `scored` are tokens with log probabilities, or
// null.
const SHAPES = {
  completion: {
    prefix: 'cmpl-',
    object: 'text_completion',
    chunkObject: 'text_completion',
    start: null,
    choice: (text, scored, finish) => ({ text, logprobs: columns(scored), finish_reason: finish }),
    chunk: (text, scored, finish) => ({ text, logprobs: columns(scored), finish_reason: finish }),
  },
  chat: {
    prefix: 'chatcmpl-',
    object: 'chat.completion',
    chunkObject: 'chat.completion.chunk',
    start: { delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null },
    choice: (text, scored, finish, calls) => ({
      message: {
        role: 'assistant',
        content: text === '' && calls.length > 0 ? null : text,
        refusal: null,
        // Only a stream's calls have the index.
        ...(calls.length > 0 && { tool_calls: calls.map(({ index, ...call }) => call) }),
      },
      logprobs: rows(scored),
      finish_reason: finish,
    }),
    chunk: (text, scored, finish) => ({ delta: finish === null ? { content: text } : {}, logprobs: rows(scored), finish_reason: finish }),
  },
};

// Log probabilities as completions have them: a list for each property.
function columns(scored) {
  if (scored === null) return null;
  return {
    tokens: scored.map((t) => printable(t.bytes)),
    token_logprobs: scored.map((t) => t.logprob),
    top_logprobs: scored.map((t) => {
      if (t.logprob === null) return null;
      const top = Object.create(null); // a token may be called `constructor`
      // Control tokens have no text, so several may share a key: the likeliest counts.
      for (const a of t.top) top[printable(a.bytes)] ??= a.logprob;
      return top;
    }),
    text_offset: scored.map((t) => t.offset),
    ...(scored.some((t) => t.draft !== undefined) && { drafts: scored.map((t) => t.draft) }),
  };
}

// ... and as chats have them: a row for each token.
function rows(scored) {
  if (scored === null) return null;
  const row = ({ bytes, logprob }) => ({ token: bytes.toString(), logprob, bytes: [...bytes] });
  return { content: scored.map((t) => ({ ...row(t), top_logprobs: t.top.map(row), draft: t.draft })), refusal: null };
}

export async function answer(service, job, res, signal) {
  const { model, metrics } = service;
  const shape = SHAPES[job.kind];
  const base = {
    id: shape.prefix + randomUUID().replaceAll('-', ''),
    object: job.stream ? shape.chunkObject : shape.object,
    created: Math.floor(Date.now() / 1000),
    model: job.model,
    system_fingerprint: service.fingerprint,
  };
  const out = job.stream ? new EventStream(res, base, shape, job, signal) : null;
  const choices = Array.from({ length: job.sequences }, () => ({
    text: '', seen: 0, spelling: null, reader: null, scored: [], calls: [], finish: null, last: null, logprobs: [], mean: -Infinity,
  }));
  const usage = { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 };
  if (service.reportCached) usage.prompt_tokens_details = { cached_tokens: 0 };
  if (job.prediction != null || isGuessed(job)) usage.completion_tokens_details = { accepted_prediction_tokens: 0, rejected_prediction_tokens: 0 };
  let timings;

  for await (const event of await streamOf(service, job, signal)) {
    if (event.type === 'beam') {
      const isFirst = event.step === 1 && !isBehindText(job, event.index);
      await out.beam(beamOf(model, event, isFirst));
      continue;
    }
    const choice = choices[event.index];
    choice.spelling ??= new Spelling(model, { continues: isBehindText(job, event.index) && !job.echo, listed: job.logprobs, drafts: job.includeDrafts, stops: job.options.stop, tools: job.tools, eachByte: service.eachByte });
    if (job.tools) choice.reader ??= new AnswerReader(job.tools);
    let piece;
    if (event.type === 'finish') {
      metrics.sequence(event.stats);
      job.access.generatedTokens += event.stats.generatedTokens;
      if (event.finishReason === 'cancelled') throw signal.reason; // or nobody is there to be told
      if (event.finishReason === 'unsafe') throw badRequest('messages', event.text);
      piece = choice.spelling.finish(event);
      if (!choice.spelling.ended && !(event.finishReason in FINISH)) throw endedEarly(event.finishReason);
      choice.finish = choice.spelling.ended ? 'stop' : FINISH[event.finishReason];
      rate(choice, event.stats.generatedTokens);
      count(usage, event.stats, event.index % job.n === 0);
      job.access.promptTokens = usage.prompt_tokens;
      if (event.index === 0) timings = { first_token_ms: event.stats.firstTokenMs, total_ms: event.stats.totalMs };
    } else {
      const now = performance.now();
      // Of a prompt that is echoed, the tokens were not generated.
      if (choice.last !== null && !job.echo) metrics.betweenTokens.observe((now - choice.last) / 1000);
      choice.last = now;
      if (job.given < job.n) choice.logprobs.push(writable(event.logprob));
      piece = choice.spelling.token(event, !job.echo || choice.seen > 0);
      choice.seen++;
    }
    let { text } = piece;
    let calls = [];
    if (choice.reader) ({ text, calls, finish: choice.finish } = choice.reader.read(text, choice.finish));
    if (out) {
      const scored = piece.tokens.length > 0 ? piece.tokens : null;
      await out.event(event.index, { text, scored, calls, finish: choice.finish, score: event.score });
    } else {
      choice.text += text;
      choice.scored.push(...piece.tokens);
      choice.calls.push(...calls);
    }
  }

  if (out) return out.end(usage, timings);
  const written = [];
  for (const [index, c] of best(choices, job).entries()) {
    if (index > 0) await othersTurn(); // a choice may have megabytes of log probabilities
    written.push(JSON.stringify({ index, ...shape.choice(c.text, job.logprobs ? c.scored : null, c.finish, c.calls) }));
  }
  const [head, tail] = [JSON.stringify(base).slice(0, -1), JSON.stringify({ usage, timings }).slice(1)];
  return Buffer.from(`${head},"choices":[${written.join()}],${tail}`);
}

// Whether what the model adds to a choice goes on from a text, and does not begin one. A text in a
// language is that, without the space that it would have behind another one.
const isBehindText = ({ haveText, echo, constraint, n }, index) => haveText[Math.floor(index / n)] && (echo || constraint === null);

// Finds out how good a sequence is, of which so many tokens were generated.
function rate(choice, generated) {
  // Those of an echoed prompt come first.
  const own = choice.logprobs.slice(Math.max(0, choice.logprobs.length - generated));
  if (own.length > 0) choice.mean = own.reduce((sum, logprob) => sum + logprob, 0) / own.length;
  choice.logprobs = [];
}

// The choices that are given: of each prompt's, the ones whose tokens have the highest mean log
// probability.
function best(choices, { given, n }) {
  if (given === n) return choices;
  const prompts = Array.from({ length: choices.length / n }, (_, i) => choices.slice(i * n, (i + 1) * n));
  return prompts.flatMap((own) => own.sort((a, b) => (a.mean < b.mean) - (a.mean > b.mean)).slice(0, given));
}

// The events of a job's sequences.
async function streamOf(service, { input, request, begun, copies, options: asked, constraint, prediction, speculation, cacheSalt }, signal) {
  const { model } = service;
  const grammar = constraint === null ? undefined : await grammarOf(model, constraint);
  // The same tokens come as without it, sooner.
  const usual = service.draft || service.medusa ? 'auto' : prediction != null ? 'ngram' : 'off';
  const options = { ...asked, grammar, speculation: speculation ?? usual, cacheSalt, signal };
  if (prediction != null) options.predicted = await predictedOf(model, prediction, signal);
  if (request && copies === 1) return model.streamChat(request, options);
  if (request) {
    checkLength(service, request.messages);
    return model.stream(Array(copies).fill(await model.encodeChatAsync(request)), options);
  }
  if (!begun) return model.stream(input, options);
  return model.stream(Array(copies).fill(await tokensBegun(service, { dialog: input[0], answer: begun }, signal)), options);
}

// Whether a request wants to know what became of guesses.
const isGuessed = ({ speculation }) => speculation !== undefined && speculation !== 'off';

// The tokens of a prediction.
async function predictedOf(model, prediction, signal) {
  try {
    return await model.encodeAsync(prediction, { bos: false, maxTokens: MOST_PREDICTED, signal });
  } catch (error) {
    if (error.code !== 'LLAMA_E_TOO_LONG') throw error;
    throw badRequest('prediction', `'prediction.content' has more than ${MOST_PREDICTED} tokens.`);
  }
}

// Adds a sequence's figures; those of its prompt only for the first choice that it has.
function count(usage, stats, isFirst) {
  if (isFirst) {
    usage.prompt_tokens += stats.promptTokens;
    if (usage.prompt_tokens_details) usage.prompt_tokens_details.cached_tokens += stats.cachedTokens;
  }
  const details = usage.completion_tokens_details;
  if (details) {
    details.accepted_prediction_tokens += stats.acceptedTokens;
    details.rejected_prediction_tokens += stats.draftedTokens - stats.acceptedTokens;
  }
  usage.completion_tokens += stats.generatedTokens;
  usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
}

class EventStream {
  #backlog;

  constructor(res, base, shape, job, signal) {
    Object.assign(this, { res, base, shape, job });
    this.#backlog = new Backlog(res, { signal, patience: PATIENCE });
  }

  // Headers go with the first event: until then an error can have a status of its own.
  async #begin() {
    if (this.res.headersSent) return;
    this.res.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8', 'cache-control': 'no-cache' });
    if (this.shape.start) for (let i = 0; i < this.job.sequences; i++) await this.#choice(i, this.shape.start);
  }

  // What became of a beam.
  async beam(beam) {
    await this.#begin();
    await this.#chunk({ choices: [], beam });
  }

  // What an event adds to a choice; `score` is that of a choice which has ended.
  async event(index, { text, scored, calls, finish, score }) {
    await this.#begin();
    // A chunk has one token.
    while (scored?.length > 1) await this.#choice(index, this.shape.chunk('', [scored.shift()], null));
    if (text !== '' || scored) await this.#choice(index, this.shape.chunk(text, scored, null));
    for (const delta of calls.flatMap(deltasOf)) await this.#choice(index, { delta, logprobs: null, finish_reason: null });
    if (finish === null) return;
    const ranked = this.job.includeBeams ? { score: writable(score) } : {};
    await this.#choice(index, { ...this.shape.chunk('', null, finish), ...ranked });
  }

  async end(usage, timings) {
    if (this.job.includeUsage) await this.#send(JSON.stringify({ ...this.base, choices: [], usage, timings }));
    await this.#send('[DONE]');
    this.res.end();
  }

  #choice(index, choice) {
    return this.#chunk({ choices: [{ index, ...choice }] });
  }

  #chunk(what) {
    return this.#send(JSON.stringify({ ...this.base, ...what, ...(this.job.includeUsage && { usage: null }) }));
  }

  // A client that reads slowly makes its call wait: when the system takes no more for now, or holds
  // much of what it took.
  async #send(data) {
    const { res } = this;
    if (res.destroyed) throw new Error('the client has left');
    if (!res.write(`data: ${data}\n\n`)) await taken(res, 'drain');
    await this.#backlog.wrote(data.length);
  }
}

// Whether the library can make a grammar of it, for the playground: an error says why not.
export async function judgeGrammar({ model }, { constraint }) {
  await grammarOf(model, constraint);
  return jsonOf({});
}

// The whole distribution of the next token, for the playground: ids and log probabilities,
// likeliest first, and the texts of the first few.
export async function nextToken(service, job, res, signal) {
  const { model, vocabSize } = service;
  const options = { maxGenLen: 1, temperature: 0, ignoreEos: true, topLogprobs: vocabSize, cacheSalt: job.cacheSalt, signal };
  // Texts and dialogs as they are: the model encodes them elsewhere than here, and no further than
  // they can fit.
  let call;
  if (job.request) call = model.chat(job.request, options);
  else if (!job.dialog) call = model.textCompletion(job.prompt, options);
  else if (job.answer === '') call = model.chatCompletion(job.dialog, options);
  else call = model.generate(await tokensBegun(service, job, signal), options);
  const { text, top, stats, finishReason } = await call;
  const isFirst = !job.hasText;
  Object.assign(job.access, { promptTokens: stats.promptTokens, generatedTokens: stats.generatedTokens });
  if (finishReason === 'cancelled') throw signal.reason;
  if (finishReason === 'unsafe') throw badRequest('messages', text);
  if (finishReason === 'not_finite') throw endedEarly(finishReason);
  if (top.length === 0) {
    const lengths = { n_prompt_tokens: service.room, n_ctx: service.room };
    throw new ApiError(400, 'There is no room for another token: the text fills max_seq_len.', { param: job.param, code: 'context_length_exceeded', ...lengths });
  }
  return jsonOf({
    ids: top[0].map((a) => a.token),
    logprobs: top[0].map((a) => Math.round(writable(a.logprob) * 1e5) / 1e5),
    texts: top[0].slice(0, 200).map((a) => textOf(model, a.token, isFirst)),
    prompt_tokens: stats.promptTokens,
    ...(service.reportCached && { cached_tokens: stats.cachedTokens }),
  });
}

// Refuses messages of so much text. What is far too long is not encoded, which can take seconds and
// would not end with the request.
function checkLength({ longest, room }, messages) {
  const bytes = messages.reduce((sum, { content }) => sum + Buffer.byteLength(content ?? ''), 0);
  const least = Math.ceil(bytes / longest);
  if (least <= room) return;
  throw new ApiError(400, `'messages' has ${bytes} bytes of text, more than the ${room} tokens that the model has room for.`, {
    param: 'messages',
    code: 'context_length_exceeded',
    n_prompt_tokens_min: least,
    n_ctx: room,
  });
}

// The tokens of a dialog and of the beginning of its answer.
async function tokensBegun(service, { dialog, answer }, signal) {
  const { model } = service;
  checkLength(service, [...dialog, { content: answer }]);
  return [...(await model.encodeDialogAsync(dialog)), ...(await model.encodeAsync(answer, { signal }))];
}

// Of a token in the list; the first one of a text is without the space that the text drops.
function textOf(model, token, isFirst) {
  const { bosId, eosId } = model.info();
  if (token === eosId) return '<end>';
  if (token === bosId) return '<begin>';
  const bytes = bytesOf(model, token);
  return printable(isFirst ? bytes.subarray(droppedSpaces(model, [], token)) : bytes) || `<${token}>`;
}
