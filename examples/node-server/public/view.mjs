// Draws bars, tokens and the tooltip. Knows nothing of the server.

const element = (name, className, text) => Object.assign(document.createElement(name), { className, textContent: text ?? '' });

// A token as one can read it in a list: its spaces and line feeds are visible.
export const visible = (text) => text.replaceAll(' ', '␣').replaceAll('\n', '↵').replaceAll('\t', '⇥');

export function percent(p) {
  if (p === 0) return '0 %';
  return p < 0.001 ? '<0.1 %' : `${(100 * p).toFixed(1)} %`;
}

/**
 * Rows are kept and changed, so that bars move.
 * @param {{text: string, raw: number, now?: number, chosen?: boolean}[]} rows raw: the model's probability;
 *   now: after the sliders, where they matter
 * @param {((index: number) => void) | undefined} onChoose makes each row a button
 */
export function drawBars(list, rows, onChoose) {
  // A flat distribution would show as a row of dots; the numbers say what a full bar is.
  const full = Math.max(0.2, ...rows.map((row) => Math.max(row.raw, row.now ?? 0)));
  while (list.children.length > rows.length) list.lastChild.remove();
  rows.forEach((row, i) => {
    let item = list.children[i];
    if (!item || (item.firstChild.tagName === 'BUTTON') !== Boolean(onChoose)) {
      const made = element('li');
      const bar = element(onChoose ? 'button' : 'div', 'bar');
      const track = element('span', 'track');
      track.append(element('i', 'raw'), element('i', 'now'));
      bar.append(element('span', 'name'), track, element('span', 'value'));
      if (onChoose) bar.type = 'button';
      made.append(bar);
      if (item) item.replaceWith(made);
      else list.append(made);
      item = made;
    }
    const bar = item.firstChild;
    const value = row.now ?? row.raw;
    const [name, track, number] = bar.children;
    bar.className = `bar${row.now === 0 ? ' out' : ''}${row.chosen ? ' chosen' : ''}`;
    name.textContent = visible(row.text);
    name.title = row.text;
    track.children[0].style.width = row.now === undefined ? '0' : `${(100 * row.raw) / full}%`;
    track.children[1].style.width = `${(100 * value) / full}%`;
    number.textContent = percent(value);
    if (onChoose) {
      bar.onclick = () => onChoose(i);
      bar.title = 'Append this token';
    }
    bar.setAttribute('aria-label', `${row.text.trim() || visible(row.text)}: ${percent(value)}${row.now === 0 ? ', left out' : ''}`);
    item.dataset.token = row.text;
    item.dataset.p = value;
  });
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
    about.textContent = `“${visible(token.name)}” had ${percent(token.p)}`;
    const rows = token.top.map((a) => ({ text: a.text, raw: a.p, chosen: a.text === token.name }));
    if (!rows.some((row) => row.chosen)) rows.push({ text: token.name, raw: token.p, chosen: true });
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

  container.addEventListener('pointerover', (event) => show(tokenOf(event.target) ?? focused()));
  container.addEventListener('pointerleave', () => show(focused()));
  container.addEventListener('focusin', (event) => {
    const token = tokenOf(event.target);
    for (const other of container.querySelectorAll('.token[tabindex="0"]')) other.tabIndex = -1;
    if (token) token.tabIndex = 0;
    show(token);
  });
  container.addEventListener('scroll', () => show(null));
  container.addEventListener('focusout', () => show(null));
  container.addEventListener('keydown', (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const tokens = [...container.querySelectorAll('.token')];
    const at = tokens.indexOf(focused());
    const to = event.key === 'Home' ? 0 : event.key === 'End' ? tokens.length - 1 : step === undefined ? -1 : at + step;
    if (to < 0 || to >= tokens.length) return;
    event.preventDefault();
    tokens[to].focus();
  });
  // A redrawn text takes its token along.
  return () => shown && !shown.isConnected && show(null);
}
