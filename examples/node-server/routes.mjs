// Routes, the queue, and what goes wrong.
import { readFile } from 'node:fs/promises';
import { LlamaError } from 'llamabi';
import { Access } from './access.mjs';
import { answer, judgeGrammar, nextToken } from './answer.mjs';
import { readObject } from './body.mjs';
import { forbidsAll, isAboutGrammar } from './constraint.mjs';
import { ApiError, badRequest, jsonOf, sendJson, sendText, shuttingDown, timedOut } from './http.mjs';
import { Metrics } from './metrics.mjs';
import { chat, completion, grammar, next } from './request.mjs';
import { taken } from './sending.mjs';
import { replacesEachByte } from './spelling.mjs';
import { answerContent, answerTokens, detokenize, tokenize } from './tokenize.mjs';

const PAGE = {
  '/': 'index.html',
  '/style.css': 'style.css',
  '/api.mjs': 'api.mjs',
  '/fields.mjs': 'fields.mjs',
  '/figures.mjs': 'figures.mjs',
  '/grammar.mjs': 'grammar.mjs',
  '/playground.mjs': 'playground.mjs',
  '/roving.mjs': 'roving.mjs',
  '/sampler.mjs': 'sampler.mjs',
  '/search.mjs': 'search.mjs',
  '/tree.mjs': 'tree.mjs',
  '/view.mjs': 'view.mjs',
};
const TYPES = { html: 'text/html', css: 'text/css', mjs: 'text/javascript' };

const MODEL = '/v1/models/{id}';

export class Service {
  leaving = false; // it will take no new requests soon
  draining = false; // it takes none
  broken = false; // the model cannot be used any more
  metrics = new Metrics();
  created = Math.floor(Date.now() / 1000);
  #inside = 0; // sequences that run or wait
  #aborts = new Set();

  constructor(model, { queue, ...options }) {
    const { maxBatchSize, maxSeqLen, vocabSize, hasDraft, medusaHeads } = model.info();
    // template, name, adapters (ids by their names), fingerprint, maxBody, maxAnswer, timeout (in
    // seconds), auth, reportCached, accessLog, log
    Object.assign(this, { ...options, model, room: maxSeqLen, vocabSize, slots: maxBatchSize, draft: hasDraft, medusa: medusaHeads > 0 });
    this.limit = maxBatchSize + queue;
    // Bytes of a token.
    this.longest = Array.from({ length: vocabSize }, (_, token) => model.tokenBytes(token).length).reduce((a, b) => Math.max(a, b), 1);
    this.eachByte = replacesEachByte(model);
    this.routes = {
      'POST /v1/completions': (...to) => this.#run(...to, completion, answer),
      'POST /v1/chat/completions': (...to) => this.#run(...to, chat, answer),
      'POST /playground/next': (...to) => this.#run(...to, next, nextToken),
      'POST /playground/grammar': (...to) => this.#run(...to, grammar, judgeGrammar),
      'POST /tokenize': (...to) => this.#run(...to, tokenize, answerTokens),
      'POST /detokenize': (...to) => this.#run(...to, detokenize, answerContent),
      'GET /v1/models': (req, res) => sendJson(res, 200, jsonOf({ object: 'list', data: [this.name, ...this.adapters.keys()].map((name) => this.#describe(name)) })),
      [`GET ${MODEL}`]: (req, res, { id }) => {
        this.adapterOf(id);
        return sendJson(res, 200, jsonOf(this.#describe(id)));
      },
      'GET /healthz': (req, res) => this.#probe(res, this.#unwell()),
      'GET /readyz': (req, res) => this.#ready(res),
      'GET /health': (req, res) => this.#ready(res), // the name that gateways ask by
      'GET /metrics': (req, res) => sendText(res, 200, 'text/plain; version=0.0.4', this.metrics.text(model.timings())),
    };
    for (const [path, file] of Object.entries(PAGE)) this.routes[`GET ${path}`] = (req, res) => page(res, file);
  }

  async handle(req, res) {
    const { host, path } = targetOf(req);
    let route = path.startsWith('/v1/models/') ? MODEL : path;
    const known = ['GET', 'POST'].filter((method) => Object.hasOwn(this.routes, `${method} ${route}`));
    if (known.length === 0) route = '/'; // as others count what is nowhere
    const access = new Access(req, res);
    res.once('close', () => {
      // nginx's number; here of every request whose client has not taken all of its answer.
      const status = res.writableFinished ? res.statusCode : 499;
      if (status === 499) this.metrics.abandoned++;
      this.metrics.request(route, status, access.seconds());
      this.accessLog(access.line(route, status));
    });
    // An answer that waits behind another one of its connection (pipelining) does not hear of the
    // connection's end.
    const gone = () => {
      if (res.socket === null && !res.writableFinished) res.destroy().emit('close');
    };
    req.socket.once('close', gone);
    res.once('close', () => req.socket.off('close', gone));
    try {
      if (req.headersDistinct.host?.length > 1) throw badRequest(null, 'The request has more than one Host header.');
      this.auth.checkHost(host);
      const decoded = decodedPath(path);
      if (this.auth.cors(req, res)) return;
      const cacheSalt = this.auth.admit(req, route, Object.hasOwn(PAGE, path));
      const method = req.method === 'HEAD' ? 'GET' : req.method;
      if (known.includes(method)) {
        await this.routes[`${method} ${route}`](req, res, { access, cacheSalt, id: decoded.slice('/v1/models/'.length) });
      } else if (known.length > 0) {
        res.setHeader('allow', known.join(', '));
        throw new ApiError(405, `${req.method} is not allowed here; use ${known.join(' or ')}`);
      } else {
        throw new ApiError(404, `unknown URL: ${req.method} ${path}`, { code: 'unknown_url' });
      }
    } catch (error) {
      await this.fail(res, error);
    }
  }

  // The library's id for the model of that name; 0: it is no adapter.
  adapterOf(name) {
    if (name === this.name) return 0;
    if (this.adapters.has(name)) return this.adapters.get(name);
    const names = [this.name, ...this.adapters.keys()].map((one) => `'${one}'`).join(', ');
    throw new ApiError(404, `The model '${name}' does not exist; this server has ${names}.`, { param: 'model', code: 'model_not_found' });
  }

  // Cancels what runs.
  abandonAll() {
    for (const abort of this.#aborts) abort.abort(shuttingDown());
  }

  // Runs a request and sends its answer, which is in nobody's way then: however slowly it is taken,
  // the request has left the queue.
  async #run(req, res, ...how) {
    const whole = await this.#result(req, res, ...how);
    if (whole !== undefined) await sendJson(res, 200, whole);
    else await taken(res, 'finish'); // the end of a stream
  }

  // Reads a request, waits for nothing, runs it, and stops when the client leaves. Gives the bytes
  // of a whole answer.
  async #result(req, res, context, parse, run) {
    const abort = this.#limitTime(res);
    this.#aborts.add(abort);
    res.once('close', () => this.#aborts.delete(abort));
    const body = await readObject(req, res, this, abort.signal);
    const job = { ...parse(this, body), ...context };
    if (this.draining) throw shuttingDown();
    // What a request cannot have running at a time keeps nobody out: the model takes requests in
    // turn. That one has more than there is room for does not matter either: on a busy service such
    // a one would never come in.
    const weight = Math.min((job.sequences / job.n) * Math.max(job.beams ?? 0, job.n), this.slots);
    if (this.#inside >= this.limit) {
      const now = `${this.#inside} sequences run or wait, and requests are taken while they are fewer than ${this.limit}`;
      throw busy(`The queue is full: ${now}. Try again later.`);
    }
    let left = false;
    const onClose = () => {
      left = !res.writableFinished;
      abort.abort();
    };
    res.once('close', onClose);
    this.#inside += weight;
    try {
      if (!res.destroyed) return await run(this, job, res, abort.signal);
    } catch (error) {
      if (error.code === 'LLAMA_CANCELLED' && abort.signal.aborted) error = abort.signal.reason;
      const param = job.constraint && isAboutGrammar(error) ? job.constraint.field : job.param;
      if (!left && !res.destroyed) throw forbidsAll(error, job) ?? this.apiError(error, param, job.copies);
    } finally {
      this.#inside -= weight;
      res.off('close', onClose);
    }
  }

  // Ends what a request does, or at last its connection, when it has taken as long as it may.
  #limitTime(res) {
    const abort = new AbortController();
    if (this.timeout > 0) {
      const cut = () => {
        abort.abort(timedOut(this.timeout));
        // Nobody takes what there is, or a whole answer is not taken in its time.
        if (res.writableEnded || res.writableNeedDrain || res.hasHeader('content-length')) res.destroy();
      };
      const timer = setTimeout(cut, this.timeout * 1000);
      res.once('close', () => clearTimeout(timer));
    }
    return abort;
  }

  // A model in the protocol's form; an adapter has a parent, as vLLM says it.
  #describe(id) {
    return { id, object: 'model', created: this.created, owned_by: 'llamabi', ...(id !== this.name && { parent: this.name }) };
  }

  // Whether to send it requests; /healthz says whether it works.
  #ready(res) {
    return this.#probe(res, this.leaving ? 'shutting down' : this.#unwell());
  }

  // What is wrong with the model, before a request finds it out, or null.
  #unwell() {
    try {
      this.model.checkHealth();
    } catch (error) {
      this.broken ||= error.code === 'LLAMA_E_POISONED';
    }
    return this.broken ? 'the model is unusable' : null;
  }

  #probe(res, trouble) {
    return sendText(res, trouble ? 503 : 200, 'text/plain', `${trouble ?? 'ok'}\n`);
  }

  // Whose fault an error is; `param` is the field that has the prompts, each of them n times.
  apiError(error, param = null, n = 1) {
    if (error instanceof ApiError) return error;
    switch (error instanceof LlamaError && error.code) {
      case 'LLAMA_E_TOO_LONG':
        return new ApiError(400, tooLong(error.message, param, n), {
          param,
          code: 'context_length_exceeded',
          ...promptLength(error.message),
          n_ctx: this.room,
        });
      case 'LLAMA_E_INVALID_ARGUMENT':
      case 'LLAMA_E_UTF8':
      case 'LLAMA_E_BATCH':
        return badRequest(param, error.message);
      case 'LLAMA_E_BUSY': // more calls than the model lets wait
        return busy('The queue is full. Try again later.');
      case 'LLAMA_E_POISONED':
      case 'LLAMA_E_PEER':
      case 'LLAMA_E_DEVICE':
      case 'LLAMA_E_INTERNAL':
        this.broken = true;
    }
    this.log(`internal error: ${error.stack}`);
    return new ApiError(500, error instanceof LlamaError ? error.message : 'The server had an error.', { type: 'server_error' });
  }

  async fail(res, error) {
    if (error.code === 'ECONNRESET') return; // the client left before it had sent its request
    const api = this.apiError(error);
    if (res.destroyed || res.writableEnded) return;
    if ([429, 503].includes(api.status) && !res.headersSent) res.setHeader('retry-after', '1');
    if (!res.headersSent) return sendJson(res, api.status, jsonOf(api.body()));
    res.end(`data: ${JSON.stringify(api.body())}\n\n`); // a stream that has begun
    return taken(res, 'finish');
  }
}

// Of a prompt that does not fit, by llama-server's name, so that a page can say it in its own
// words. The library counts a very long text only as far as it must, and says "at least".
function promptLength(message) {
  const [, least, n] = /(at least )?(\d+) tokens/.exec(message) ?? [];
  return n && { [least ? 'n_prompt_tokens_min' : 'n_prompt_tokens']: Number(n) };
}

function busy(message) {
  return new ApiError(429, message, { type: 'rate_limit_error', code: 'rate_limit_exceeded' });
}

// The library's sentence about a prompt in the request's terms.
function tooLong(message, param, n) {
  const [, index, length, room] = /^(?:prompt|dialog) (\d+) has (.+?)[,;] max_seq_len is (\d+)/.exec(message) ?? [];
  if (index === undefined) return message;
  const which = index >= n ? `[${Math.floor(index / n)}]` : '';
  return `'${param}${which}' has ${length}; the model has room for ${room} tokens, those of the answer included.`;
}

// The host and the path that a request is for: of its line's URL, if that is a whole one.
function targetOf(req) {
  const [, authority, rest] = /^https?:\/\/([^/?#]*)(.*)$/i.exec(req.url) ?? [];
  return { host: authority ?? req.headers.host ?? '', path: (rest ?? req.url).split('?', 1)[0] };
}

function decodedPath(path) {
  try {
    return decodeURIComponent(path);
  } catch {
    throw badRequest(null, 'The escapes of the URL are not valid.');
  }
}

async function page(res, file) {
  const text = await readFile(new URL(`public/${file}`, import.meta.url), 'utf8');
  res.setHeader('content-security-policy', "default-src 'self'; img-src data:");
  res.setHeader('cache-control', 'no-cache');
  await sendText(res, 200, TYPES[file.split('.').at(-1)], text);
}
