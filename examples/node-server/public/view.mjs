// Draws bars, tokens and the tooltip. Knows nothing of the server.
import { roving } from './roving.mjs';

const element = (name, className = '', text = '') => Object.assign(document.createElement(name), { className, textContent: text });

// A token as one can read it in a list: its spaces and line feeds are visible.
export const visible = (text) => text.replaceAll(' ', '␣').replaceAll('\n', '↵').replaceAll('\t', '⇥');

/** Texts of tokens as the protocol lists them, of which some are parts of a code point. */
export function spelled(names) {
  const [encoder, decoder] = [new TextEncoder(), new TextDecoder('utf-8', { ignoreBOM: true })];
  const part = (name) => Uint8Array.from(name.matchAll(/\\x(..)/g), ([, hex]) => parseInt(hex, 16));
  const bytes = (name) => (name.startsWith('bytes:') ? part(name) : encoder.encode(name));
  return names.map((name, i) => decoder.decode(bytes(name), { stream: i + 1 < names.length }));
}

/**
 * Whether a token of a list has a text that can be appended to another: part of a code point has
 * none, nor has a control token, which the service lists as <begin>, <end> or by its number.
 */
export const isText = (name) => !/^<(begin|end|\d+)>$|^bytes:/.test(name);

// Less is hardly a dot on the screen, and said as "<0.1 %".
const LEAST = 0.001;

export function percent(p) {
  if (p === 0) return '0 %';
  return p < LEAST ? '<0.1 %' : `${(100 * p).toFixed(1)} %`;
}

/**
 * Rows are kept and changed, so that bars move.
 * @param {{text: string, raw: number, now?: number, chosen?: boolean}[]} rows raw: the model's
 *   probability, an outline; now: after the sliders, filled. Without `now`, raw is filled.
 * @param {((index: number) => void) | undefined} onChoose makes each row a button
 * @param {string} title of these buttons
 */
export function drawBars(list, rows, onChoose, title = '') {
  // A flat distribution would show as a row of dots; the numbers say what a full bar is.
  const full = Math.max(0.2, ...rows.map((row) => Math.max(row.raw, row.now ?? 0)));
  const hadFocus = list.contains(document.activeElement);
  while (list.children.length > rows.length) list.lastChild.remove();
  rows.forEach((row, i) => {
    let item = list.children[i];
    if (!item || (item.firstChild.tagName === 'BUTTON') !== Boolean(onChoose)) {
      const made = barElement(onChoose ? 'button' : 'div');
      if (item) item.replaceWith(made);
      else list.append(made);
      item = made;
    }
    const bar = item.firstChild;
    const [name, track, number] = bar.children;
    const [outline, fill] = track.children;
    const isOut = row.now === 0;
    const value = row.now ?? row.raw;
    bar.className = `bar${isOut ? ' out' : ''}${row.chosen ? ' chosen' : ''}`;
    name.textContent = visible(row.text);
    name.title = row.text;
    outline.hidden = row.now === undefined;
    outline.style.width = `${(100 * row.raw) / full}%`;
    fill.style.width = `${(100 * value) / full}%`;
    number.textContent = percent(value);
    bar.onclick = onChoose ? () => onChoose(i) : null;
    bar.title = title;
    const was = row.now === undefined ? '' : `, the model says ${percent(row.raw)}`;
    bar.querySelector('.said').textContent = `${row.text.trim() || visible(row.text)}: ${isOut ? 'left out' : percent(value)}${was}`;
    item.dataset.token = row.text;
    item.dataset.p = value;
  });
  if (hadFocus && !list.contains(document.activeElement)) list.lastChild?.firstChild.focus();
}

/** How many rows have something to show; the list is likeliest first. */
export const worthShowing = (rows) => Math.max(1, rows.findLastIndex((row) => Math.max(row.raw, row.now) >= LEAST) + 1);

// name, track and number are for the eye; a screen reader hears `said`.
function barElement(tag) {
  const item = element('li');
  const bar = element(tag, 'bar');
  const track = element('span', 'track');
  track.append(element('i', 'raw'), element('i', 'now'));
  const seen = [element('span', 'name'), track, element('span', 'value')];
  for (const part of seen) part.ariaHidden = 'true';
  bar.append(...seen, element('span', 'said'));
  if (tag === 'button') Object.assign(bar, { type: 'button', tabIndex: -1 });
  item.append(bar);
  return item;
}

/**
 * @param {{text: string, p: number, top: {text: string, p: number}[], draft?: string | null}} token
 *   draft: 'accepted' or 'rejected', where it was guessed at
 */
export function tokenElement(token) {
  const span = element('span', `token${token.text === '' ? ' silent' : ''}${token.draft ? ` ${token.draft}` : ''}`);
  const ink = token.text.trimStart(); // the space before it may hang over the end of a line
  span.append(token.text.slice(0, token.text.length - ink.length), element('span', '', ink));
  span.style.setProperty('--p', token.p);
  span.tabIndex = -1;
  span.role = 'button';
  if (ink === '') span.ariaLabel = visible(token.name) || 'no text'; // nothing that could be said
  span.token = token;
  span.setAttribute('aria-describedby', 'tip');
  return span;
}

const GUESSED = { accepted: '; it was guessed, and needed no step of its own', rejected: '; the guess was another' };

/**
 * The tooltip of a token: of the one under the pointer, else of the one with the focus. A click or
 * Enter opens it: then each of its rows is a button.
 * @param {(token: object, name: string) => void} onChoose a row of the token was clicked
 * @returns {() => void} closes the tooltip of a token that is gone
 */
export function watchTokens(container, tip, onChoose) {
  const list = element('ol', 'bars');
  const about = element('p');
  const hint = element('p', 'hint-open', 'Click a token: the text goes on from there.');
  about.id = 'tip-about';
  tip.append(about, hint, list);
  const wayIntoRows = roving(list, 'button.bar');
  let shown = null;
  let isOpen = false;

  const show = (span, open = false) => {
    [shown, isOpen] = [span, open];
    tip.hidden = span === null;
    tip.classList.toggle('open', open);
    tip.role = open ? 'dialog' : 'tooltip';
    if (open) tip.setAttribute('aria-labelledby', about.id);
    else tip.removeAttribute('aria-labelledby');
    if (span === null) return;
    const { token } = span;
    const all = token.top.map((a) => ({ text: a.text, raw: a.p, chosen: a.text === token.name }));
    if (!all.some((row) => row.chosen)) all.push({ text: token.name, raw: token.p, chosen: true });
    const rows = all.filter((row) => open || row.raw >= LEAST || row.chosen);
    about.textContent = `“${visible(token.name)}” had ${percent(token.p)}${rows.length < all.length ? ', others less than 0.1 % each' : ''}${GUESSED[token.draft] ?? ''}`;
    const choose = (i) => {
      const name = rows[i].text;
      span.focus();
      show(null);
      onChoose(token, name);
    };
    drawBars(list, rows, open ? choose : undefined, 'Go on from this token');
    wayIntoRows();
    place(span);
  };
  const place = (span) => {
    const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = tip;
    const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - width - 8));
    const below = box.bottom + 6 + height < innerHeight || box.top < height + 6;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(below ? box.bottom + 6 : box.top - height - 6) + scrollY}px`;
  };
  const tokenOf = (target) => (target instanceof Element ? target.closest('.token') : null);
  const focused = () => (container.contains(document.activeElement) ? tokenOf(document.activeElement) : null);
  const close = () => {
    if (tip.contains(document.activeElement)) shown.focus();
    show(null);
  };

  const isInView = (span) => {
    const [inner, outer] = [span, container].map((one) => one.getBoundingClientRect());
    return inner.bottom > outer.top && inner.top < outer.bottom;
  };

  container.addEventListener('pointerover', (event) => isOpen || show(tokenOf(event.target) ?? focused()));
  container.addEventListener('pointerleave', () => isOpen || show(focused()));
  container.addEventListener('focusin', (event) => shown === tokenOf(event.target) && isOpen || show(tokenOf(event.target)));
  container.addEventListener('click', (event) => tokenOf(event.target) && show(tokenOf(event.target), true));
  container.addEventListener('keydown', (event) => {
    if (focused() === null || (event.key !== 'Enter' && event.key !== ' ') || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    show(focused(), true);
    list.querySelector('.chosen')?.focus();
  });
  // The keyboard scrolls the token that it reaches into view: its tooltip comes along.
  container.addEventListener('scroll', () => show(shown !== null && shown === focused() && isInView(shown) ? shown : null));
  const leave = (event) => container.contains(event.relatedTarget) || tip.contains(event.relatedTarget) || show(null);
  for (const one of [container, tip]) one.addEventListener('focusout', leave);
  document.addEventListener('pointerdown', (event) => isOpen && !tip.contains(event.target) && !tokenOf(event.target) && show(null));
  document.addEventListener('keydown', (event) => event.key === 'Escape' && shown && close());
  // A redrawn text takes its token along.
  return () => shown && !shown.isConnected && show(null);
}
