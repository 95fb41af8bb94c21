// The playground in headless Chromium: type, stream, read a token's alternatives, move the sliders,
// stop.
//
//   node test.mjs URL URL_OF_A_MODEL_THAT_NEVER_STOPS SCREENSHOT_FOLDER
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { bars, idle, launch, openPage, post as postTo, settled, shooter, slide, still } from './browser.mjs';
import { distribution } from '../../examples/node-server/public/sampler.mjs';
import { isText } from '../../examples/node-server/public/view.mjs';

const [URL, ENDLESS, SHOTS] = process.argv.slice(2);
const root = new globalThis.URL('../../', import.meta.url);
const shot = shooter(SHOTS);
const near = (got, want, tolerance, what) => assert(Math.abs(got - want) <= tolerance, `${what}: ${got}, expected ${want}`);

// The page's arithmetic is the library's: the recorded distributions.
const OPTIONS = { temperature: 'temperature', top_k: 'topK', top_p: 'topP', min_p: 'minP', typical_p: 'typicalP' };
function sampler() {
  const recorded = (file) => JSON.parse(readFileSync(new globalThis.URL(`tests/data/${file}`, root))).cases;
  const cases = [...recorded('reference/sampler-distributions.json'), ...recorded('decoding/distributions.json')];
  let seen = 0;
  for (const { params, logits, support, probs } of cases) {
    if (logits === undefined || Object.keys(params).some((name) => !(name in OPTIONS))) continue;
    const ids = [...logits.keys()].sort((a, b) => logits[b] - logits[a] || a - b);
    const p = distribution(ids.map((id) => logits[id]), Object.fromEntries(Object.entries(params).map(([name, value]) => [OPTIONS[name], value])));
    const got = new Map(ids.map((id, i) => [id, p[i]]).filter(([, one]) => one > 0));
    assert.deepEqual([...got.keys()].sort((a, b) => a - b), [...support].sort((a, b) => a - b), JSON.stringify(params));
    support.forEach((id, i) => near(got.get(id), probs[i], 1e-5, `${JSON.stringify(params)}, token ${id}`));
    seen++;
  }
  assert(seen >= 14, `${seen} recorded distributions`);
  assert.deepEqual([...distribution([-1, -1, -2], { temperature: 0 })], [1, 0, 0]);
  assert.deepEqual([...distribution([-1, -1, -1, -9], { temperature: 1, topK: 2 })].map((p) => p > 0), [true, true, true, false]);
}

// What the service lists of tokens without a text is none; a text may look much like it.
function texts() {
  assert.deepEqual(['<end>', '<begin>', '<17>', 'bytes:\\xe2'].filter(isText), []);
  for (const name of ['<>', '<b>', '<end', ' <end>', '<|im_end|>']) assert(isText(name), name);
}

const post = (path, body) => postTo(URL, path, body);

async function nextToken(page) {
  const { ids, logprobs, texts } = await post('/playground/next', { prompt: 'The' });
  await slide(page, 'temperature', 1);
  await slide(page, 'top_p', 1);
  await page.fill('#prompt', 'The');
  await settled(page);
  assert.match(await page.textContent('#kept'), new RegExp(`^${ids.length.toLocaleString('en')} of ${ids.length.toLocaleString('en')} tokens`));
  const raw = await bars(page);
  raw.forEach((bar, i) => {
    assert.equal(bar.token, texts[i]);
    near(bar.p, Math.exp(logprobs[i]), 1e-4, `bar ${i}`);
  });

  // Each slider redraws at once, without asking the server.
  const requests = [];
  page.on('request', (request) => request.url().startsWith('http') && requests.push(request.url()));
  await slide(page, 'temperature', 0.5);
  const sharper = await bars(page);
  assert(sharper[0].p > raw[0].p && sharper[13].p < raw[13].p);
  near(sharper[1].p / sharper[0].p, (raw[1].p / raw[0].p) ** 2, 1e-3, 'half the temperature squares the odds');
  await slide(page, 'temperature', 1);
  await slide(page, 'top_k', 3);
  const three = await bars(page);
  assert.deepEqual(three.map((bar) => bar.out), three.map((_, i) => i >= 3));
  near(three[0].p + three[1].p + three[2].p, 1, 1e-9, 'top-k leaves');
  await slide(page, 'top_k', 0);
  await slide(page, 'top_p', 0.5);
  const nucleus = await bars(page);
  let before = 0;
  raw.forEach((bar, i) => {
    assert.equal(nucleus[i].out, before > 0.5, `bar ${i}, ${before} before it`);
    before += bar.p;
  });
  await slide(page, 'temperature', 0);
  assert.deepEqual((await bars(page)).map((bar) => bar.p), raw.map((_, i) => (i === 0 ? 1 : 0)));
  assert.deepEqual(requests, []);

  await slide(page, 'temperature', 1.3);
  await slide(page, 'top_p', 0.8);
  await page.fill('#prompt', 'Once upon a time there was a');
  await settled(page);
  await still(page);
  await shot(page, 'sliders');
  page.removeAllListeners('request');
}

async function completion(page) {
  const want = (await post('/v1/completions', { model: 'meta', prompt: 'Once upon a time', temperature: 0, max_tokens: 60, logprobs: 10 })).choices[0];
  await page.fill('#prompt', '');
  await page.type('#prompt', 'Once upon a time');
  await slide(page, 'temperature', 0);
  await page.fill('#max_tokens', '60');
  await page.click('#go');
  await idle(page);
  assert.equal(await page.textContent('#status'), want.finish_reason === 'length' ? 'Stopped at the limit of 60 tokens' : 'The model ended its text');
  assert.equal(await page.innerText('#text'), `Once upon a time${want.text}`);
  assert.equal(Number(await page.textContent('#f-tokens')), want.logprobs.tokens.length);
  assert(Number(await page.textContent('#f-rate')) > 1);
  assert.match(await page.textContent('#f-first'), /^\d+(\.\d)? ms$/);
  assert.match(await page.textContent('#f-cached'), /^\d+ of 5$/);

  // A token and what else it could have been: under the pointer, and with the keyboard.
  const assertTip = async (i) => {
    assert(await page.isVisible('#tip'));
    const top = Object.entries(want.logprobs.top_logprobs[i]).sort((a, b) => b[1] - a[1]);
    const rows = await page.$$eval('#tip li', (list) => list.map((row) => [row.dataset.token, Number(row.dataset.p), row.firstChild.classList.contains('chosen')]));
    const worth = top.filter(([name, logprob]) => Math.exp(logprob) >= 0.001 || name === want.logprobs.tokens[i]);
    assert.equal(rows.length, worth.length);
    rows.forEach(([, p], k) => near(p, Math.exp(worth[k][1]), 1e-6, `alternative ${k} of token ${i}`));
    assert.deepEqual(rows.filter((row) => row[2]).map((row) => row[0]), [want.logprobs.tokens[i]]);
  };
  const surprising = want.logprobs.token_logprobs.indexOf(Math.min(...want.logprobs.token_logprobs));
  await page.hover(`#text .token >> nth=${surprising}`);
  await assertTip(surprising);
  await shot(page, 'light');
  await page.hover('h1');
  assert(!(await page.isVisible('#tip')));
  await page.focus('#prompt');
  await page.keyboard.press('Tab');
  await assertTip(0);
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  await assertTip(2);
  await page.keyboard.press('Tab');
  assert(!(await page.isVisible('#tip')));

  // A token of one's own choice, and on from there.
  await page.click('#clear');
  await settled(page);
  const second = (await bars(page))[1].token;
  await page.click('#next button >> nth=1');
  assert.equal(await page.innerText('#text'), `Once upon a time${second}`);
  await page.fill('#max_tokens', '8');
  await page.keyboard.press('Control+Enter');
  await idle(page);
  const on = await post('/v1/completions', { model: 'meta', prompt: `Once upon a time${second}`, temperature: 0, max_tokens: 8, echo: true });
  assert.equal(await page.innerText('#text'), on.choices[0].text);
}

async function chat(page) {
  await page.click('label:has(input[value=chat])');
  await page.fill('#message', 'What color is the sky?');
  await slide(page, 'temperature', 0.8);
  await page.fill('#max_tokens', '120');
  await page.waitForFunction(() => document.querySelectorAll('#next li').length > 0);
  await slide(page, 'temperature', 0);
  await page.click('#go');
  await idle(page);
  assert.equal((await page.innerText('#text .turn.user')).trim(), 'What color is the sky?');
  assert.equal((await page.innerText('#text .turn.assistant')).trim(), 'The sky is blue.');
  // Behind the whole answer comes its end.
  await page.waitForFunction(() => document.querySelector('#next li')?.dataset.token === '<end>');
  await page.fill('#message', 'Tell me a story about a fox.');
  await slide(page, 'temperature', 0.9);
  await slide(page, 'top_p', 0.95);
  await page.fill('#seed', '4');
  await page.click('#go');
  await idle(page);
  assert.equal((await page.$$('#text .turn')).length, 4);
  await page.click('#theme');
  assert.equal(await page.getAttribute('html', 'data-theme'), 'dark');
  await page.hover('#text .turn:last-child .token >> nth=9');
  await shot(page, 'dark');
  await page.setViewportSize({ width: 390, height: 844 });
  await page.hover('h1');
  assert(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'nothing sticks out on a telephone');
  await shot(page, 'narrow');
  await page.setViewportSize({ width: 1280, height: 860 });
}

async function stop(page) {
  await page.goto(ENDLESS);
  await page.fill('#prompt', '12345678901234567890');
  await slide(page, 'temperature', 0);
  // More than any machine makes meanwhile, and more than is kept for a page that does not read.
  await page.fill('#max_tokens', '90000');
  await page.click('#go');
  // Playwright's own click waits for quiet frames, which may be long in coming.
  await page.waitForFunction(() => document.querySelectorAll('#text .token').length > 20 && (document.querySelector('#stop').click(), true));
  await idle(page);
  assert.equal(await page.textContent('#status'), 'Stopped');
  const made = (await page.$$('#text .token')).length;
  assert(made < 90000, `${made} tokens`);
  let metrics;
  do metrics = await (await fetch(`${ENDLESS}/metrics`)).text();
  while (/^llamabi_sequences_running 1$/m.test(metrics));
  const [, generated] = /^llamabi_generated_tokens_total (\d+)$/m.exec(metrics);
  assert(Number(generated) < 90000, 'the stopped generation ran on');
}

sampler();
texts();
const browser = await launch();
try {
  const page = await openPage(browser, URL, { height: 860 });
  for (const check of [nextToken, completion, chat, stop]) {
    await check(page);
    console.log(`playground: ${check.name} ok`);
  }
  assert.deepEqual(page.troubles, []);
} finally {
  await browser.close();
}
