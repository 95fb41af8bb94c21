// What every request has: an id, and a line in the access log. Prompts, keys and unknown paths are
// in neither.
import { createWriteStream, openSync } from 'node:fs';
import { randomUUID } from 'node:crypto';

// Gives the function that writes a line; `log` hears if that fails.
export function accessLog(target, log) {
  if (target === 'none') return () => {};
  const out = target === '-' ? process.stdout : createWriteStream(null, { fd: openSync(target, 'a') });
  out.on('error', (error) => log(`the access log cannot be written: ${error.message}`));
  return (line) => out.write(`${JSON.stringify(line)}\n`);
}

// Gives the request an id, the client's own if it has one, and counts what is sent. The two figures
// of tokens are for whoever runs it to set.
export class Access {
  promptTokens = 0;
  generatedTokens = 0;
  #begin = performance.now();
  #time = new Date();
  #bytes = 0;

  constructor(req, res) {
    const given = req.headers['x-request-id'];
    this.id = /^[\w.:-]{1,128}$/.test(given ?? '') ? given : randomUUID();
    res.setHeader('x-request-id', this.id);
    this.remote = req.socket.remoteAddress;
    this.method = req.method;
    for (const name of ['write', 'end']) {
      const send = res[name];
      res[name] = (chunk, ...rest) => {
        if (chunk != null && typeof chunk !== 'function' && this.method !== 'HEAD') this.#bytes += Buffer.byteLength(chunk);
        return send.call(res, chunk, ...rest);
      };
    }
  }

  seconds() {
    return (performance.now() - this.#begin) / 1000;
  }

  line(route, status) {
    return {
      time: this.#time.toISOString(),
      request_id: this.id,
      remote: this.remote,
      method: this.method,
      route,
      status,
      bytes: this.#bytes,
      duration_ms: Math.round(this.seconds() * 1e6) / 1e3,
      prompt_tokens: this.promptTokens,
      generated_tokens: this.generatedTokens,
    };
  }
}
