// Answers and errors in the protocol's form.

export class ApiError extends Error {
  constructor(status, message, { type = 'invalid_request_error', param = null, code = null } = {}) {
    super(message);
    Object.assign(this, { status, type, param, code });
  }
  body() {
    return { error: { message: this.message, type: this.type, param: this.param, code: this.code } };
  }
}

export const badRequest = (param, message) => new ApiError(400, message, { param });

export function shuttingDown() {
  return new ApiError(503, 'The server is shutting down.', { type: 'server_error', code: 'shutting_down' });
}

export function send(res, status, type, body) {
  res.writeHead(status, { 'content-type': `${type}; charset=utf-8`, 'content-length': Buffer.byteLength(body) });
  res.end(body);
}

export function sendJson(res, status, value) {
  const body = JSON.stringify(value);
  res.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) });
  res.end(body);
}
