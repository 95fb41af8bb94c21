// What the page knows of the server: requests, streams, tokens, and errors in words for people.

/**
 * What went wrong, for the status line, and what would help: less text, or an API key. A refusal is
 * of what was asked, and comes again.
 */
export class Trouble extends Error {
  constructor(message, { tooLong = false, needsKey = false, isRefusal = false } = {}) {
    super(message);
    Object.assign(this, { tooLong, needsKey, isRefusal });
  }
}

const KEY = 'api-key'; // until the tab is closed
function authorization() {
  const key = sessionStorage.getItem(KEY) ?? '';
  // All keys are of visible ASCII characters. A header of others cannot be sent.
  return /^[\x21-\x7e]+$/.test(key) ? { authorization: `Bearer ${key}` } : {};
}
export const useKey = (key) => sessionStorage.setItem(KEY, key);

// Errors by their codes, where the code says all.
const SAID = new Map([
  ['loading', 'The model is still being loaded. Try again in a moment.'],
  ['model_not_found', 'The server has another model now. Reload the page.'],
  ['not_finite', 'The model cannot go on from this text: what it computes is not finite'],
  ['shutting_down', 'The server is shutting down'],
  ['timeout', 'The server ended this request: it took too long'],
  ['unread', 'The server ended this request: it was not read for too long'],
]);

const count = (n) => n.toLocaleString('en');

// An error of the server, told to somebody who has never seen its API.
function explain(status, error, body) {
  const text = body.messages ? 'conversation' : 'prompt';
  if (error.code === 'context_length_exceeded') {
    const { n_prompt_tokens: n, n_prompt_tokens_min: least, n_ctx: room } = error;
    const tooLong = { tooLong: true };
    if (n === room && room) return new Trouble(`No room for another token: all ${count(room)} are used`, tooLong);
    const length = n ? `${count(n)} tokens` : least && `at least ${count(least)} tokens`;
    return new Trouble(`The ${text} is too long${length ? `: ${length}, room for ${count(room)}` : ''}`, tooLong);
  }
  if (status === 413) return new Trouble(`The ${text} is too long to be sent`, { tooLong: true });
  if (status === 401) return new Trouble(sessionStorage.getItem(KEY) ? 'The server does not know this API key' : 'The server asks for an API key', { needsKey: true });
  if (status === 429) return new Trouble('The server is busy. Try again in a moment.');
  // Of a grammar: where and what; the lines that follow, in one line here, show what is on the
  // page.
  const said = String(error.message)
    .replace(/^the grammar: at (\d+)\((\d+)\): /, 'Not a grammar, line $1, column $2: ')
    .replace(/^the grammar: /, 'Not a grammar: ')
    .replace(/^(Not a grammar.*?)\\n {2}.*$/s, '$1');
  return new Trouble(SAID.get(error.code) ?? (status >= 500 ? 'Something went wrong on the server' : said), { isRefusal: status === 400 });
}

async function ask(path, init, body) {
  const response = await fetch(path, { ...init, headers: { ...init.headers, ...authorization() } }).catch((error) => {
    throw error.name === 'AbortError' ? error : new Trouble('The server does not answer');
  });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({ error: { message: response.statusText } }));
  throw explain(response.status, error, body);
}

export const post = (path, body, signal) =>
  ask(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body), signal }, body);

/** The name of the server's model. */
export async function modelName() {
  return (await (await ask('/v1/models', {}, {})).json()).data[0].id;
}

/** The chunks of a streamed answer. */
export async function* chunks(response, body) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === 'AbortError' ? error : new Trouble('The connection was lost');
    });
    if (done) throw new Trouble('The connection was lost'); // a whole answer says [DONE]
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith('data: ')) continue;
      if (part === 'data: [DONE]') return;
      const chunk = JSON.parse(part.slice(6));
      if (chunk.error) throw explain(chunk.error.type === 'server_error' ? 500 : 400, chunk.error, body);
      yield chunk;
    }
  }
}

/** A token of either protocol's chunk: { text, name, p, top, draft }, or null. */
export function tokenOf({ text, delta, logprobs }, isFirst) {
  if (!logprobs) return null;
  let name, logprob, top, draft;
  if (logprobs.content) {
    if (logprobs.content.length === 0) return null;
    ({ token: name, logprob, top_logprobs: top, draft } = logprobs.content[0]);
    top = top.map((a) => [a.token, a.logprob]);
  } else {
    if (logprobs.tokens.length === 0) return null;
    name = logprobs.tokens[0];
    logprob = logprobs.token_logprobs[0];
    top = Object.entries(logprobs.top_logprobs[0]);
    draft = logprobs.drafts?.[0];
  }
  // The library begins a completion without the first token's space; behind a prompt it belongs
  // there.
  if (isFirst && !delta && name === ` ${text}`) text = name;
  text ??= delta.content ?? '';
  top = top.map(([name, l]) => ({ text: name === '' ? '<end>' : name, p: Math.exp(l) })).sort((a, b) => b.p - a.p);
  return { text, name, p: Math.exp(logprob), top, draft };
}
