// A choice's text of what the library tells of it, and with it the tokens that spell it.
import { isUtf8 } from 'node:buffer';

const spaces = (text) => /^ */.exec(text)[0].length;
/** JSON has no minus infinity: the protocol's "very unlikely". */
export const writable = (logprob) => Math.max(logprob, -9999);

// The bytes of a model's tokens that have been asked for: with alternatives listed, every token of
// an answer asks for 21.
const known = new WeakMap();

/** The bytes of a token, which are not to be changed. */
export function bytesOf(model, token) {
  let of = known.get(model);
  if (of === undefined) known.set(model, (of = new Map()));
  let bytes = of.get(token);
  if (bytes === undefined) of.set(token, (bytes = Buffer.from(model.tokenBytes(token))));
  return bytes;
}

/** A part of a code point is written as its bytes. */
export function printable(bytes) {
  if (isUtf8(bytes)) return bytes.toString();
  return `bytes:${[...bytes].map((b) => `\\x${b.toString(16).padStart(2, '0')}`).join('')}`;
}

const isContinuation = (byte) => (byte & 0xc0) === 0x80;

// What the bytes begin with: a whole code point of so many bytes, one that may become whole (0), or
// none (-1).
function codePoint(bytes) {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes, { stream: true });
    return text === '' ? 0 : bytes.length;
  } catch {
    return -1;
  }
}

/**
 * The tokens' bytes, joined, are the text's.
 *
 * The library decodes as Meta's code does: a text begins without the space of its first token. A
 * text that `continues` another one gets that space back, in any other the first token loses it.
 */
export class Spelling {
  ended = false; // a stop string begins the text
  #model;
  #continues;
  #listed; // the tokens are asked for
  #drafts; // and what became of guesses at them
  #marker; // a token that has a text here and no bytes of its own
  #stops; // see #open
  #silent = []; // tokens before the text's first, which have added nothing to it
  #begun = false; // there is a token that has
  #raw = ''; // what the model has written, for #open
  #held = '';
  #opened;
  #tokens = []; // not yet given out
  #pieces = []; // of those, the single bytes whose code point is not whole
  #sent = 0; // bytes of text given out
  #at = 0; // bytes of the tokens given out
  #points = 0; // their code points

  /** `stops` are the call's stop strings, `tools` what it may call. */
  constructor(model, { continues, listed, drafts, stops, tools }) {
    this.#model = model;
    this.#continues = continues;
    this.#listed = listed;
    this.#drafts = drafts;
    if (tools) this.#marker = { token: tools.marker, bytes: Buffer.from(tools.form.marker) };
    this.#stops = continues
      ? stops.filter((stop) => stop.startsWith(' ')).map((stop) => Buffer.from(stop).toString('latin1'))
      : [];
    this.#opened = this.#stops.length === 0;
  }

  /** What a token's event adds; `isKnown` says whether its log probability is one. */
  token(event, isKnown) {
    if (this.ended) return { text: '', tokens: [] };
    let { text } = event;
    if (this.#listed || !this.#opened || (this.#continues && !this.#begun)) {
      const { bytes, space } = this.#look(event.token);
      if (!this.#opened) this.#raw += bytes.toString('latin1');
      if (this.#listed) {
        const listed = (token, logprob, { bytes, space }) => ({ id: token, bytes: this.#continues ? bytes : bytes.subarray(space), logprob });
        const top = event.top.map((a) => listed(a.token, writable(a.logprob), this.#look(a.token)));
        this.#add({ ...listed(event.token, isKnown ? writable(event.logprob) : null, { bytes, space }), top, draft: this.#drafts ? event.draft : undefined });
      }
      if (this.#continues) text = ' '.repeat(space) + text;
      if (bytes.length > space) this.#begun = true;
      else if (!this.#begun) this.#silent.push(event.token);
    }
    text = this.#open(text);
    this.#sent += Buffer.byteLength(text);
    return { text, tokens: this.#take() };
  }

  /**
   * What the end of the choice adds. Tokens behind the text's end, which a stop string has cut, are
   * left out, and one that it has cut in two has its first part only.
   */
  finish(event) {
    if (this.ended) return { text: '', tokens: [] };
    let text = this.#open(event.text);
    if (!this.ended) text += this.#held;
    this.#sent += Buffer.byteLength(text);
    this.#settle(true);
    const tokens = this.#take();
    if (this.#tokens.length > 0 && this.#at < this.#sent) {
      this.#tokens[0].bytes = this.#tokens[0].bytes.subarray(0, this.#sent - this.#at);
      tokens.push(...this.#take());
    }
    return { text, tokens };
  }

  // What a token adds in the middle of a text, and how many spaces of that it does not add here.
  #look(token) {
    if (token === this.#marker?.token) return { bytes: this.#marker.bytes, space: 0 };
    const bytes = bytesOf(this.#model, token);
    if (this.#begun || bytes[0] !== 0x20) return { bytes, space: 0 };
    return { bytes, space: spaces(bytes.toString()) - spaces(this.#model.decode([...this.#silent, token])) };
  }

  // A text, once it is certain that no stop string begins it. The library has dropped the first
  // space of the text. It does not find a stop string of spaces alone there. One that begins with
  // the space it finds, but then it does not say that the text is cut before the space. So what the
  // model has written is compared here, too, both byte by byte.
  #open(text) {
    if (this.#opened || this.ended) return text;
    this.#held += text;
    if (this.#stops.some((stop) => this.#raw.startsWith(stop))) {
      this.ended = true;
      return '';
    }
    if (this.#stops.some((stop) => stop.startsWith(this.#raw))) return '';
    this.#opened = true;
    const held = this.#held;
    this.#held = '';
    return held;
  }

  #add(token) {
    this.#tokens.push(token);
    token.partial = token.bytes.length === 1 && token.bytes[0] >= 0x80;
    if (token.partial) this.#pieces.push(token);
    this.#settle(!token.partial);
  }

  // Decides about pieces as the library's decoder does: a byte that is no part of a code point is
  // U+FFFD in the text. Where nothing can complete them any more, all are decided.
  #settle(all) {
    while (this.#pieces.length > 0) {
      let size = codePoint(Buffer.concat(this.#pieces.map((t) => t.bytes)));
      if (size === 0 && !all) return;
      if (size <= 0) {
        this.#pieces[0].bytes = Buffer.from('\ufffd');
        size = 1;
      }
      for (const token of this.#pieces.splice(0, size)) token.partial = false;
    }
  }

  // The tokens whose text is given out.
  #take() {
    const taken = [];
    while (this.#tokens.length > 0 && !this.#tokens[0].partial && this.#at + this.#tokens[0].bytes.length <= this.#sent) {
      const token = this.#tokens.shift();
      // A code point that has begun before is counted already.
      token.offset = this.#points - (token.bytes.length > 0 && isContinuation(token.bytes[0]) ? 1 : 0);
      for (const byte of token.bytes) if (!isContinuation(byte)) this.#points++;
      for (const a of token.top) if (a.id === token.id) a.bytes = token.bytes;
      this.#at += token.bytes.length;
      taken.push(token);
    }
    return taken;
  }
}
