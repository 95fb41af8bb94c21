// Every view of the playground, light and dark, on a desk and on a telephone: axe finds nothing,
// fingers hit everything, nothing sticks out, and how a text ended is on the screen.
//
//   node views.mjs URL SCREENSHOT_FOLDER
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { bars, holdingProxy, idle, launch, openPage, runAll, settled, shooter, slide, still } from './browser.mjs';

const [URL, SHOTS] = process.argv.slice(2);
const shot = shooter(SHOTS);
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const SIZES = { desk: { width: 1280, height: 800 }, telephone: { width: 390, height: 844 } };

// Rules of every WCAG version and axe's own advice; the size of targets is not among them unless
// asked for.
async function axe(page) {
  if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(AXE);
  const found = await page.evaluate(async () => {
    const { violations } = await window.axe.run(document, { rules: { 'target-size': { enabled: true } } });
    return violations.map(({ id, impact, nodes }) => `${impact} ${id}: ${nodes.slice(0, 3).map((node) => `${node.html.slice(0, 90)} (${node.failureSummary})`).join('; ')}`);
  });
  assert.deepEqual(found, []);
}

// Tokens are words in a line of text: they are 24 px high, and as wide as they are.
async function targets(page) {
  const small = await page.evaluate(() => {
    const all = [...document.querySelectorAll('a, button, input, select, textarea, summary, [tabindex], [role=button]')];
    const places = new Set(all.filter((one) => one.id !== 'text').map((one) => (one.type === 'radio' ? one.closest('label') : one)));
    return [...places].flatMap((one) => {
      const { width, height } = one.getBoundingClientRect();
      const isSeen = one.checkVisibility() && width > 0;
      const fits = height >= 24 && (width >= 24 || one.matches('.token'));
      return isSeen && !fits ? [`${one.tagName} ${one.id || one.className}: ${width.toFixed(1)} x ${height.toFixed(1)}`] : [];
    });
  });
  assert.deepEqual(small, []);
}

async function layout(page, size) {
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert(width <= SIZES[size].width, `the page is ${width} px wide`);
  if (size === 'desk') {
    // A window of 1280 x 800 has a frame, too.
    await page.setViewportSize({ width: 1280, height: 640 });
    await page.evaluate(() => scrollTo(0, 0));
    const ends = await page.$$eval('#status, .figures', (all) => all.map((one) => one.getBoundingClientRect().bottom));
    await page.setViewportSize(SIZES.desk);
    assert(Math.max(...ends) <= 640, `the finish line ends at ${ends[0]} px, the figures at ${ends[1]} px`);
  } else {
    await page.evaluate(() => scrollTo(0, 0));
    const end = await page.$eval('.figures', (figures) => figures.getBoundingClientRect().bottom);
    assert(end <= SIZES.telephone.height, `the figures, and what they mean, end at ${end} px`);
    const rows = await page.$$eval('h1, #model, #theme', (all) => all.map((one) => one.getBoundingClientRect()).map((box) => (box.top + box.bottom) / 2));
    assert(Math.max(...rows) - Math.min(...rows) < 6, `name, model and theme are a line: ${rows}`);
  }
}

// Contrast of two colours, as WCAG has it.
const contrast = (page, selector, property, behind) =>
  page.$eval(selector, (one, [property, behind]) => {
    const light = (colour) => {
      const [r, g, b] = colour.match(/[\d.]+/g).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const [a, b] = [light(getComputedStyle(one)[property]), light(getComputedStyle(one.closest(behind)).backgroundColor)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }, [property, behind]);

// Each leads from the view before it to its own.
const VIEWS = {
  empty: settled,
  async cut(page) {
    await page.fill('#prompt', 'The');
    await slide(page, 'top_p', 0.5);
    await settled(page);
    await still(page);
    assert((await bars(page)).some((bar) => bar.out));
    const outline = await contrast(page, '#next .bar.out .raw', 'borderTopColor', '.track');
    assert(outline >= 3, `an outline has a contrast of ${outline}`);
    await slide(page, 'top_p', 0.95);
  },
  async streaming(page, proxy) {
    await page.fill('#seed', '4');
    await page.click('#go');
    while (!proxy.isHolding()) await page.waitForTimeout(20);
    await page.waitForSelector('#text .token >> nth=5');
    assert(await page.isEnabled('#stop'));
  },
  async finished(page, proxy) {
    assert(await page.isEnabled('#stop'), 'it was streaming all the time');
    proxy.go();
    await idle(page);
    await settled(page);
    await still(page);
  },
  async pinned(page) {
    await page.click('#text .token >> nth=7');
    await page.mouse.move(1, 1);
    assert(await page.isVisible('#tip'));
  },
  async unfolded(page) {
    await page.fill('#prompt', 'Once upon a time');
    await settled(page);
    await slide(page, 'temperature', 0);
    await page.click('#more');
    assert.equal((await bars(page)).length, 14);
  },
  async refused(page) {
    await page.fill('#max_tokens', '-5');
    await page.click('#go');
    await page.fill('#seed', '1.5');
    await page.click('h1');
    assert.equal((await page.$$('.problem:not(:empty)')).length, 2);
  },
  async error(page) {
    await page.fill('#max_tokens', '120');
    await page.fill('#seed', '');
    await slide(page, 'temperature', 0.8);
    await page.fill('#prompt', 'x '.repeat(1500));
    await page.click('#go');
    await page.waitForSelector('#remedy:visible');
    await settled(page);
  },
  async opened(page) {
    await page.fill('#prompt', 'Once upon a time');
    await page.fill('#max_tokens', '40');
    await page.click('text=Guesses');
    await page.check('#guess');
    await slide(page, 'draft_len', 4);
    await page.click('#go');
    await idle(page);
    await page.click('#text .token >> nth=12');
    await page.waitForSelector('#tip.open');
    await page.hover('#tip button >> nth=1');
  },
  async searching(page) {
    await page.keyboard.press('Escape');
    await page.uncheck('#guess');
    await page.click('text=Guesses');
    await page.click('text=Beam search');
    await slide(page, 'num_beams', 4);
    await page.fill('#max_tokens', '16');
    await page.fill('#prompt', 'The');
    await page.click('#go');
    await idle(page);
    await settled(page);
    await page.focus('#tree .node[tabindex="0"]');
    await page.keyboard.press('End');
    await still(page);
  },
  async grammar(page) {
    await slide(page, 'num_beams', 1);
    await page.click('#clear');
    await page.click('text=Beam search');
    await page.fill('#max_tokens', '120');
    await page.fill('#prompt', 'The');
    await page.click('text=More sampling');
    await page.click('text=Grammar');
    await page.selectOption('#language', 'guided_json');
    await page.waitForFunction(() => /^Good: /.test(document.querySelector('#verdict').textContent));
    await settled(page);
  },
  async grammarRefused(page) {
    await page.selectOption('#language', 'guided_grammar');
    await page.fill('#source', 'start: WORD nothing\nWORD: /[a-z]+/');
    await page.waitForFunction(() => /^Not a grammar, line 1/.test(document.querySelector('#verdict').textContent));
  },
  async key(page) {
    await page.selectOption('#language', '');
    await page.click('text=More sampling');
    await page.click('text=Grammar');
    await page.route('**/playground/next', (route) => route.fulfill({ status: 401, body: '{"error": {}}' }));
    await page.fill('#prompt', 'The');
    await page.waitForSelector('#key');
    await settled(page);
    await page.unroute('**/playground/next');
  },
  async chatEmpty(page) {
    await page.click('label:has(input[value=chat])');
    await page.waitForSelector('#next li');
    await settled(page);
  },
  async chat(page) {
    await page.click('#go');
    await idle(page);
    await settled(page);
    await still(page);
  },
};

async function allViews(browser, theme, size) {
  const proxy = await holdingProxy(URL, 30);
  const page = await openPage(browser, proxy.url, { theme, ...SIZES[size] });
  try {
    for (const [view, reach] of Object.entries(VIEWS)) {
      try {
        await reach(page, proxy);
        await shot(page, `${size}-${theme}-${view}`);
        await axe(page);
        await targets(page);
        await layout(page, size);
      } catch (error) {
        error.message = `${view}: ${error.message}`;
        throw error;
      }
    }
    assert.deepEqual(page.troubles, []);
  } finally {
    await page.close();
    proxy.close();
  }
}

const browser = await launch();
try {
  const checks = {};
  for (const size of Object.keys(SIZES)) for (const theme of ['light', 'dark']) checks[`${size}, ${theme}`] = () => allViews(browser, theme, size);
  await runAll('playground views', checks);
} finally {
  await browser.close();
}
