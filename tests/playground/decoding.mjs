// The tree of a beam search, branches from a token, and guesses, as the playground shows them.
//
//   node decoding.mjs URL URL_OF_A_MODEL_THAT_NEVER_STOPS
import assert from 'node:assert/strict';
import { holdingProxy, idle, launch, openPage, post, runAll, settled, slide, status } from './browser.mjs';

const [URL, ENDLESS] = process.argv.slice(2);
const browser = await launch();

const text = (page) => page.$$eval('#text .token', (all) => all.map((one) => one.textContent).join(''));
const names = (page) => page.$$eval('#text .token', (all) => all.map((one) => one.token.name));
const nodes = (page) =>
  page.$$eval('#tree .node', (all) =>
    all.map(({ node, className, children: [name, value, said] }) => {
      const place = (one) => (one === null ? null : [one.step, one.beam]);
      const is = (name) => className.split(' ').includes(name);
      const { text, p, score, sum } = node;
      return { at: place(node), from: place(node.before), text, p, score, sum, dead: is('dead'), won: is('won'), best: is('best'), ended: is('ended'), seen: [name.textContent, value.textContent], said: said.textContent };
    }),
  );

// What the page asks, and with what it is answered.
async function overhear(page) {
  const heard = { asked: [] };
  page.on('request', (request) => /completions/.test(request.url()) && heard.asked.push(JSON.parse(request.postData())));
  await page.evaluate(() => {
    const { fetch } = window;
    window.fetch = async (...args) => {
      const response = await fetch(...args);
      if (!/completions/.test(args[0])) return response;
      window.said = '';
      const decoder = new TextDecoder();
      const ear = new TransformStream({
        transform(data, passed) {
          window.said += decoder.decode(data, { stream: true });
          passed.enqueue(data);
        },
      });
      return new Response(response.body.pipeThrough(ear), response);
    };
  });
  heard.answer = async () => {
    const said = await page.evaluate(() => window.said);
    return said.split('\n\n').flatMap((part) => (/^data: \{/.test(part) ? [JSON.parse(part.slice(6))] : []));
  };
  return heard;
}

async function go(page) {
  await page.click('#go');
  await idle(page);
}

// Nothing moves that nobody has touched.
async function unmoved(page, act) {
  await page.evaluate(() => {
    window.shifts = [];
    window.watch = new PerformanceObserver((list) => window.shifts.push(...list.getEntries().filter((one) => !one.hadRecentInput)));
    window.watch.observe({ type: 'layout-shift' });
  });
  await act();
  const moved = await page.evaluate(() => {
    window.watch.disconnect();
    return window.shifts.map((one) => ({ value: one.value, what: one.sources.map((source) => `${source.node?.nodeName} ${source.node?.id} ${source.node?.className}`) }));
  });
  assert(moved.reduce((sum, one) => sum + one.value, 0) < 0.01, JSON.stringify(moved));
}

async function search(page, beams, penalty = 1) {
  if (!(await page.isVisible('#num_beams'))) await page.click('text=Beam search');
  await slide(page, 'num_beams', beams);
  await slide(page, 'length_penalty', penalty);
}

// The tree is what the server has told: every beam a node, its line from where it goes on, and what
// nothing continues fades.
async function beams(page) {
  const heard = await overhear(page);
  assert(!(await page.isVisible('#tree')) && (await page.isDisabled('#length_penalty') || !(await page.isVisible('#length_penalty'))));
  await search(page, 3, 0.5);
  assert(await page.isVisible('#tree'));
  await page.fill('#max_tokens', '14');
  await unmoved(page, () => go(page));
  const [{ use_beam_search, num_beams, length_penalty, stream_options }] = heard.asked;
  assert.deepEqual([use_beam_search, num_beams, length_penalty, stream_options.include_beams], [true, 3, 0.5, true]);

  const chunks = await heard.answer();
  const told = chunks.flatMap(({ beam }) => beam ?? []);
  const drawn = await nodes(page);
  assert(told.length > 14 && drawn.length === told.length, `${drawn.length} nodes of ${told.length}`);
  const goesOn = (step, place) => told.some((one) => one.step === step + 1 && one.parent === place);
  const running = (one) => one.finish_reason === null;
  // Of nodes that run on, those with somebody behind them.
  const lives = (one) => !running(one) || told.some((other) => other.step === one.step + 1 && other.parent === one.beam && lives(other));
  told.forEach((one, i) => {
    const node = drawn[i];
    const before = one.step === 1 ? null : told.find((other) => other.step === one.step - 1 && other.beam === one.parent);
    assert.deepEqual([node.at, node.from, node.text], [[one.step, one.beam], before && [before.step, before.beam], one.text]);
    const p = Math.exp(one.sum_logprob - (before?.sum_logprob ?? 0));
    assert(Math.abs(node.p - p) < 1e-9 && p > 0 && p <= 1 + 1e-6, `${node.p}, expected ${p}`);
    assert.deepEqual(node.seen, [one.text.replaceAll(' ', '␣') || '<end>', p < 0.005 ? '<1 %' : `${Math.round(100 * p)} %`]);
    assert.equal(node.ended, !running(one));
    assert.equal(node.dead, !lives(one), `${one.text} of step ${one.step}`);
    assert.equal(/left behind$/.test(node.said), node.dead, node.said);
  });
  assert(drawn.some((node) => node.dead) && drawn.some((node) => !node.dead));
  const edges = await page.$$eval('#tree path[d]', (all) => all.length);
  assert.equal(edges, told.filter((one) => one.step > 1).length);

  // The winner is marked from its first token to its last, and is the text.
  const { score } = chunks.flatMap(({ choices }) => choices).find((choice) => choice.finish_reason);
  const won = drawn.filter((node) => node.won);
  assert.deepEqual(won.map((node) => node.at[0]), won.map((_, i) => i + 1));
  assert.equal(won.at(-1).score, score);
  assert.equal(score, Math.max(...drawn.filter((node) => node.ended).map((node) => node.score)));
  assert(won.every((node) => node.best && !node.dead));
  assert.equal(await text(page), won.map((node) => node.text).join(''));

  // The same search, as others get it.
  const { choices } = await post(URL, '/v1/completions', { model: 'meta', prompt: 'Once upon a time', use_beam_search: true, num_beams: 3, length_penalty: 0.5, max_tokens: 14 });
  assert.equal(await text(page), choices[0].text);
}

// One stop of the Tab key; arrows go along the tree; what stands at a node is told, and a click
// takes its text.
async function treeKeys(page) {
  await search(page, 3);
  await page.fill('#max_tokens', '6');
  await go(page);
  const made = await text(page);
  assert.equal((await page.$$('#tree .node[tabindex="0"]')).length, 1);
  await page.focus('#tree .node[tabindex="0"]');
  const here = () => page.evaluate(() => [document.activeElement.node.step, document.activeElement.node.row]);
  const press = async (key) => {
    await page.keyboard.press(key);
    return here();
  };
  await page.keyboard.press('End');
  const leaf = await here();
  assert.equal(leaf[0], (await page.$$('#tree .node.won')).length);
  assert.deepEqual((await press('ArrowLeft'))[0], leaf[0] - 1);
  assert.deepEqual(await press('ArrowRight'), leaf);
  assert.deepEqual((await press('Home'))[0], 1);
  const first = await here();
  assert.deepEqual(await press('ArrowLeft'), first);
  assert.deepEqual(await press(first[1] === 0 ? 'ArrowDown' : 'ArrowUp'), [1, first[1] === 0 ? 1 : first[1] - 1]);
  assert.match(await page.textContent('#tree-about'), /^\d+\.\d %, sum −\d+\.\d\d, score −\d+\.\d\d: “.+”$/);
  // Another beam's text, and the text that was there again.
  const other = await page.evaluate(() => document.activeElement.node.text);
  await page.keyboard.press('Enter');
  assert.equal(await status(page), 'Took the text of this beam');
  assert.equal(await text(page), other);
  assert.equal((await page.$$('#tree .node')).length > 6, true, 'the tree stays');
  await page.click('text=Undo branch');
  assert.equal(await text(page), made);
  assert(!(await page.isVisible('#back')));

  // A change of the prompt ends what belongs to it.
  await page.fill('#prompt', 'The fox');
  assert.equal((await page.$$('#tree .node')).length, 0);
  await search(page, 1);
  assert(!(await page.isVisible('#tree')));
}

// A text that has nothing in front of it begins without the space of its first token, wherever that
// comes from; one in a language is that text, whatever is in front of it.
async function beginnings(page) {
  const heard = await overhear(page);
  await page.fill('#prompt', '');
  await settled(page);
  const { texts } = await post(URL, '/playground/next', { prompt: '' });
  assert.equal(texts[0], 'Once');
  await page.click('#next button >> nth=0');
  assert.equal(await text(page), 'Once');
  await page.fill('#max_tokens', '3');
  await go(page);
  assert.equal(heard.asked.at(-1).prompt, 'Once');

  const taken = async () => {
    const made = await text(page);
    await page.click('#tree .node.won >> nth=-1');
    assert.equal(await status(page), 'Took the text of this beam');
    assert.deepEqual([await text(page), made.startsWith(' ')], [made, false]);
  };
  await page.click('#clear');
  await search(page, 3);
  await go(page);
  await taken();
  await page.fill('#prompt', 'Once upon');
  await page.click('text=Grammar');
  await page.selectOption('#language', 'guided_regex');
  await page.fill('#source', '[a-z ]{8}');
  await page.fill('#max_tokens', '6');
  await go(page);
  await taken();
  await page.selectOption('#language', '');
  await page.click('label:has(input[value=chat])');
  await go(page);
  await taken();
}

// While it is searched the best so far is marked, and a search that is stopped has no winner.
async function stopped() {
  const proxy = await holdingProxy(ENDLESS, 40);
  const page = await openPage(browser, proxy.url);
  await settled(page);
  await search(page, 4);
  await page.fill('#prompt', '12345678901234567890');
  await page.fill('#max_tokens', '200');
  await page.click('#go');
  while (!proxy.isHolding()) await page.waitForTimeout(20);
  await page.waitForSelector('#tree .node.best');
  assert.equal(await status(page), 'Searching');
  assert(await page.evaluate(() => document.querySelector('#tree').scrollWidth > document.querySelector('#tree').clientWidth));
  await page.click('#stop');
  await idle(page);
  const drawn = await nodes(page);
  assert(drawn.some((node) => node.best) && !drawn.some((node) => node.won));
  assert.equal(await text(page), '');
  proxy.close();
  await page.close();
}

// What the server cannot search is told as it says it.
async function tooMany(page) {
  await page.route('**/v1/completions', (route) => route.fulfill({ status: 400, body: JSON.stringify({ error: { message: "'num_beams' is 8, more beams than the 4 that run at the same time." } }) }));
  await search(page, 8);
  await page.click('#go');
  await page.waitForSelector('#status.bad');
  assert.match(await status(page), /more beams than the 4/);
  assert.equal((await page.$$('#tree .node')).length, 0);
  await page.unroute('**/v1/completions');
}

// A click on what a token could have been goes on from there.
async function branches(page) {
  const heard = await overhear(page);
  await slide(page, 'temperature', 0);
  await page.fill('#max_tokens', '40');
  await go(page);
  const before = await names(page);
  const made = await text(page);
  await page.click('#text .token >> nth=20');
  assert.equal(await page.getAttribute('#tip', 'role'), 'dialog');
  assert.match(await page.textContent('#tip'), /Click a token: the text goes on from there\./);
  const rows = await page.$$eval('#tip button', (all) => all.map((one) => one.closest('li').dataset.token));
  assert(rows.length > 1, 'there are alternatives');
  const other = rows.findIndex((name) => name !== before[20] && !/^</.test(name));
  await page.click(`#tip button >> nth=${other}`);
  await idle(page);
  assert(!(await page.isVisible('#tip')));
  const after = await names(page);
  assert.deepEqual(after.slice(0, 21), [...before.slice(0, 20), rows[other]]);
  assert.equal(heard.asked.at(-1).prompt, `Once upon a time${before.slice(0, 20).join('')}${rows[other]}`);
  assert.equal(heard.asked.length, 2);
  const [, cached, of] = /^(\d+) of (\d+)$/.exec(await page.textContent('#f-cached'));
  assert(Number(cached) >= 16 && Number(of) > 20, `${cached} of ${of} tokens came from the prefix cache`);
  // What follows is what the model says to that text.
  const { choices } = await post(URL, '/v1/completions', { model: 'meta', prompt: heard.asked.at(-1).prompt, temperature: 0, max_tokens: 40 });
  assert.equal(after.slice(21).join(''), choices[0].text);

  await page.click('text=Undo branch');
  assert.equal(await text(page), made);

  // The same by keyboard: Enter opens, Escape closes and leaves the focus where it was.
  await page.focus('#prompt');
  await page.keyboard.press('Tab');
  const token = () => page.evaluate(() => document.activeElement.token?.name);
  await page.keyboard.press('Home');
  for (let i = 0; i < 5; i++) await page.keyboard.press('ArrowRight');
  assert.equal(await token(), before[5]);
  assert.equal(await page.getAttribute('#tip', 'role'), 'tooltip');
  await page.keyboard.press('Enter');
  assert(await page.evaluate(() => document.activeElement.matches('#tip .bar.chosen')));
  await page.keyboard.press('Escape');
  assert(!(await page.isVisible('#tip')));
  assert.equal(await token(), before[5]);
  await page.keyboard.press('Enter');
  await page.keyboard.press('Home');
  const first = await page.evaluate(() => document.activeElement.closest('li').dataset.token);
  await page.keyboard.press('Enter');
  await idle(page);
  assert.deepEqual((await names(page)).slice(0, 6), [...before.slice(0, 5), first]);
  assert.equal(await page.evaluate(() => document.activeElement.id), 'text');

  // A click elsewhere closes it; what has no text of its own is not taken.
  await page.click('#text .token >> nth=3');
  await page.click('h1');
  assert(!(await page.isVisible('#tip')));
  await page.evaluate(() => document.querySelectorAll('#text .token')[2].token.top.unshift({ text: '<end>', p: 0.5 }));
  const asked = heard.asked.length;
  await page.click('#text .token >> nth=2');
  await page.click('#tip button >> nth=0');
  assert.match(await status(page), /^<end> has no text/);
  assert.equal(heard.asked.length, asked);

  // A text of a grammar is made as a whole.
  await page.click('text=Grammar');
  await page.selectOption('#language', 'json_object');
  await page.click('#text .token >> nth=2');
  await page.click('#tip button >> nth=1');
  assert.match(await status(page), /^A text of a grammar is made as a whole/);
  assert.equal(heard.asked.length, asked);
}

// In a chat the answer up to the token is what the next one begins with.
async function chatBranches(page) {
  const heard = await overhear(page);
  await page.click('label:has(input[value=chat])');
  await slide(page, 'temperature', 0);
  await page.fill('#max_tokens', '24');
  await go(page);
  await page.fill('#message', 'And then?');
  await go(page);
  const turns = () => page.$$eval('#text .turn', (all) => all.map((one) => one.textContent));
  const all = await turns();
  assert.equal(all.length, 4);
  // In the first answer: what came after it is gone.
  const before = await page.$$eval('#text .turn:nth-child(2) .token', (list) => list.map((one) => one.token.text));
  await page.click('#text .turn:nth-child(2) .token >> nth=4');
  const rows = await page.$$eval('#tip button', (list) => list.map((one) => one.closest('li').dataset.token));
  const other = rows.findIndex((name) => name !== before[4] && !/^</.test(name));
  await page.click(`#tip button >> nth=${other}`);
  await idle(page);
  const begun = before.slice(0, 4).join('') + rows[other];
  assert.deepEqual(heard.asked.at(-1).messages.map(({ role, content }) => [role, content]), [['user', 'Tell me a story about a fox.'], ['assistant', begun]]);
  const now = await turns();
  assert.equal(now.length, 2);
  assert(now[1].startsWith(begun) && now[1] !== all[1], now[1]);
  const { choices } = await post(URL, '/v1/chat/completions', { model: 'meta', messages: heard.asked.at(-1).messages, temperature: 0, max_tokens: 24 });
  assert.equal(now[1], begun + choices[0].message.content);
  await page.click('text=Undo branch');
  assert.deepEqual(await turns(), all);
}

// Tokens that were guessed at are marked by what became of the guess, which changes no text.
async function guesses(page) {
  const heard = await overhear(page);
  await slide(page, 'temperature', 0);
  const story = (await post(URL, '/v1/completions', { model: 'meta', prompt: 'Once upon a time', temperature: 0, max_tokens: 60 })).choices[0].text;
  await page.fill('#prompt', `Once upon a time${story}\nOnce upon a time`);
  await page.fill('#max_tokens', '50');
  await go(page);
  const plain = await text(page);
  assert.equal((await page.$$('#text .accepted, #text .rejected')).length, 0);
  assert.equal(heard.asked[0].speculation, undefined);
  await page.click('#clear');
  await page.click('text=Guesses');
  await page.check('#guess');
  await slide(page, 'draft_len', 4); // as many as pay hangs on measured times
  await unmoved(page, () => go(page));
  assert.deepEqual([heard.asked[1].speculation, heard.asked[1].draft_len], ['auto', 4]);
  assert.equal(await text(page), plain);
  const told = (await heard.answer()).flatMap(({ choices }) => choices.flatMap((choice) => choice.logprobs?.drafts ?? []));
  const marked = await page.$$eval('#text .token', (all) => all.map((one) => (one.matches('.accepted') ? 'accepted' : one.matches('.rejected') ? 'rejected' : null)));
  assert.deepEqual(marked, told);
  const right = told.filter((one) => one === 'accepted').length;
  assert(right > 0, 'a text that repeats its prompt is guessed');
  assert.match(await page.textContent('#guessed'), new RegExp(`^${right} of \\d+ guesses were right\\.$`));
  await page.hover('#text .token.accepted >> nth=0');
  assert.match(await page.textContent('#tip'), /it was guessed, and needed no step of its own/);
}

const checks = { stopped };
for (const check of [beams, treeKeys, beginnings, tooMany, branches, chatBranches, guesses]) {
  checks[check.name] = async () => {
    const page = await openPage(browser, URL);
    await settled(page);
    await check(page);
    assert.deepEqual(page.troubles, []);
    await page.close();
  };
}
try {
  await runAll('playground decoding', checks);
} finally {
  await browser.close();
}
