// Tool calls in an answer's text, in the forms that chat templates ask for.
import { isObject, isObjectText, MOST_NESTED, rawParts, wellFormed } from './json.mjs';

/**
 * How models write calls: a marker, then JSON that begins with `open`, then perhaps `close`.
 * Without its marker a call of a `bare` form may still begin the answer, or follow another call.
 */
export const FORMS = {
  hermes: { marker: '<tool_call>', open: '{', close: '</tool_call>', bare: false }, // Hermes, Qwen
  mistral: { marker: '[TOOL_CALLS]', open: '[', close: '', bare: false },
  llama: { marker: '<|python_tag|>', open: '{', close: ';', bare: true }, // Llama 3.1
};

const SPACES = ' \t\n\r';
// What JSON has outside strings, except brackets.
const OUTSIDE_STRINGS = `${SPACES},:+-.0123456789truefalsnE`;

const isSpace = (text, i) => SPACES.includes(text[i]);

/**
 * Takes an answer's text as it comes, and parts it into calls and the rest. A call is given out
 * once it is whole. What turns out to be none is part of the rest, unchanged. White space before a
 * call, or between a call and the end, belongs to the call.
 */
export class CallReader {
  #form;
  #names;
  #state; // start: a bare call may begin here; text; call; after: behind a call
  #held = ''; // not yet decided about
  #scan; // of #held in the state `call`
  #space = ''; // white space that would be dropped before a call
  #behind = false; // nothing but white space has come since the last call
  #out;

  /** `names` are the request's tools: a bare call must be of one of them. */
  constructor(form, names) {
    this.#form = form;
    this.#names = names;
    this.#state = form.bare ? 'start' : 'text';
  }

  /** `{ text, calls }` that are certain now; calls are `{ name, arguments }`, the latter JSON. */
  push(text) {
    this.#out = { text: '', calls: [] };
    this.#held += text;
    while (this[`_${this.#state}`]());
    return this.#out;
  }

  /** What the end of the answer adds. A call that is not whole is text. */
  end() {
    this.#out = { text: '', calls: [] };
    if (this.#state !== 'after') this.#say(this.#held);
    if (!this.#behind) this.#out.text += this.#space;
    return this.#out;
  }

  // Each state's method returns whether there is more to be done with what is held.

  _start() {
    let i = 0;
    while (isSpace(this.#held, i)) i++;
    this.#sayUpTo(i);
    if (this.#held === '') return false;
    if (this.#held[0] === this.#form.open) this.#begin(0);
    else this.#state = 'text';
    return true;
  }

  _text() {
    const { marker } = this.#form;
    const at = this.#held.indexOf(marker);
    if (at >= 0) {
      this.#sayUpTo(at);
      this.#begin(marker.length);
      return true;
    }
    let kept = Math.min(marker.length - 1, this.#held.length);
    while (!marker.startsWith(this.#held.slice(this.#held.length - kept))) kept--;
    this.#sayUpTo(this.#held.length - kept);
    return false;
  }

  // Follows the JSON of a call as far as it has come.
  _call() {
    const scan = this.#scan;
    for (; scan.at < this.#held.length; scan.at++) {
      const c = this.#held[scan.at];
      if (scan.start < 0) {
        if (isSpace(this.#held, scan.at)) continue;
        if (c !== this.#form.open) return this.#fail(scan.at);
        scan.start = scan.at;
      }
      if (scan.escaped) scan.escaped = false;
      else if (scan.quoted) {
        if (c === '\\') scan.escaped = true;
        else if (c === '"') scan.quoted = false;
      } else if (c === '"') scan.quoted = true;
      else if (c === '{' || c === '[') {
        if (++scan.depth > MOST_NESTED) return this.#fail(scan.at);
      } else if (c === '}' || c === ']') {
        if (--scan.depth === 0) return this.#complete(scan.at + 1);
      } else if (!OUTSIDE_STRINGS.includes(c)) return this.#fail(scan.at);
    }
    return false;
  }

  _after() {
    const { close, bare } = this.#form;
    let i = 0;
    while (isSpace(this.#held, i)) i++;
    this.#sayUpTo(i);
    if (this.#held.length < close.length && close.startsWith(this.#held)) return false;
    if (close !== '' && this.#held.startsWith(close)) {
      this.#held = this.#held.slice(close.length);
      this.#space = '';
    }
    this.#state = bare ? 'start' : 'text';
    return true;
  }

  #begin(at) {
    this.#state = 'call';
    this.#scan = { at, marked: at > 0, start: -1, depth: 0, quoted: false, escaped: false };
  }

  // What is held up to there is no call.
  #fail(at) {
    this.#sayUpTo(at);
    this.#state = 'text';
    return true;
  }

  #complete(end) {
    const { start, marked } = this.#scan;
    const calls = callsIn(this.#held.slice(start, end), marked ? null : this.#names);
    if (calls === null) return this.#fail(end);
    this.#out.calls.push(...calls);
    this.#held = this.#held.slice(end);
    this.#space = '';
    this.#behind = true;
    this.#state = 'after';
    return true;
  }

  #sayUpTo(end) {
    const text = this.#held.slice(0, end);
    this.#held = this.#held.slice(end);
    this.#say(text);
  }

  #say(text) {
    let end = text.length;
    while (end > 0 && isSpace(text, end - 1)) end--;
    if (end > 0) {
      this.#out.text += this.#space + text.slice(0, end);
      this.#space = '';
      this.#behind = false;
    }
    this.#space += text.slice(end);
  }
}

// The calls of an object, or of an array of these; null where it is anything else.
function callsIn(json, names) {
  let value;
  try {
    value = JSON.parse(json);
  } catch {
    return null;
  }
  const calls = Array.isArray(value) ? rawParts(json).map(([, item]) => callIn(item, names)) : [callIn(json, names)];
  return calls.length > 0 && calls.every((call) => call !== null) ? calls : null;
}

function callIn(json, names) {
  const value = JSON.parse(json);
  if (!isObject(value) || typeof value.name !== 'string' || value.name === '') return null;
  const name = wellFormed(value.name);
  if (names !== null && !names.includes(name)) return null;
  const key = Object.hasOwn(value, 'arguments') ? 'arguments' : 'parameters'; // the latter: Llama
  const given = Object.hasOwn(value, key) ? value[key] : null;
  if (given === null) return names === null ? { name, arguments: '{}' } : null;
  if (isObject(given)) return { name, arguments: rawParts(json).findLast(([part]) => part === key)[1] };
  return typeof given === 'string' && isObjectText(given) ? { name, arguments: wellFormed(given) } : null;
}
