// What a stream says beside its choices, if it is asked: figures, the beams of a search, and what
// became of guesses.
import { badRequest } from './http.mjs';
import { isObject, kind } from './json.mjs';

// OpenAI's two, and two of our own.
const OPTIONS = ['include_usage', 'include_obfuscation', 'include_beams', 'include_drafts'];

/** What `stream_options` asks for. `flag` reads a field that is true or false. */
export function streamOptionsOf(body, stream, flag) {
  const options = body.stream_options ?? {};
  if (!isObject(options)) throw badRequest('stream_options', `'stream_options' must be an object, not ${kind(options)}.`);
  if (body.stream_options != null && !stream) throw badRequest('stream_options', "'stream_options' needs 'stream' to be true.");
  for (const name of Object.keys(options).sort()) {
    if (OPTIONS.includes(name) || options[name] === null) continue;
    throw badRequest(`stream_options.${name}`, `'stream_options.${name}' is not supported.`);
  }
  const own = (name) => `stream_options.${name}`; // as an error names it
  const [includeUsage, , includeBeams, includeDrafts] = OPTIONS.map((name) => flag({ [own(name)]: options[name] }, own(name)));
  return { includeUsage, includeBeams, includeDrafts };
}

/** Refuses what a stream of such a request has nothing of. */
export function checkStreamOptions({ includeBeams, includeDrafts }, { isSearch, logprobs }) {
  if (includeBeams && !isSearch) throw badRequest('stream_options.include_beams', "'stream_options.include_beams' needs 'use_beam_search' to be true.");
  if (includeDrafts && !logprobs) throw badRequest('stream_options.include_drafts', "'stream_options.include_drafts' needs 'logprobs'.");
}
