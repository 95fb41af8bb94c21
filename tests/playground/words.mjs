// What the playground says when something does not work, what its fields refuse, and its bars under
// the keyboard.
//
//   node words.mjs URL URL_OF_A_MODEL_THAT_NEVER_STOPS URL_OF_A_SERVER_WITH_THE_KEY_open-sesame
import assert from 'node:assert/strict';
import { bars, holdingProxy, idle, launch, openPage, post, runAll, settled, slide, status } from './browser.mjs';

const [URL, ENDLESS, LOCKED] = process.argv.slice(2);
const browser = await launch();
const ROOM = 512; // of the model at URL
const focus = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.closest('li')?.dataset.token || document.activeElement.textContent);

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
  await page.fill('#key', 'ключ'); // no header can have it
  await page.press('#key', 'Enter');
  await page.waitForFunction(() => document.querySelector('#next').ariaBusy === 'false');
  assert.equal(await status(page), 'The server does not know this API key');
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

// Whoever comes back to the page finds it as it begins: a browser may restore what its fields have
// held, of which the page would know nothing.
async function back() {
  const page = await openPage(browser, URL);
  await settled(page);
  const fields = () => page.$$eval('input, select, textarea', (all) => all.map((one) => [one.id || one.value, one.type === 'radio' || one.type === 'checkbox' ? one.checked : one.value]));
  const fresh = await fields();
  await page.click('text=Grammar');
  await page.selectOption('#language', 'guided_regex');
  await page.fill('#prompt', 'The');
  await slide(page, 'num_beams', 4);
  await page.click('label:has(input[value=chat])');
  assert.notDeepEqual(await fields(), fresh);
  await page.goto(`${URL}/healthz`);
  await page.goBack();
  await settled(page);
  // It may be the page itself, which the browser has kept.
  if ((await page.getAttribute('html', 'data-mode')) === 'completion') assert.deepEqual(await fields(), fresh);
  assert.equal(await page.isVisible('#source'), (await page.inputValue('#language')) !== '');
  assert.equal(await page.textContent('#go'), (await page.isChecked('input[value=chat]')) ? 'Send' : 'Generate');
  await page.close();
}

// What may follow a message follows it as it is sent, without the space around it.
async function trimmed() {
  const page = await openPage(browser, URL);
  await settled(page);
  await page.click('label:has(input[value=chat])');
  await settled(page);
  const next = page.waitForRequest((request) => /playground.next/.test(request.url()) && /sky/.test(request.postData()));
  await page.fill('#message', '  What color is the sky?\n');
  const { messages: shown } = JSON.parse((await next).postData());
  await settled(page);
  const chat = page.waitForRequest(/completions/);
  await page.click('#go');
  const { messages: sent } = JSON.parse((await chat).postData());
  assert.deepEqual(shown, sent);
  await page.close();
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

// The penalties are sent with a request, and refused where they are like any other field; a field
// that is folded away is shown when something is wrong with it.
async function penalties(page) {
  const sent = [];
  page.on('request', (request) => /completions/.test(request.url()) && sent.push(JSON.parse(request.postData())));
  await page.fill('#max_tokens', '3');
  await page.click('text=More sampling');
  await page.fill('#repetition_penalty', '1.25');
  await page.fill('#no_repeat_ngram_size', '2');
  await page.fill('#presence_penalty', '-0.5');
  await page.fill('#frequency_penalty', '2.5');
  await page.click('text=More sampling');
  await page.click('#go');
  assert.equal(await page.textContent('#frequency_penalty-problem'), 'Frequency penalty must be a number from -2 to 2, or empty.');
  assert.equal(await focus(page), 'frequency_penalty');
  assert(await page.isVisible('#frequency_penalty-problem'));
  assert.deepEqual(sent, []);
  await page.fill('#frequency_penalty', '');
  await slide(page, 'min_p', 0.1);
  await slide(page, 'typical_p', 0.9);
  await page.click('#go');
  await idle(page);
  assert.equal(await status(page), 'Stopped at the limit of 3 tokens');
  const { repetition_penalty, no_repeat_ngram_size, presence_penalty, frequency_penalty, min_p, typical_p } = sent[0];
  assert.deepEqual([repetition_penalty, no_repeat_ngram_size, presence_penalty, frequency_penalty, min_p, typical_p], [1.25, 2, -0.5, undefined, 0.1, 0.9]);
}

// The server's verdict on a grammar stands below it; one that it refuses is not sent, and an answer
// is of the others.
async function grammars(page) {
  const sent = [];
  page.on('request', (request) => /completions/.test(request.url()) && sent.push(JSON.parse(request.postData())));
  const good = 'Good: every answer that ends by itself is of this grammar.';
  const said = (test) => page.waitForFunction((source) => new RegExp(source).test(document.querySelector('#verdict').textContent), test.source);
  await slide(page, 'temperature', 0.8);
  await page.fill('#seed', '3');
  await page.click('text=Grammar');
  assert(!(await page.isVisible('#source')) && !(await page.isVisible('#verdict')));

  // Every example is a grammar, and an answer is of it.
  const examples = {
    guided_regex: (text) => assert.match(text, /^(red|blue|green) (fox|cat)$/),
    guided_choice: (text) => assert(['yes', 'no'].includes(text)),
    guided_json(text) {
      const { animal, legs } = JSON.parse(text);
      assert(['fox', 'cat'].includes(animal) && Number.isInteger(legs));
    },
    guided_grammar: (text) => assert.match(text, /^[a-z]+( [a-z]+)*\.$/),
    json_object: (text) => assert.equal(typeof JSON.parse(text), 'object'),
  };
  for (const [name, check] of Object.entries(examples)) {
    await page.selectOption('#language', name);
    await said(/^Good: /);
    assert.equal(await page.textContent('#verdict'), good);
    assert.equal(await page.isVisible('#source'), name !== 'json_object');
    await page.click('#go');
    await idle(page);
    // A text may come to no end of its own.
    const text = (await page.textContent('#text')).slice('Once upon a time'.length);
    if ((await status(page)) === 'The text is of the grammar') check(text.trimStart());
    else assert.match(await status(page), /^Stopped before the text was of the grammar: no room for more$/, name);
    if (/regex|choice/.test(name)) assert.equal(await status(page), 'The text is of the grammar');
  }

  // What was written of each stays; what is wrong is told, and is not sent.
  await page.selectOption('#language', 'guided_regex');
  await said(/^Good: /);
  await page.fill('#source', '(red');
  await said(/^Not a grammar: /);
  assert.equal(await page.getAttribute('#source', 'aria-invalid'), 'true');
  const before = sent.length;
  await page.click('text=Grammar');
  await page.click('#go');
  assert.equal(await focus(page), 'source');
  assert(await page.isVisible('#verdict'));
  assert.equal(sent.length, before);
  await page.selectOption('#language', 'guided_json');
  await said(/^Good: /);
  await page.fill('#source', '{"type": "objekt"}');
  await said(/^Not a grammar: .*objekt/s);
  await page.selectOption('#language', 'guided_grammar');
  await said(/^Good: /);
  await page.fill('#source', 'start: WORD nothing\nWORD: /[a-z]+/');
  await said(/^Not a grammar, line 1, column 8: unknown name: "nothing"$/);
  await page.selectOption('#language', 'guided_regex');
  assert.equal(await page.inputValue('#source'), '(red');
  await said(/^Not a grammar: /);
  await page.fill('#source', '(red) hen');
  await said(/^Good: /);
  assert.equal(await page.getAttribute('#source', 'aria-invalid'), null);
  await page.click('#go');
  await idle(page);
  assert.match(await page.textContent('#text'), /^Once upon a time ?red hen$/);

  // The verdict of what is there now counts, in whichever order the answers come.
  let hold = null;
  await page.route('**/playground/grammar', async (route) => {
    if (route.request().postData().includes('slow(')) await new Promise((resolve) => { hold = resolve; });
    await route.continue().catch(() => {});
  });
  await page.fill('#source', 'slow(');
  while (hold === null) await page.waitForTimeout(20);
  await page.fill('#source', 'quick');
  await said(/^Good: /);
  const late = page.waitForResponse('**/playground/grammar');
  hold();
  await late;
  await page.waitForTimeout(50);
  assert.equal(await page.textContent('#verdict'), good);
  await page.unroute('**/playground/grammar');

  // A server that does not judge keeps nobody from asking.
  await page.route('**/playground/grammar', (route) => route.fulfill({ status: 429, body: '{"error": {}}' }));
  await page.fill('#source', '(red|blue) hen');
  await said(/^The server is busy/);
  await page.click('#go');
  await idle(page);
  assert.equal(await status(page), 'The text is of the grammar');
  await page.unroute('**/playground/grammar');

  await page.selectOption('#language', '');
  assert(!(await page.isVisible('#source')) && !(await page.isVisible('#verdict')));
  await page.fill('#max_tokens', '2');
  await page.click('#go');
  await idle(page);
  assert.equal(sent.at(-1).guided_regex, undefined);
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
  await page.focus('#grammar summary');
  assert.equal(await press('Tab'), tokens[0]);
  assert.equal(await press('ArrowDown'), tokens[1]);
  assert.equal(await press('End'), tokens[13]);
  assert.equal(await press('ArrowDown'), tokens[13]);
  assert.equal(await press('ArrowUp'), tokens[12]);
  assert.equal(await press('Home'), tokens[0]);
  assert.equal(await press('ArrowDown'), tokens[1]);
  assert.equal(await press('Shift+Tab'), 'Grammar');
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

const checks = { back, body, full, half, key, reading, trimmed, troubles, typing };
for (const check of [tooLong, fields, penalties, grammars, outlines, folded, keyboard]) {
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
