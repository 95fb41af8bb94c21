// /tokenize and /detokenize, as llama-server has them.
import { setImmediate as othersTurn } from 'node:timers/promises';
import { badRequest, jsonOf } from './http.mjs';
import { kind, wellFormed } from './json.mjs';
import { checkNames, flag, tokensOf } from './request.mjs';

export function tokenize(service, body) {
  checkNames(body, ['content', 'add_special', 'parse_special', 'with_pieces']);
  if (typeof body.content !== 'string') throw badRequest('content', `'content' must be a string, not ${kind(body.content)}.`);
  if (flag(body, 'parse_special')) throw badRequest('parse_special', "'parse_special' must be false: a special token's text is a text as any other here.");
  return { sequences: 1, n: 1, param: 'content', text: wellFormed(body.content), bos: flag(body, 'add_special'), pieces: flag(body, 'with_pieces') };
}

const STRIDE = 4096; // tokens that are written before other requests have their turn

export async function answerTokens({ model }, job, res, signal) {
  const tokens = await model.encodeAsync(job.text, { bos: job.bos, signal });
  const written = new Map(); // of each token that has been met, what the list has for it
  const writtenOf = (id) => {
    if (!written.has(id)) written.set(id, JSON.stringify({ id, piece: pieceOf(model, id) }));
    return written.get(id);
  };
  const parts = [Buffer.from('{"tokens":[')];
  for (let at = 0; at < tokens.length; at += STRIDE) {
    if (at > 0) await othersTurn();
    signal.throwIfAborted();
    const some = tokens.subarray(at, at + STRIDE);
    parts.push(Buffer.from((at > 0 ? ',' : '') + (job.pieces ? Array.from(some, writtenOf) : some).join()));
  }
  return Buffer.concat([...parts, Buffer.from(']}')]);
}

const strict = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

// A part of a code point is a list of its bytes.
function pieceOf(model, token) {
  const bytes = model.tokenBytes(token);
  try {
    return strict.decode(bytes);
  } catch {
    return [...bytes];
  }
}

export function detokenize(service, body) {
  checkNames(body, ['tokens']);
  const tokens = tokensOf('tokens', 'tokens', body.tokens, service.vocabSize);
  return { sequences: 1, n: 1, param: 'tokens', tokens: Int32Array.from(tokens) };
}

export async function answerContent({ model }, job) {
  return jsonOf({ content: await model.decodeAsync(job.tokens) });
}
