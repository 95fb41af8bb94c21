// Who may ask: the name that the host is called by, pages of other origins, API keys; and whose
// cached prefixes a request finds.
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { ApiError, badRequest, PROBES } from './http.mjs';

// As in llama-server, these need no key.
const OPEN = new Set([...PROBES, '/v1/models', '/v1/models/{id}']);

// This process's key for digests. Digests are of equal length, and tell nothing of an API key.
const secret = randomBytes(32);
const digest = (text) => createHmac('sha256', secret).update(text).digest();
const nonZero = (bytes) => bytes.readBigUInt64LE() | 1n;

export class Auth {
  #hosts; // null: any
  #origins;
  #keys;
  #scope;

  // `address` is where the server listens.
  constructor({ address, allowedHosts, origins, keys, cacheScope }) {
    const loopback = /^(127\.|::1$|::ffff:127\.)/.test(address);
    const bound = address.includes(':') ? `[${address}]` : address;
    const names = ['localhost', '127.0.0.1', '[::1]', bound, ...allowedHosts];
    this.#hosts = loopback || allowedHosts.length > 0 ? new Set(names) : null;
    this.#origins = new Set(origins);
    this.#keys = keys.map(digest);
    this.#scope = cacheScope;
  }

  // A page of another site can have its own name lead to this address (DNS rebinding): then the
  // browser takes it for that site's own server, but still sends that name.
  checkHost(host) {
    if (!/^[\w!$%&'()*+,\-.:;=[\]~]*$/.test(host)) throw badRequest(null, 'The Host header is not valid.');
    const name = host.toLowerCase().replace(/:\d*$/, '');
    if (this.#hosts === null || this.#hosts.has(name)) return;
    throw new ApiError(403, 'This host is not known by that name; --allowed-host allows further ones.', { code: 'host_not_allowed' });
  }

  // Lets pages of the origins that were named read the answer. True: the request was the browser's
  // question whether it may send another one, and has been answered.
  cors(req, res) {
    if (this.#origins.size === 0) return false;
    res.setHeader('vary', 'Origin');
    const { origin } = req.headers;
    if (origin === undefined || !(this.#origins.has('*') || this.#origins.has(origin))) return false;
    res.setHeader('access-control-allow-origin', origin);
    res.setHeader('access-control-expose-headers', 'x-request-id, retry-after');
    if (req.method !== 'OPTIONS' || req.headers['access-control-request-method'] === undefined) return false;
    res.setHeader('access-control-allow-methods', 'GET, POST');
    res.setHeader('access-control-allow-headers', req.headers['access-control-request-headers'] ?? '');
    res.setHeader('access-control-max-age', '600');
    res.writeHead(204).end();
    return true;
  }

  // The salt of the request's cached prefixes; throws where it brings none of the keys. `route` is
  // its path.
  admit(req, route, isPage) {
    const given = /^bearer +(\S+) *$/i.exec(req.headers.authorization ?? '')?.[1] ?? req.headers['x-api-key'];
    let known = null;
    if (this.#keys.length > 0 && !isPage && !OPEN.has(route)) {
      const mine = digest(given ?? '');
      // All of them are compared, so that the time tells nothing.
      for (const key of this.#keys) if (timingSafeEqual(key, mine)) known = mine;
      if (known === null) {
        throw new ApiError(401, given === undefined ? 'An API key is missing.' : 'The API key is not valid.', { type: 'authentication_error', code: 'invalid_api_key' });
      }
    }
    if (this.#scope === 'request') return nonZero(randomBytes(8));
    return this.#scope === 'key' && known !== null ? nonZero(known) : 0n;
  }
}
