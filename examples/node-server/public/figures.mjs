// The four figures of a text that is being made: by this page's clock, and at its end by the
// server's.

const BURST = 200; // ms; tokens of a fast model arrive together, and a first burst is no rate

const place = (name) => document.getElementById(`f-${name}`);

function draw(tokens, rate, first, cached) {
  place('tokens').textContent = tokens ?? '–';
  place('rate').textContent = rate === null ? '–' : rate.toFixed(rate < 100 ? 1 : 0);
  place('first').textContent = first === null ? '–' : `${first.toFixed(first < 100 ? 1 : 0)} ms`;
  place('cached').textContent = cached ?? '–';
}

export function noFigures() {
  draw(null, null, null, null);
  document.getElementById('guessed').textContent = '';
}

export class Figures {
  tokens = 0;
  #begin = performance.now();
  #first = null;
  #last = null;
  #isFinal = false;
  #hasRate;

  /** @param {boolean} hasRate tokens come one after the other, and not all at the end */
  constructor(hasRate) {
    this.#hasRate = hasRate;
  }

  count() {
    this.tokens++;
    this.#last = performance.now();
    this.#first ??= this.#last;
  }

  show() {
    if (this.#isFinal) return;
    const time = this.#last - this.#first;
    const rate = this.#hasRate && time > BURST ? (1000 * (this.tokens - 1)) / time : null;
    draw(this.tokens, rate, this.#toFirst(), null);
  }

  // The rate is the server's: see BURST.
  finish({ completion_tokens: n, prompt_tokens: prompt, prompt_tokens_details: details, completion_tokens_details: guesses }, { first_token_ms, total_ms }) {
    this.#isFinal = true;
    this.tokens = n;
    const cached = details?.cached_tokens; // a server may keep it to itself
    place('cached').parentElement.hidden = cached === undefined;
    if (guesses) {
      const { accepted_prediction_tokens: right, rejected_prediction_tokens: wrong } = guesses;
      document.getElementById('guessed').textContent = right + wrong === 0 ? 'There was nothing to guess.' : `${right} of ${right + wrong} guesses were right.`;
    }
    draw(n, this.#hasRate && n > 1 ? (1000 * (n - 1)) / (total_ms - first_token_ms) : null, this.#toFirst(), `${cached} of ${prompt}`);
  }

  #toFirst() {
    return this.#first === null ? null : this.#first - this.#begin;
  }
}
