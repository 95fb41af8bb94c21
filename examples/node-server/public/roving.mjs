// Many elements, one stop of the Tab key: the arrow keys, Home and End lead from one to the next.

/**
 * @param {string} selector of the elements, each made with tabIndex -1
 * @returns {() => void} to be called when elements came or went
 */
export function roving(container, selector) {
  const stop = `${selector}[tabindex="0"]`;
  container.addEventListener('focusin', (event) => {
    const item = event.target.closest(selector);
    if (item === null) return;
    for (const other of container.querySelectorAll(stop)) other.tabIndex = -1;
    item.tabIndex = 0;
  });
  container.addEventListener('keydown', (event) => {
    const items = [...container.querySelectorAll(selector)];
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const here = items.indexOf(document.activeElement);
    const to = event.key === 'Home' ? 0 : event.key === 'End' ? items.length - 1 : step === undefined ? -1 : here + step;
    if (event.ctrlKey || event.metaKey || event.altKey || !(to in items)) return;
    event.preventDefault();
    items[to].focus();
  });
  return () => {
    const item = container.querySelector(stop) ?? container.querySelector(selector);
    if (item) item.tabIndex = 0;
  };
}
