// /tokenize and /detokenize, as llama-server has them.
import { badRequest, jsonOf } from './http.mjs';
import { kind, wellFormed } from './json.mjs';
import { checkNames, flag, tokensOf } from './request.mjs';

export function tokenize(service, body) {
  checkNames(body, ['content', 'add_special', 'parse_special', 'with_pieces']);
  if (typeof body.content !== 'string') throw badRequest('content', `'content' must be a string, not ${kind(body.content)}.`);
  if (flag(body, 'parse_special')) throw badRequest('parse_special', "'parse_special' must be false: a special token's text is a text as any other here.");
  return { sequences: 1, param: 'content', text: wellFormed(body.content), bos: flag(body, 'add_special'), pieces: flag(body, 'with_pieces') };
}

export async function answerTokens({ model }, job, res, signal) {
  const tokens = await model.encodeAsync(job.text, { bos: job.bos, signal });
  return jsonOf({ tokens: job.pieces ? Array.from(tokens, (id) => ({ id, piece: pieceOf(model, id) })) : [...tokens] });
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
  return { sequences: 1, param: 'tokens', tokens: Int32Array.from(tokens) };
}

export async function answerContent({ model }, job) {
  return jsonOf({ content: await model.decodeAsync(job.tokens) });
}
