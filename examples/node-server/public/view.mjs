// Draws bars, tokens and the tooltip. Knows nothing of the server.

const element = (name, className = '', text = '') => Object.assign(document.createElement(name), { className, textContent: text });

// A token as one can read it in a list: its spaces and line feeds are visible.
export const visible = (text) => text.replaceAll(' ', '␣').replaceAll('\n', '↵').replaceAll('\t', '⇥');

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
 */
export function drawBars(list, rows, onChoose) {
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
  if (tag === 'button') Object.assign(bar, { type: 'button', tabIndex: -1, title: 'Append this token' });
  item.append(bar);
  return item;
}

/** @param {{text: string, p: number, top: {text: string, p: number}[]}} token */
export function tokenElement(token) {
  const span = element('span', `token${token.text === '' ? ' silent' : ''}`);
  const ink = token.text.trimStart(); // the space before it may hang over the end of a line
  span.append(token.text.slice(0, token.text.length - ink.length), element('span', '', ink));
  span.style.setProperty('--p', token.p);
  span.tabIndex = -1;
  span.token = token;
  span.setAttribute('aria-describedby', 'tip');
  return span;
}

// The tooltip of a token: of the one under the pointer, else of the one with the focus.
export function watchTokens(container, tip) {
  const list = element('ol', 'bars');
  const about = element('p');
  tip.append(about, list);
  let shown = null;

  const show = (span) => {
    shown = span;
    tip.hidden = span === null;
    if (span === null) return;
    const { token } = span;
    const all = token.top.map((a) => ({ text: a.text, raw: a.p, chosen: a.text === token.name }));
    if (!all.some((row) => row.chosen)) all.push({ text: token.name, raw: token.p, chosen: true });
    const rows = all.filter((row) => row.raw >= LEAST || row.chosen);
    about.textContent = `“${visible(token.name)}” had ${percent(token.p)}${rows.length < all.length ? ', others less than 0.1 % each' : ''}`;
    drawBars(list, rows);
    const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = tip;
    const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - width - 8));
    const below = box.bottom + 6 + height < innerHeight || box.top < height + 6;
    tip.style.left = `${left + scrollX}px`;
    tip.style.top = `${(below ? box.bottom + 6 : box.top - height - 6) + scrollY}px`;
  };
  const tokenOf = (target) => (target instanceof Element ? target.closest('.token') : null);
  const focused = () => (container.contains(document.activeElement) ? tokenOf(document.activeElement) : null);

  const isInView = (span) => {
    const [inner, outer] = [span, container].map((one) => one.getBoundingClientRect());
    return inner.bottom > outer.top && inner.top < outer.bottom;
  };

  container.addEventListener('pointerover', (event) => show(tokenOf(event.target) ?? focused()));
  container.addEventListener('pointerleave', () => show(focused()));
  container.addEventListener('focusin', (event) => show(tokenOf(event.target)));
  // The keyboard scrolls the token that it reaches into view: its tooltip comes along.
  container.addEventListener('scroll', () => show(shown !== null && shown === focused() && isInView(shown) ? shown : null));
  container.addEventListener('focusout', () => show(null));
  document.addEventListener('keydown', (event) => event.key === 'Escape' && show(null));
  // A redrawn text takes its token along.
  return () => shown && !shown.isConnected && show(null);
}
