// A beam search as a tree: a column for each step, a node for each token, with its probability.
// Branches that nothing continues fade, and the best one is marked.
import { percent, spelled, visible } from './view.mjs';

const COLUMN = 124; // px from one step to the next
const ROW = 30;
const NODE = 98; // px, a node's width
const DRAWN = 500; // steps; a page of more would take seconds to lay out
const SVG = 'http://www.w3.org/2000/svg';

// In a node there is room for little.
const rounded = (p) => (p < 0.005 ? '<1 %' : `${Math.round(100 * p)} %`);

const number = (x) => x.toFixed(2).replace('-', '−');

export class Tree {
  #place;
  #about;
  #onTake;
  // Each step's nodes: those that run on, best first, then those that have ended.
  #columns = [];
  #ended = []; // nodes that no step can continue
  #shown = []; // nodes of the path that is marked
  #waiting = []; // nodes that are not drawn yet
  #rows = 0; // that there is room for
  #nodes = document.createElement('div');
  #edges = document.createElementNS(SVG, 'svg');

  /**
   * @param {HTMLElement} place where it is drawn, and scrolls
   * @param {HTMLElement} about the line that says what a node is
   * @param {(path: {text: string, name: string, p: number, top: []}[]) => void} onTake is given
   *   the tokens up to a node that was chosen
   */
  constructor(place, about, onTake) {
    this.#place = place;
    this.#about = about;
    this.#onTake = onTake;
    this.#nodes.className = 'nodes';
    this.#edges.setAttribute('aria-hidden', 'true');
    place.append(this.#edges, this.#nodes);
    const nodeOf = (target) => target.closest('.node')?.node;
    for (const event of ['pointerover', 'focusin']) place.addEventListener(event, ({ target }) => this.#tell(nodeOf(target)));
    place.addEventListener('pointerleave', () => this.#tell(nodeOf(document.activeElement)));
    place.addEventListener('keydown', (event) => this.#move(event));
    place.addEventListener('click', ({ target }) => nodeOf(target) && this.#onTake(this.#tokens(nodeOf(target))));
  }

  /** Begins anew, with room for so many beams. */
  reset(beams) {
    [this.#columns, this.#ended, this.#shown, this.#waiting] = [[], [], [], []];
    this.#nodes.replaceChildren();
    this.#edges.replaceChildren();
    // One more for those that end in a step; where more do, the pane scrolls.
    this.#place.style.setProperty('--height', `${(beams + 1) * ROW}px`);
    this.#rows = 0;
    this.#grow(1, beams + 1);
    this.#place.scrollTo(0, 0);
    this.#tell();
  }

  get isEmpty() {
    return this.#columns.length === 0;
  }

  /**
   * Takes a beam of the stream: { step, beam, parent, text, sum_logprob, score, finish_reason }.
   */
  add({ step, beam, parent, text, sum_logprob: sum, score, finish_reason: reason }) {
    const before = this.#columns[step - 2]?.find((node) => node.beam === parent) ?? null;
    const column = (this.#columns[step - 1] ??= []);
    // A sum is of the tokens' probabilities after penalties; a bias can make it grow.
    const p = Math.min(1, Math.exp(sum - (before?.sum ?? 0)));
    const node = { step, beam, text, sum, score, p, reason, before, row: column.length, alive: 0, element: null, edge: null };
    column.push(node);
    if (before) before.alive++;
    this.#waiting.push(node);
    if (reason !== null) this.#ended.push(node);
    // The step before this one is whole.
    if (column.length === 1) this.#fade(this.#columns[step - 3]);
  }

  /** Draws what has come since. */
  draw() {
    if (this.#waiting.length === 0) return;
    const { scrollLeft, clientWidth, scrollWidth } = this.#place;
    // False if somebody looks further back.
    const atEnd = scrollLeft + clientWidth > scrollWidth - COLUMN;
    const fresh = this.#waiting.splice(0).filter((node) => node.step <= DRAWN);
    for (const node of fresh) this.#make(node);
    this.#nodes.append(...fresh.map((node) => node.element));
    this.#edges.append(...fresh.map((node) => node.edge));
    const last = this.#columns.slice(0, DRAWN);
    this.#grow(last.length, Math.max(...last.slice(-8).map((column) => column.length)));
    this.#mark(this.#leader());
    this.#enter();
    if (atEnd) this.#place.scrollLeft = this.#place.scrollWidth;
  }

  /** The search is over; `score` is that of its best result, null where it was stopped. */
  finish(score) {
    this.draw();
    this.#fade(this.#columns.at(-2));
    const has = (node) => node.score === score;
    // A search that is cut short gives sequences that still run, too.
    const winner = this.#ended.find(has) ?? this.#columns.at(-1)?.find(has);
    if (winner) {
      for (const node of this.#columns.at(-1)) if (node.reason === null && node !== winner) this.#die(node);
      this.#mark(winner);
      for (const node of this.#shown) node.element?.classList.add('won');
      for (const node of this.#shown) node.edge?.classList.add('won');
    }
    this.#enter();
    this.#tell();
  }

  // The best of those that run or have ended.
  #leader() {
    const running = this.#columns.at(-1).filter((node) => node.reason === null);
    return [...this.#ended, ...running].reduce((best, node) => (best === null || node.score > best.score ? node : best), null);
  }

  #path(node) {
    const path = [];
    for (let at = node; at; at = at.before) path.unshift(at);
    return path;
  }

  #tokens(node) {
    const path = this.#path(node);
    return spelled(path.map(({ text }) => text)).map((text, i) => ({ text, name: path[i].text, p: path[i].p, top: [] }));
  }

  #mark(leaf) {
    const path = leaf ? this.#path(leaf) : [];
    const set = (node, on) => [node.element, node.edge].forEach((one) => one?.classList.toggle('best', on));
    for (const node of this.#shown) if (!path.includes(node)) set(node, false);
    for (const node of path) set(node, true);
    this.#shown = path;
  }

  // What nothing has continued is left behind, and so is what led only there.
  #fade(column = []) {
    for (const node of column) if (node.reason === null && node.alive === 0) this.#die(node);
  }

  #die(node) {
    for (let at = node; at && at.alive === 0; at = at.before) {
      at.isDead = true;
      for (const one of [at.element, at.edge]) one?.classList.add('dead');
      if (at.element) at.element.querySelector('.said').textContent = this.#name(at);
      if (at.before) at.before.alive--;
    }
  }

  #make(node) {
    const button = document.createElement('button');
    const span = (className, text) => Object.assign(document.createElement('span'), { className, textContent: text });
    // Two are for the eye; a screen reader hears `said`.
    const seen = [span('name', visible(node.text) || (node.reason ? '<end>' : '␣')), span('value', rounded(node.p))];
    for (const part of seen) part.ariaHidden = 'true';
    button.append(...seen, span('said', this.#name(node)));
    Object.assign(button, { type: 'button', tabIndex: -1, className: 'node', node });
    button.classList.toggle('ended', node.reason !== null);
    button.classList.toggle('dead', Boolean(node.isDead));
    button.style.left = `${(node.step - 1) * COLUMN}px`;
    button.style.top = `${node.row * ROW}px`;
    node.element = button;
    node.edge = document.createElementNS(SVG, 'path');
    node.edge.classList.toggle('dead', Boolean(node.isDead));
    if (!node.before) return;
    const y = ({ row }) => (row + 0.5) * ROW;
    const [from, to] = [(node.step - 2) * COLUMN + NODE, (node.step - 1) * COLUMN];
    const middle = (from + to) / 2;
    node.edge.setAttribute('d', `M${from} ${y(node.before)}C${middle} ${y(node.before)} ${middle} ${y(node)} ${to} ${y(node)}`);
  }

  #name({ text, p, step, reason, isDead }) {
    const what = text.trim() || visible(text) || (reason ? 'end' : 'space');
    return `${what}, ${percent(p)}, step ${step}${reason ? ', ended' : isDead ? ', left behind' : ''}`;
  }

  #grow(columns, rows) {
    const width = columns * COLUMN - (COLUMN - NODE);
    this.#rows = Math.max(rows, this.#rows);
    for (const one of [this.#nodes, this.#edges]) Object.assign(one.style, { width: `${width}px`, height: `${this.#rows * ROW}px` });
  }

  // One stop of the Tab key: where the keyboard was, else the end of the marked path.
  #enter() {
    if (this.#nodes.querySelector('[tabindex="0"]')) return;
    const first = this.#columns[0]?.[0];
    if (first?.element) first.element.tabIndex = 0;
  }

  #move(event) {
    const { node } = document.activeElement;
    if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
    const column = this.#columns[node.step - 1];
    const children = this.#columns[node.step]?.filter((one) => one.before === node) ?? [];
    const to = {
      ArrowLeft: () => node.before,
      ArrowRight: () => children.find((one) => this.#shown.includes(one)) ?? children[0],
      ArrowUp: () => column[node.row - 1],
      ArrowDown: () => column[node.row + 1],
      Home: () => this.#shown[0],
      End: () => this.#shown.findLast((one) => one.element),
    }[event.key]?.();
    if (!to?.element) return;
    event.preventDefault();
    node.element.tabIndex = -1;
    to.element.tabIndex = 0;
    to.element.focus();
  }

  #tell(node) {
    if (!node) {
      const cut = this.#columns.length > DRAWN ? ` Only the first ${DRAWN} steps are drawn.` : '';
      this.#about.textContent = `${this.isEmpty ? 'Each step of a search becomes a column here.' : 'Point at a token to see its text; click it to take that text.'}${cut}`;
      return;
    }
    const whole = this.#tokens(node).map((one) => one.text).join('');
    const text = whole.length > 90 ? `…${whole.slice(-90)}` : whole;
    this.#about.textContent = `${percent(node.p)}, sum ${number(node.sum)}, score ${number(node.score)}${node.reason ? ', ended' : ''}: “${visible(text)}”`;
  }
}
