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

/** How many spaces of a token a text drops that begins with it, behind `silent` tokens. */
export function droppedSpaces(model, silent, token) {
  const bytes = bytesOf(model, token);
  if (bytes[0] !== 0x20) return 0;
  return spaces(bytes.toString()) - spaces(model.decode([...silent, token]));
}

/** A part of a code point is written as its bytes. */
export function printable(bytes) {
  if (isUtf8(bytes)) return bytes.toString();
  return `bytes:${[...bytes].map((b) => `\\x${b.toString(16).padStart(2, '0')}`).join('')}`;
}

const isContinuation = (byte) => (byte & 0xc0) === 0x80;

const REPLACEMENT = Buffer.from('\ufffd');
const [WHOLE, BEGUN, BROKEN] = ['whole', 'begun', 'broken'];

// What the bytes are: a code point, the beginning of one, or neither, because of the last of them.
function stateOf(bytes) {
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes), { stream: true });
    return text === '' ? BEGUN : WHOLE;
  } catch {
    return BROKEN;
  }
}

/**
 * How the model's tokenizer decodes what is no part of a code point. U+FFFD stands for each byte of
 * it in SentencePiece's texts. In those of byte-level tokenizers it stands for as many bytes as
 * could have become one code point, and control tokens between them change nothing.
 */
export function replacesEachByte(model) {
  const tokens = model.encode('\u{10fffd}'); // has no token of its own
  return model.decode(tokens.slice(0, -1)).split('\ufffd').length > 2;
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
  #eachByte;
  #silent = []; // tokens before the text's first, which have added nothing to it
  #begun = false; // there is a token that has
  #first = []; // the text's first tokens, for #open
  #held = '';
  #opened;
  #tokens = []; // not yet given out
  #part = []; // the bytes of a code point that later ones may complete, each with its token
  #sent = 0; // bytes of text given out
  #at = 0; // bytes of the tokens given out
  #points = 0; // their whole code points
  #rest = 0; // bytes that the next one lacks, if it has begun

  /**
   * `stops` are the call's stop strings, `tools` what it may call; `eachByte` is what
   * replacesEachByte says.
   */
  constructor(model, { continues, listed, drafts, stops, tools, eachByte }) {
    this.#model = model;
    this.#continues = continues;
    this.#listed = listed;
    this.#drafts = drafts;
    this.#eachByte = eachByte;
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
      const listed = (token, logprob, { bytes, space }) => ({ id: token, bytes: this.#continues ? bytes : bytes.subarray(space), logprob });
      const own = { ...listed(event.token, isKnown ? writable(event.logprob) : null, { bytes, space }), open: 0, draft: this.#drafts ? event.draft : undefined };
      this.#decode(own);
      if (!this.#opened && (own.bytes.length > 0 || own.open > 0)) this.#first.push(own);
      if (this.#listed) {
        own.top = event.top.map((a) => listed(a.token, writable(a.logprob), this.#look(a.token)));
        this.#tokens.push(own);
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
    this.#settle(true);
    let text = this.#open(event.text);
    if (!this.ended) text += this.#held;
    this.#sent += Buffer.byteLength(text);
    const tokens = this.#take();
    if (this.#tokens.length > 0 && this.#at < this.#sent) {
      this.#tokens.length = 1;
      this.#tokens[0].bytes = this.#tokens[0].bytes.subarray(0, this.#sent - this.#at);
      tokens.push(...this.#take());
    }
    return { text, tokens };
  }

  // What a token adds in the middle of a text, and how many spaces of that it does not add here.
  #look(token) {
    if (token === this.#marker?.token) return { bytes: this.#marker.bytes, space: 0 };
    const bytes = bytesOf(this.#model, token);
    return { bytes, space: this.#begun ? 0 : droppedSpaces(this.#model, this.#silent, token) };
  }

  // A text, once it is certain that no stop string begins it. The library has dropped the first
  // space of the text. It does not find a stop string of spaces alone there. One that begins with
  // the space it finds, but then it does not say that the text is cut before the space. So what the
  // model has written is compared here, too, both byte by byte.
  #open(text) {
    if (this.#opened || this.ended) return text;
    this.#held += text;
    const written = Buffer.concat(this.#first.map((token) => token.bytes)).toString('latin1');
    if (this.#stops.some((stop) => written.startsWith(stop))) {
      this.ended = true;
      return '';
    }
    if (this.#stops.some((stop) => stop.startsWith(written))) return '';
    this.#opened = true;
    this.#first = [];
    const held = this.#held;
    this.#held = '';
    return held;
  }

  // Makes of a token's bytes what the library's decoder makes of them in the text, as soon as that
  // is certain.
  #decode(token) {
    const { bytes } = token;
    // SentencePiece ends a code point at a control token.
    if (bytes.length === 0 && this.#eachByte) this.#settle(true);
    if (this.#part.length === 0 && isUtf8(bytes)) return;
    token.bytes = Buffer.alloc(0);
    token.open = bytes.length;
    for (const byte of bytes) {
      this.#part.push({ byte, token });
      this.#settle(false);
    }
  }

  // Decides about a part of a code point: about all of it where nothing can complete it any more,
  // otherwise if its last byte is the code point's last or none of it.
  //
  // What is no code point is U+FFFD in the text, once for each byte or once for all of them. The
  // token of the first byte has that then, and the others have nothing.
  #settle(all) {
    while (this.#part.length > 0) {
      const state = stateOf(this.#part.map(({ byte }) => byte));
      if (state === BEGUN && !all) return;
      // A byte that is none of the code point may begin another one.
      const size = state === BROKEN ? Math.max(this.#part.length - 1, 1) : this.#part.length;
      this.#part.splice(0, size).forEach(({ byte, token }, i) => {
        if (state === WHOLE) token.bytes = Buffer.concat([token.bytes, Buffer.of(byte)]);
        else if (i === 0 || this.#eachByte) token.bytes = Buffer.concat([token.bytes, REPLACEMENT]);
        token.open--;
      });
    }
  }

  // The tokens whose text is given out.
  #take() {
    const taken = [];
    while (this.#tokens.length > 0 && this.#tokens[0].open === 0 && this.#at + this.#tokens[0].bytes.length <= this.#sent) {
      const token = this.#tokens.shift();
      token.offset = this.#points;
      for (const byte of token.bytes) {
        // As many bytes as the first of them has leading ones.
        if (!isContinuation(byte)) this.#rest = Math.max(Math.clz32(~(byte << 24)), 1);
        if (--this.#rest === 0) this.#points++;
      }
      for (const a of token.top) if (a.id === token.id) a.bytes = token.bytes;
      this.#at += token.bytes.length;
      taken.push(token);
    }
    return taken;
  }
}
