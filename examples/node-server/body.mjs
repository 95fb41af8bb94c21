// Requests' bodies: of JSON, not too long, not too deep.
import { isUtf8 } from 'node:buffer';
import { ApiError, badRequest } from './http.mjs';
import { allFinite, isObject, kind, MOST_NESTED, nestedTooDeep, source } from './json.mjs';

const PATIENCE = 30; // seconds that a body may take to arrive

// A request's object. What is not JSON by its type is not read: a form of another site's page can
// send that, without the browser asking first. Rejects with the signal's reason when that is
// aborted.
export async function readObject(req, res, { maxBody, timeout }, signal) {
  const type = (req.headers['content-type'] ?? '').split(';', 1)[0].trim().toLowerCase();
  if (type !== 'application/json') {
    req.resume();
    throw new ApiError(415, `The request's Content-Type must be application/json.`, { code: 'unsupported_media_type' });
  }
  const coding = (req.headers['content-encoding'] ?? '').trim().toLowerCase();
  if (coding !== '' && coding !== 'identity') {
    req.resume();
    res.setHeader('accept-encoding', 'identity');
    throw new ApiError(415, 'The request has a Content-Encoding; only bodies without one are read.', { code: 'unsupported_content_encoding' });
  }
  const bytes = await inTime(readBytes(req, res, maxBody), res, timeout > 0 ? Math.min(PATIENCE, timeout) : PATIENCE, signal);
  if (!isUtf8(bytes)) throw badRequest(null, 'The request is not UTF-8.');
  if (nestedTooDeep(bytes)) throw badRequest(null, `The request is nested more than ${MOST_NESTED} deep.`);
  let body;
  const text = bytes.toString();
  try {
    body = JSON.parse(text);
  } catch (error) {
    throw badRequest(null, `The request is not valid JSON: ${error.message}.`);
  }
  if (!allFinite(body)) throw badRequest(null, 'The request is not valid JSON: a number is too large.');
  if (!isObject(body)) throw badRequest(null, `The request must be a JSON object, not ${kind(body)}.`);
  body[source] = text;
  return body;
}

async function readBytes(req, res, maxBody) {
  const chunks = [];
  let size = 0;
  for await (const chunk of req.iterator({ destroyOnReturn: false })) {
    size += chunk.length;
    if (size > maxBody) {
      // The rest is read and thrown away for a while, or the client would not read the answer.
      req.resume();
      res.setHeader('connection', 'close');
      setTimeout(() => req.destroy(), 5000).unref();
      throw new ApiError(413, `The request has more than ${maxBody} bytes.`);
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

// A body that does not come must not hold up the service's end.
async function inTime(reading, res, seconds, signal) {
  reading.catch(() => {}); // what it says after something else has ended the request
  let timer;
  let onAbort;
  const other = new Promise((_, reject) => {
    const late = () => new ApiError(408, `The request's body took longer than ${seconds} s to arrive.`, { code: 'request_timeout' });
    timer = setTimeout(() => reject(late()), seconds * 1000);
    onAbort = () => reject(signal.reason.code === 'timeout' ? late() : signal.reason);
    signal.addEventListener('abort', onAbort);
  });
  try {
    return await Promise.race([reading, other]);
  } catch (error) {
    // What is left of the body is not read, so the connection ends.
    if (!res.headersSent) res.setHeader('connection', 'close');
    throw error;
  } finally {
    clearTimeout(timer);
    signal.removeEventListener('abort', onAbort);
  }
}
