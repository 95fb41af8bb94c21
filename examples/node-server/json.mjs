// What JSON's values are, and how they were written.

export const MOST_NESTED = 64; // as deep as nothing is that the protocol has

/** The text that a request's object was parsed from. */
export const source = Symbol('source');

export const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

/** Whether a text is JSON of an object. */
export function isObjectText(text) {
  try {
    return isObject(JSON.parse(text));
  } catch {
    return false;
  }
}

/** Whether all numbers of a JSON value are finite; 1e999 is not. */
export function allFinite(value) {
  if (typeof value === 'number') return Number.isFinite(value);
  return typeof value !== 'object' || value === null || Object.values(value).every(allFinite);
}

/** What a JSON value is, in words. */
export function kind(value) {
  if (value === null || value === undefined) return 'null';
  if (Array.isArray(value)) return 'an array';
  return typeof value === 'object' ? 'an object' : `a ${typeof value}`;
}

/**
 * A text as the model can have it: half of a surrogate pair, which JSON's escapes can make, becomes
 * U+FFFD.
 */
export const wellFormed = (text) => Buffer.from(text).toString();

/**
 * Names and texts of an object's values, or of an array's (without names), as they are written in
 * JSON that has been parsed. Parsed values have lost the order of some keys, and digits of numbers.
 */
export function rawParts(json) {
  const parts = [];
  let [name, from, depth, quoted] = [undefined, 0, 0, false];
  for (let i = 0; i < json.length; i++) {
    const c = json[i];
    if (quoted) {
      if (c === '\\') i++;
      else if (c === '"') quoted = false;
    } else if (c === '"') quoted = true;
    else if ((c === '{' || c === '[') && ++depth === 1) from = i + 1;
    else if (c === ':' && depth === 1) {
      name = JSON.parse(json.slice(from, i));
      from = i + 1;
    } else if ((c === ',' && depth === 1) || ((c === '}' || c === ']') && --depth === 0)) {
      const value = json.slice(from, i).trim();
      if (value !== '') parts.push([name, value]);
      from = i + 1;
    }
  }
  return parts;
}

// A pair of surrogates, half of one, and the beginning of any other escape.
const ESCAPES = /\\(?:ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|ud[89a-f][0-9a-f]{2}|.)/gis;

/**
 * A field of a request, or a part of one, as it was sent, with the order of its keys and every
 * digit, but that half of a surrogate pair is U+FFFD, as in all that has been read.
 */
export function rawOf(body, ...path) {
  const text = path.reduce((whole, name) => rawParts(whole).findLast(([key]) => key === name)[1], body[source]);
  return text.replace(ESCAPES, (escape) => (escape.length === '\\ud800'.length ? '\\ufffd' : escape));
}

const [QUOTE, BACKSLASH, OPEN, CLOSE] = Buffer.from('"\\[]');
const BRACE = 0x20; // from a bracket to a brace

/** Deep JSON takes far longer to parse than flat JSON, and nothing else can happen meanwhile. */
export function nestedTooDeep(bytes) {
  let depth = 0;
  let quoted = false;
  for (let i = 0; i < bytes.length; i++) {
    const byte = bytes[i];
    if (byte === BACKSLASH) i++;
    else if (byte === QUOTE) quoted = !quoted;
    else if (quoted) continue;
    else if ((byte | BRACE) === (OPEN | BRACE)) {
      if (++depth > MOST_NESTED) return true;
    } else if ((byte | BRACE) === (CLOSE | BRACE)) depth--;
  }
  return false;
}
