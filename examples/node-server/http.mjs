// Answers and errors in the protocol's form.
import { wellFormed } from './json.mjs';
import { Unsent } from './sending.mjs';

export class ApiError extends Error {
  constructor(status, message, { type = 'invalid_request_error', param = null, code = null, ...more } = {}) {
    super(wellFormed(message)); // it may have names and values of the request
    Object.assign(this, { status, type, param: param && wellFormed(param), code, more });
  }
  body() {
    return { error: { message: this.message, type: this.type, param: this.param, code: this.code, ...this.more } };
  }
}

export const badRequest = (param, message) => new ApiError(400, message, { param });

export function shuttingDown() {
  return new ApiError(503, 'The server is shutting down.', { type: 'server_error', code: 'shutting_down' });
}

export function timedOut(seconds) {
  return new ApiError(503, `The request took longer than ${seconds} s, the most that this server allows.`, { type: 'server_error', code: 'timeout' });
}

/** The protocol's names for ends of an answer. */
export const FINISH = { stop: 'stop', stop_string: 'stop', length: 'length', time: 'length' };

// An answer that the model has ended for another reason than its text.
export function endedEarly(reason) {
  const messages = {
    unread: 'The answer was not read for too long.',
    // The model goes on with other inputs.
    not_finite: 'The model made no finite number for this input, so no token is possible.',
  };
  const message = messages[reason] ?? `The answer ended early: ${reason}.`;
  return new ApiError(reason === 'unread' ? 503 : 500, message, { type: 'server_error', code: reason });
}

/** What those ask who start a service, and who send it requests; without a key. */
export const PROBES = ['/healthz', '/readyz', '/health'];

// Until the model is loaded.
export function notLoaded(req, res) {
  const error = new ApiError(503, 'The model is being loaded. Try again later.', { type: 'server_error', code: 'loading' });
  res.setHeader('retry-after', '1');
  if (PROBES.includes(req.url.split('?')[0])) sendText(res, 503, 'text/plain', 'the model is being loaded\n');
  else sendJson(res, 503, jsonOf(error.body()));
}

/** An answer's bytes. */
export const jsonOf = (value) => Buffer.from(JSON.stringify(value));

const unsent = new Unsent();

/** Sends a whole answer. Resolves when its client has it, or has left. */
export function send(res, status, type, bytes) {
  res.writeHead(status, { 'content-type': type, 'content-length': bytes.length });
  return unsent.send(res, bytes);
}

export const sendText = (res, status, type, text) => send(res, status, `${type}; charset=utf-8`, Buffer.from(text));

export const sendJson = (res, status, bytes) => send(res, status, 'application/json', bytes);
