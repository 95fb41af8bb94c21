// Beam searches: their fields, as vLLM names them.
import { badRequest, FINISH } from './http.mjs';
import { bytesOf, droppedSpaces, printable, writable } from './spelling.mjs';

// What only a search has.
const SEARCH = ['early_stopping', 'length_penalty', 'num_beams'];
export const BEAM_FIELDS = [...SEARCH, 'use_beam_search'];

const EARLY = [false, true, 'never'];

// The beams and options of a search; null: there is none. Its width is num_beams, or best_of, or n.
// The answers are the n best, and nothing is drawn at random. `read` has what reads a field.
export function searchOf(body, { n, isOnlyWhole, slots }, { flag, either, integer, number }) {
  if (!flag(body, 'use_beam_search')) {
    for (const name of SEARCH) if (body[name] != null) throw badRequest(name, `'${name}' needs 'use_beam_search' to be true.`);
    return null;
  }
  if (isOnlyWhole) {
    const why = "which answers are best is not known before their end ('stream_options.include_beams' shows the search)";
    throw badRequest('use_beam_search', `'use_beam_search' and 'stream' are true: ${why}.`);
  }
  let width = either(body, 'num_beams', 'best_of');
  const beams = integer(body, width, n, 1, slots);
  if (body[width] == null) width = 'n';
  if (beams > slots) throw badRequest(width, `'${width}' is ${beams}, more beams than the ${slots} that run at the same time.`);
  if (beams < n) throw badRequest(width, `'${width}' is ${beams}, must be at least 'n', ${n}.`);
  const early = body.early_stopping ?? false;
  if (!EARLY.includes(early)) throw badRequest('early_stopping', "'early_stopping' must be true, false or 'never'.");
  return {
    beams,
    options: {
      lengthPenalty: number(body, 'length_penalty', 1, -64, 64),
      earlyStopping: early,
      numBeams: beams,
      numReturnSequences: n,
      temperature: 0, // a search of one beam takes the most likely token
    },
  };
}

/**
 * What a stream says of a beam: its last token, where that stands in the tree, and how good it is.
 * The first one of a text is without the space that the text drops.
 */
export function beamOf(model, { index, step, beam, parent, token, sumLogprob, score, finishReason }, isFirst) {
  const bytes = bytesOf(model, token);
  return {
    index,
    step,
    beam,
    parent,
    token,
    text: printable(isFirst ? bytes.subarray(droppedSpaces(model, [], token)) : bytes),
    sum_logprob: writable(sumLogprob),
    score: writable(score),
    finish_reason: finishReason && FINISH[finishReason],
  };
}
