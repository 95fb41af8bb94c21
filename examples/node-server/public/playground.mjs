// The playground: what is written, what the server says, and when to draw.
import { chunks, modelName, post, tokenOf, useKey } from './api.mjs';
import { allValid, numberIn, watchFields } from './fields.mjs';
import { Figures, noFigures } from './figures.mjs';
import { grammarFields, grammarIsGood, hasGrammar, watchGrammar } from './grammar.mjs';
import { roving } from './roving.mjs';
import { distribution } from './sampler.mjs';
import { beams, resetTree, searchFields, tree, watchSearch } from './search.mjs';
import { drawBars, isText, percent, tokenElement, visible, watchTokens, worthShowing } from './view.mjs';

const $ = (id) => document.getElementById(id);
const SHOWN = 14; // most bars of the next token
const PENALTIES = ['repetition_penalty', 'no_repeat_ngram_size', 'presence_penalty', 'frequency_penalty'];
const FIELDS = ['max_tokens', 'seed', ...PENALTIES];
// Sliders, and where each changes nothing.
const SLIDERS = { temperature: null, top_k: 0, top_p: 1, min_p: 0, typical_p: 1 };
const WRITE = 'Write something, and what may follow appears here.';
const number = (id) => Number($(id).value);

let model = null;
let running = null; // AbortController of the generation
let session = 0; // what an earlier one still generates is thrown away
let turns = []; // of the chat: { role, content, tokens }
let output = []; // tokens of the completion, or of the answer that is being made
let next = null; // the next token's whole distribution
let noNext = WRITE; // why there is none
let unfolded = false; // also tokens too unlikely for a bar
let former = null; // turns and output before the last branch
const tidyTip = watchTokens($('text'), $('tip'), branch);
let searchedFrom = null; // turns and output before the last search
watchSearch(take);
const wayIntoText = roving($('text'), '.token');
const wayIntoBars = roving($('next'), 'button.bar');

const mode = () => document.documentElement.dataset.mode;
const written = () => $('message').value.trim(); // the message as it is sent
const textOf = (tokens) => tokens.map((token) => token.text).join('');

function say(text, trouble = null) {
  // Setting the same text again would announce it again.
  if ($('status').textContent !== text) $('status').textContent = text;
  $('status').classList.toggle('bad', trouble !== null);
  $('remedy').hidden = !trouble?.tooLong;
  $('remedy').textContent = remedy().label;
  $('key-field').hidden = !trouble?.needsKey;
}

// What makes a text that is too long shorter: first what was made, then what was typed.
function remedy() {
  const empty = (id) => () => {
    $(id).value = '';
    $(id).focus();
    clear();
  };
  if (mode() === 'completion') {
    return output.length > 0 ? { label: 'Clear the generated text', run: clear } : { label: 'Clear the prompt', run: empty('prompt') };
  }
  return turns.length > 0 ? { label: 'Clear the conversation', run: clear } : { label: 'Clear the message', run: empty('message') };
}

// --- text ---

function drawText() {
  const parts = [];
  if (mode() === 'completion') {
    const given = document.createElement('span');
    given.className = 'given';
    given.textContent = $('prompt').value;
    if (output.length > 0 || running) parts.push(given, ...output.map(tokenElement));
  } else {
    const all = running ? [...turns, { role: 'assistant', tokens: output }] : turns;
    for (const turn of all) {
      const box = document.createElement('div');
      box.className = `turn ${turn.role}`;
      box.append(...(turn.tokens ? turn.tokens.map(tokenElement) : [turn.content]));
      parts.push(box);
    }
  }
  fresh = []; // they are among the parts
  $('text').replaceChildren(...parts);
  wayIntoText();
  $('text').scrollTop = $('text').scrollHeight;
  tidyTip();
}

// Tokens come faster than a screen is drawn, and a layout for each would leave no time for the Stop
// button.
let fresh = [];
let frame = null;
function append(token, drawn) {
  output.push(token);
  fresh.push(token);
  frame ??= requestAnimationFrame(() => {
    flush();
    drawn();
  });
}

function flush() {
  cancelAnimationFrame(frame);
  frame = null;
  const place = mode() === 'completion' ? $('text') : $('text').lastElementChild;
  const { scrollTop, clientHeight, scrollHeight } = $('text');
  const atEnd = scrollTop + clientHeight > scrollHeight - 40; // unless somebody reads further up
  place?.append(...fresh.map(tokenElement));
  fresh = [];
  if (atEnd) $('text').scrollTop = $('text').scrollHeight;
}

// --- generation ---

// What a request says, or null where there is nothing to ask for. `goesOn`: an answer has begun.
function request(goesOn) {
  const options = {
    model, stream: true, ...grammarFields(), ...searchFields(),
    stream_options: { include_usage: true, include_beams: beams() > 1, include_drafts: true }, ...($('guess').checked && { speculation: 'auto', draft_len: number('draft_len') }),
    ...Object.fromEntries(FIELDS.map((id) => [id, numberIn(id)])), ...Object.fromEntries(Object.keys(SLIDERS).map((id) => [id, number(id)])),
  };
  // A text of a grammar begins with it, and does not go on from another.
  if (hasGrammar() && mode() === 'completion') output = [];
  if (mode() === 'completion') return { path: '/v1/completions', body: { ...options, prompt: $('prompt').value + textOf(output), logprobs: 10 } };
  const ask = (messages) => ({ path: '/v1/chat/completions', body: { ...options, messages, logprobs: true, top_logprobs: 10 } });
  if (goesOn) return ask([...messages(), { role: 'assistant', content: textOf(output) }]);
  const content = written();
  if (content === '') return null;
  turns.push({ role: 'user', content });
  output = [];
  $('message').value = '';
  return ask(messages());
}

async function generate(goesOn = false) {
  if (running || !allValid(FIELDS) || !grammarIsGood()) return;
  if (!goesOn) setFormer(null);
  const job = request(goesOn);
  if (!job) return;
  const mine = session;
  const isKept = hasGrammar();
  const isSearch = beams() > 1;
  let score = null; // of a search's best
  running = new AbortController();
  $('go').disabled = true;
  $('stop').disabled = false;
  $('next').ariaBusy = 'true'; // until the text is whole
  drawText();
  drawNext();
  $('text').classList.add('caret');
  say(isSearch ? 'Searching' : 'Generating');
  if (isSearch) {
    searchedFrom = { turns: [...turns], output: [...output] };
    resetTree();
    $('tree').scrollIntoView({ block: 'nearest' });
  }
  $('guessed').textContent = '';
  const figures = new Figures(!isSearch);
  const showFigures = () => mine === session && figures.show();
  showFigures();
  const before = output.length;
  let reason = null;
  let trouble = null;
  try {
    const response = await post(job.path, job.body, running.signal);
    for await (const { usage, timings, beam, choices: [choice] } of chunks(response, job.body)) {
      if (mine !== session) return;
      if (usage) figures.finish(usage, timings);
      if (beam) grow(beam);
      if (!choice) continue;
      const token = tokenOf(choice, output.length === before);
      const heldBack = choice.text ?? choice.delta.content; // until now
      if (token) {
        figures.count();
        append(token, showFigures);
      } else if (heldBack) append({ text: heldBack, name: '', p: 1, top: [] }, showFigures);
      reason = choice.finish_reason ?? reason;
      score = choice.score ?? score;
    }
  } catch (error) {
    if (error.name === 'AbortError') reason = 'stopped';
    else trouble = error;
  }
  if (mine !== session) return;
  flush();
  if (isSearch) tree.finish(score);
  wayIntoText();
  showFigures();
  idle();
  if (mode() === 'chat') {
    if (output.length > 0) turns.push(answer());
    else $('message').value = turns.pop().content; // nothing came of it
  }
  if (mode() === 'chat' || output.length === 0) drawText();
  say(trouble?.message ?? outcome(reason, figures.tokens, job.body.max_tokens, isKept), trouble);
  refresh();
}

// A tree has many beams in a moment; it is drawn with the screen.
let growing = null;
function grow(beam) {
  tree.add(beam);
  growing ??= requestAnimationFrame(() => {
    growing = null;
    tree.draw();
  });
}

function outcome(reason, made, most, isKept) {
  switch (reason) {
    case 'stop':
      return isKept ? 'The text is of the grammar' : 'The model ended its text';
    case 'length':
      return isKept ? 'Stopped before the text was of the grammar: no room for more' : made < most ? 'Stopped: no room for another token' : `Stopped at the limit of ${most.toLocaleString('en')} tokens`;
    case 'stopped':
      return 'Stopped';
    default:
      return `Stopped: ${reason}`;
  }
}

function idle() {
  running?.abort();
  running = null;
  $('go').disabled = false;
  $('stop').disabled = true;
  $('text').classList.remove('caret');
}

// --- branches ---

// Goes on from another token than the one that is there.
function branch(token, name) {
  if (hasGrammar()) return say('A text of a grammar is made as a whole, and does not go on from another.');
  if (!isText(name)) return say(`${name} has no text that could go on`);
  const turn = turns.findIndex(({ tokens }) => tokens?.includes(token));
  const tokens = turn < 0 ? output : turns[turn].tokens;
  const at = tokens.indexOf(token);
  const { text, p } = name === token.name ? token : token.top.find((other) => other.text === name);
  const before = whole();
  stopMaking();
  if (turn >= 0) turns = turns.slice(0, turn);
  output = [...tokens.slice(0, at), { ...token, text, name, p, draft: null }];
  setFormer(before);
  $('text').focus({ preventScroll: true });
  generate(true);
}

// Takes a path of the tree as the text that the search has made.
function take(path) {
  setFormer(whole());
  stopMaking();
  output = [...searchedFrom.output, ...path];
  turns = [...searchedFrom.turns];
  if (mode() === 'chat') turns.push(answer());
  drawText();
  say('Took the text of this beam');
  refresh();
}

// What there is, in a form that nothing changes.
function whole() {
  const begun = mode() === 'chat' && running && output.length > 0;
  return { turns: begun ? [...turns, answer()] : [...turns], output };
}

const answer = () => ({ role: 'assistant', content: textOf(output), tokens: output });

function setFormer(value) {
  former = value;
  $('back').hidden = former === null;
}

// What is being made is of no use any more.
function stopMaking() {
  session++;
  idle();
}

function clear() {
  stopMaking();
  setFormer(null);
  resetTree();
  output = [];
  turns = [];
  drawText();
  noFigures();
  say('');
  refresh();
}

const messages = () => turns.map(({ role, content }) => ({ role, content }));

// --- the next token ---

// Asks for the distribution behind the current text, when nothing has changed for a moment.
let asked = 0;
let timer = null;
function refresh(delay = 0) {
  clearTimeout(timer);
  const mine = ++asked;
  $('next').ariaBusy = 'true'; // what is shown belongs to another text
  timer = setTimeout(async () => {
    let body;
    if (mode() === 'completion') body = { prompt: $('prompt').value + textOf(output) };
    else {
      const all = messages();
      const last = all.at(-1);
      if (last?.role === 'assistant') body = { messages: all.slice(0, -1), answer: last.content };
      else if (written() !== '') body = { messages: [...all, { role: 'user', content: written() }] };
    }
    let got = null;
    let trouble = null;
    try {
      if (body) got = await (await post('/playground/next', body)).json();
    } catch (error) {
      trouble = error;
    }
    if (mine !== asked || running) return;
    next = got;
    noNext = trouble ? (trouble.tooLong ? 'Nothing can follow this text.' : '') : WRITE;
    $('next').ariaBusy = 'false';
    drawNext();
    if (trouble) say(trouble.message, trouble);
    else if (!$('key-field').hidden) say(''); // it opened
  }, delay);
}

function drawNext() {
  for (const [id, unused] of Object.entries(SLIDERS)) {
    const text = number(id) === unused ? 'off' : id === 'top_k' ? $(id).value : number(id).toFixed(2);
    document.querySelector(`output[for=${id}]`).textContent = text;
    $(id).setAttribute('aria-valuetext', text);
  }
  $('legend').hidden = $('click').hidden = !next;
  if (!next) {
    $('more').hidden = true;
    drawBars($('next'), []);
    $('kept').textContent = noNext;
    return;
  }
  const p = distribution(next.logprobs, { temperature: number('temperature'), topK: number('top_k'), topP: number('top_p'), minP: number('min_p'), typicalP: number('typical_p') });
  const likeliest = next.texts.slice(0, SHOWN).map((text, i) => ({ text, raw: Math.exp(next.logprobs[i]), now: p[i] }));
  const folded = likeliest.length - worthShowing(likeliest);
  const canFold = folded > 2; // fewer take no more room than the button
  const rows = canFold && !unfolded ? likeliest.slice(0, -folded) : likeliest;
  drawBars($('next'), rows, mode() === 'completion' ? choose : undefined, 'Append this token');
  wayIntoBars();
  const kept = p.reduce((n, one) => n + (one > 0), 0);
  const rest = p.slice(rows.length).reduce((sum, one) => sum + one, 0);
  const spread = rest > 0 ? `; ${percent(rest)} is spread over those not shown` : '';
  $('more').hidden = !canFold;
  $('more').textContent = unfolded ? 'Show fewer' : `Show ${folded} more`;
  $('more').ariaExpanded = String(unfolded);
  $('kept').textContent = `${kept.toLocaleString('en')} of ${next.ids.length.toLocaleString('en')} tokens can be drawn${spread}.`;
}

// Appends a token of the reader's choice.
function choose(i) {
  const text = next.texts[i];
  if (running || $('next').ariaBusy === 'true') return;
  if (!isText(text)) return say(`${text} has no text that could be appended`);
  const top = next.texts.slice(0, 10).map((name, k) => ({ text: name, p: Math.exp(next.logprobs[k]) }));
  output.push({ text, name: text, p: Math.exp(next.logprobs[i]), top });
  drawText();
  say(`Appended “${visible(text)}”`);
  refresh();
}

// --- the page ---

function setMode(value) {
  document.documentElement.dataset.mode = value;
  $('go').textContent = value === 'chat' ? 'Send' : 'Generate';
  clear();
}

const dark = matchMedia('(prefers-color-scheme: dark)');
function setTheme(theme) {
  document.documentElement.dataset.theme = theme ?? (dark.matches ? 'dark' : 'light');
}

function drawGuesses() {
  const text = number('draft_len') === 0 ? 'as pays' : $('draft_len').value;
  document.querySelector('output[for=draft_len]').textContent = text;
  $('draft_len').setAttribute('aria-valuetext', text);
  $('draft_len').disabled = !$('guess').checked;
}

for (const radio of document.querySelectorAll('input[name=mode]')) radio.addEventListener('change', () => setMode(radio.value));
for (const id of Object.keys(SLIDERS)) $(id).addEventListener('input', drawNext);
$('prompt').addEventListener('input', () => {
  stopMaking(); // it belongs to another prompt
  setFormer(null);
  resetTree();
  output = [];
  drawText();
  noFigures();
  say('');
  refresh(250);
});
$('message').addEventListener('input', () => {
  if (!running) say('');
  refresh(250);
});
$('go').addEventListener('click', () => generate());
$('stop').addEventListener('click', () => running?.abort());
$('clear').addEventListener('click', clear);
$('back').addEventListener('click', () => {
  stopMaking();
  ({ turns, output } = former);
  setFormer(null);
  $('text').focus({ preventScroll: true });
  drawText();
  say('The text before the branch');
  refresh();
});
$('key').addEventListener('change', () => {
  useKey($('key').value.trim());
  refresh();
});
$('more').addEventListener('click', () => {
  unfolded = !unfolded;
  drawNext();
});
$('remedy').addEventListener('click', () => remedy().run());
$('theme').addEventListener('click', () => {
  setTheme(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
  localStorage.setItem('theme', document.documentElement.dataset.theme);
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) generate();
  else if (event.key === 'Escape') running?.abort();
});
dark.addEventListener('change', () => setTheme(localStorage.getItem('theme')));

setTheme(localStorage.getItem('theme'));
setMode('completion');
drawGuesses();
for (const id of ['guess', 'draft_len']) $(id).addEventListener('input', drawGuesses);
watchFields(FIELDS);
watchGrammar();
try {
  model = await modelName();
  $('model').textContent = $('model').title = model;
} catch (error) {
  say(error.message, error);
}
