// What the playground says when something does not work, what its fields refuse, and its bars under
// the keyboard.
//
//   node words.mjs URL URL_OF_A_MODEL_THAT_NEVER_STOPS URL_OF_A_SERVER_WITH_THE_KEY_open-sesame
import assert from 'node:assert/strict';
import { bars, holdingProxy, idle, launch, openPage, post, runAll, settled, slide, status } from './browser.mjs';

const [URL, ENDLESS, LOCKED] = process.argv.slice(2);
const browser = await launch();
const ROOM = 512; // of the model at URL
const focus = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.closest('li')?.dataset.token);

// The lengths of an error, which the page reads: whole, or where counting on would take long, at
// least.
async function body() {
  for (const [path, prompt, least] of [
    ['/playground/next', 'x '.repeat(1501), 3004],
    ['/v1/completions', 'x '.repeat(1501), 3004],
    ['/v1/completions', 'x '.repeat(150_000), 20_000],
  ]) {
    const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(path === '/v1/completions' ? { model: 'meta', prompt } : { prompt }) };
    const { error } = await (await fetch(URL + path, init)).json();
    assert.deepEqual([error.code, error.n_ctx], ['context_length_exceeded', ROOM]);
    const n = error.n_prompt_tokens ?? error.n_prompt_tokens_min;
    assert(n >= least && n <= prompt.length + 2, `${path}: ${JSON.stringify(error)}`);
  }
}

// A prompt, then a dialog, that is too long; what is offered makes room.
async function tooLong(page) {
  await page.fill('#prompt', 'x '.repeat(1501));
  await page.click('#go');
  await page.waitForSelector('#status.bad');
  assert.match(await status(page), /^The prompt is too long: (at least )?3,004 tokens, room for 512$/);
  assert.equal(await page.textContent('#f-first'), '–');
  assert.equal(await page.innerText('#text'), '');
  await settled(page);
  assert.match(await status(page), /^The prompt is too long: (at least )?3,004 tokens, room for 512$/);
  await page.click('text=Clear the prompt');
  assert.deepEqual([await page.inputValue('#prompt'), await status(page), await focus(page)], ['', '', 'prompt']);
  assert(!(await page.isVisible('#remedy')));
  await page.fill('#prompt', 'x '.repeat(150_000));
  await page.click('#go');
  await page.waitForSelector('#status.bad');
  assert.match(await status(page), /^The prompt is too long: (at least )?[\d,]{6,} tokens, room for 512$/);
  await page.fill('#prompt', 'The cat'); // whoever shortens the text has understood
  assert.equal(await status(page), '');

  await page.click('label:has(input[value=chat])');
  await page.fill('#message', 'Hi');
  await page.fill('#max_tokens', '5');
  await page.click('#go');
  await idle(page);
  await page.fill('#message', 'x '.repeat(1501));
  await page.click('#go');
  await page.waitForSelector('#status.bad');
  assert.match(await status(page), /^The conversation is too long: (at least )?3,0\d\d tokens, room for 512$/);
  await page.click('text=Clear the conversation');
  assert.equal((await page.$$('#text .turn')).length, 0);
  assert.equal((await page.inputValue('#message')).length, 3001);
  await page.waitForSelector('#status.bad'); // the message alone is too long as well
  await page.click('text=Clear the message');
  assert.equal(await page.inputValue('#message'), '');
}

// A text that fills the context: the reason, and room again.
async function full() {
  const page = await openPage(browser, ENDLESS);
  await slide(page, 'temperature', 0);
  await page.fill('#prompt', '12345678901234567890');
  await page.fill('#max_tokens', '100000');
  await page.click('#go');
  await page.waitForFunction(() => document.querySelector('#stop').disabled);
  assert.match(await status(page), /^(Stopped: no room|No room) for another token|^The prompt is too long: /);
  await page.waitForSelector('#remedy:visible');
  await page.click('text=Clear the generated text');
  assert.equal(await page.inputValue('#prompt'), '12345678901234567890');
  assert.equal(await page.innerText('#text'), '');
  await page.close();
}

// Other troubles, each in a sentence; what was made before stays.
async function troubles() {
  const proxy = await holdingProxy(URL, 10);
  const page = await openPage(browser, proxy.url);
  await settled(page);
  await page.click('#go');
  while (!proxy.isHolding()) await page.waitForTimeout(20);
  await page.waitForSelector('#text .token >> nth=3');
  proxy.cut();
  await page.waitForSelector('#status.bad');
  assert.equal(await status(page), 'The connection was lost');
  assert((await page.$$('#text .token')).length > 3);
  for (const [status_, error, said] of [
    [429, { code: 'rate_limit_exceeded', message: 'The queue is full: 9 sequences run' }, 'The server is busy. Try again in a moment.'],
    [500, { message: 'engine: poisoned at src/x.rs:1' }, 'Something went wrong on the server'],
    [503, { code: 'shutting_down', message: 'a' }, 'The server is shutting down'],
    [503, { code: 'timeout', message: 'a' }, 'The server ended this request: it took too long'],
    [500, { code: 'not_finite', message: 'a' }, 'The model cannot go on from this text: what it computes is not finite'],
    [400, { message: 'Some sentence' }, 'Some sentence'],
  ]) {
    await page.route('**/v1/completions', (route) => route.fulfill({ status: status_, contentType: 'application/json', body: JSON.stringify({ error }) }));
    await page.click('#go');
    await page.waitForFunction((text) => document.querySelector('#status').textContent === text, said);
    assert(!(await page.isVisible('#remedy')), said);
    await page.unroute('**/v1/completions');
  }
  proxy.close();
  await page.click('#go');
  await page.waitForFunction(() => document.querySelector('#status').textContent === 'The server does not answer');
  await page.close();
}

// A server that asks for a key gets one, with every request from then on.
async function key() {
  const page = await openPage(browser, LOCKED);
  await page.waitForSelector('#status.bad');
  assert.equal(await status(page), 'The server asks for an API key');
  await page.fill('#key', 'sesame');
  await page.press('#key', 'Enter');
  await page.waitForFunction(() => document.querySelector('#status').textContent === 'The server does not know this API key');
  await page.fill('#key', ' open-sesame');
  await page.press('#key', 'Enter');
  await page.waitForSelector('#next li');
  assert.deepEqual([await status(page), await page.isVisible('#key')], ['', false]);
  assert(await page.isVisible('#click'));
  await page.fill('#max_tokens', '3');
  await page.click('#go');
  await idle(page);
  assert.equal(await status(page), 'Stopped at the limit of 3 tokens');
  await page.close();
}

// The keyboard reads a text that is longer than its place: each token's tooltip stays, and Escape
// takes it away.
async function reading() {
  const page = await openPage(browser, ENDLESS, { height: 640 });
  await slide(page, 'temperature', 0);
  await page.fill('#prompt', '12345678901234567890');
  await page.fill('#max_tokens', '600');
  await page.click('#go');
  await idle(page);
  const [top, height] = await page.$eval('#text', (text) => [text.scrollTop, text.scrollHeight - text.clientHeight]);
  assert(top > 50 && top > height - 2, `the text is at its end: ${top} of ${height}`);
  await page.focus('#prompt');
  await page.keyboard.press('Tab');
  await page.waitForTimeout(200); // it scrolls
  assert(await page.isVisible('#tip'));
  await page.keyboard.press('Escape');
  assert(!(await page.isVisible('#tip')));
  await page.close();
}

// The last token begins a character that never ends: what the library held back comes without a
// token.
async function half() {
  const prompt = '12345678901234567890';
  const options = { model: 'meta', prompt, max_tokens: 60, temperature: 0.8, top_p: 0.95, echo: true };
  for (let seed = 1; ; seed++) {
    assert(seed < 100, 'a text ends in the middle of a character');
    const { text } = (await post(ENDLESS, '/v1/completions', { ...options, seed })).choices[0];
    if (!text.endsWith('\ufffd')) continue;
    const page = await openPage(browser, ENDLESS);
    await page.fill('#prompt', prompt);
    await page.fill('#max_tokens', '60');
    await page.fill('#seed', String(seed));
    await page.click('#go');
    await idle(page);
    assert(!(await page.$('#status.bad')), await status(page));
    assert.equal(await page.textContent('#text'), text);
    return page.close();
  }
}

// Typing into the prompt ends what is being made of it.
async function typing() {
  const page = await openPage(browser, ENDLESS);
  await slide(page, 'temperature', 0);
  await page.fill('#prompt', '12345678901234567890');
  await page.fill('#max_tokens', '4000');
  await page.click('#go');
  await page.waitForSelector('#text .token >> nth=3');
  await page.fill('#prompt', '123');
  assert(await page.isDisabled('#stop'));
  await settled(page);
  assert.equal((await page.$$('#text .token')).length, 0);
  await page.close();
}

// Nonsense in a number field is told where it is, and nothing is sent.
async function fields(page) {
  const sent = [];
  page.on('request', (request) => /completions/.test(request.url()) && sent.push(request.postData()));
  assert.equal(await page.textContent('label[for=max_tokens]'), 'Max tokens');
  const want = 'Max tokens must be a whole number from 1 to 100,000.';
  for (const typed of ['', '0', '-5', '1.5', '1e', '100001']) {
    await page.fill('#max_tokens', '');
    await page.type('#max_tokens', typed);
    await page.click('#go');
    assert.equal(await page.textContent('#max_tokens-problem'), want, typed);
    assert.equal(await focus(page), 'max_tokens');
    assert(await page.isVisible('#max_tokens-problem'));
  }
  assert.equal(await page.getAttribute('#max_tokens-problem', 'role'), 'alert');
  assert.equal(await page.getAttribute('#max_tokens', 'aria-invalid'), 'true');
  assert.equal(await page.getAttribute('#max_tokens', 'aria-describedby'), 'max_tokens-problem');
  await page.fill('#max_tokens', '3');
  assert.equal(await page.textContent('#max_tokens-problem'), '');
  assert.equal(await page.getAttribute('#max_tokens', 'aria-invalid'), null);
  await page.fill('#seed', '-1');
  await page.press('#seed', 'Control+Enter');
  assert.match(await page.textContent('#seed-problem'), /^Seed must be a whole number from 0 to [\d,]+, or empty\.$/);
  assert.deepEqual(sent, []);
  await page.fill('#seed', '9007199254740991');
  await page.click('#go');
  await idle(page);
  const { seed, max_tokens } = JSON.parse(sent[0]);
  assert.deepEqual([sent.length, seed, max_tokens], [1, 9007199254740991, 3]);
  assert.equal(await status(page), 'Stopped at the limit of 3 tokens');
}

// Outlines have the model's own probabilities, whatever the sliders leave.
async function outlines(page) {
  await page.fill('#prompt', 'The');
  await settled(page);
  const { logprobs } = await post(URL, '/playground/next', { prompt: 'The' });
  await slide(page, 'temperature', 0);
  const drawn = await page.$$eval('#next li', (rows) =>
    rows.map((row) => {
      const outline = row.querySelector('.raw');
      const { borderTopWidth, borderTopStyle } = getComputedStyle(outline);
      return { width: parseFloat(outline.style.width), border: borderTopStyle === 'solid' ? parseFloat(borderTopWidth) : 0, said: row.querySelector('.said').textContent };
    }),
  );
  assert(drawn.length > 5);
  drawn.forEach(({ width, border, said }, i) => {
    assert(Math.abs(width - 100 * Math.exp(logprobs[i])) < 0.01, `outline ${i}: ${width} % of ${Math.exp(logprobs[i])}`);
    assert(border >= 1, `outline ${i} is ${border} px wide`);
    assert.match(said, i === 0 ? /: 100\.0 %, the model says / : /: left out, the model says /);
  });
}

// Where one token has all, the others are folded away, and unfold.
async function folded(page) {
  await page.fill('#prompt', 'Once upon a');
  await settled(page);
  const shown = await bars(page);
  assert(shown.length < 5, `${shown.length} rows`);
  await page.click(`text=Show ${14 - shown.length} more`);
  assert.equal((await bars(page)).length, 14);
  assert.equal(await page.getAttribute('#more', 'aria-expanded'), 'true');
  await page.click('text=Show fewer');
  assert.equal((await bars(page)).length, shown.length);
}

// One stop of the Tab key for all bars; Enter appends, and the keyboard stays where it was.
async function keyboard(page) {
  assert(await page.isVisible('text=Click a bar to append its token.'));
  assert.match(await page.textContent('.figures'), /tokens reused from earlier requests/);
  await page.fill('#prompt', 'The');
  await slide(page, 'temperature', 1);
  await settled(page);
  const tokens = (await bars(page)).map((bar) => bar.token);
  assert.equal(tokens.length, 14);
  assert.equal((await page.$$('#next button[tabindex="0"]')).length, 1);
  const press = async (key) => {
    await page.keyboard.press(key);
    return focus(page);
  };
  await page.focus('#seed');
  assert.equal(await press('Tab'), tokens[0]);
  assert.equal(await press('ArrowDown'), tokens[1]);
  assert.equal(await press('End'), tokens[13]);
  assert.equal(await press('ArrowDown'), tokens[13]);
  assert.equal(await press('ArrowUp'), tokens[12]);
  assert.equal(await press('Home'), tokens[0]);
  assert.equal(await press('ArrowDown'), tokens[1]);
  assert.equal(await press('Shift+Tab'), 'seed');
  assert.equal(await press('Tab'), tokens[1]);
  await page.keyboard.press('Enter');
  await settled(page);
  assert.equal(await page.innerText('#text'), `The${tokens[1]}`);
  assert.equal(await status(page), `Appended “${tokens[1].replace(' ', '␣')}”`);
  const row = await page.evaluate(() => [...document.querySelectorAll('#next button')].indexOf(document.activeElement));
  assert(row >= 0, 'the focus is on a bar');
  await page.click('label:has(input[value=chat])');
  assert(!(await page.isVisible('text=Click a bar')), 'bars of a chat cannot be clicked');
}

const checks = { body, full, half, key, reading, troubles, typing };
for (const check of [tooLong, fields, outlines, folded, keyboard]) {
  checks[check.name] = async () => {
    const page = await openPage(browser, URL);
    await settled(page);
    await check(page);
    assert.deepEqual(page.troubles, []);
    await page.close();
  };
}
try {
  await runAll('playground words', checks);
} finally {
  await browser.close();
}
