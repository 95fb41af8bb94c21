// The playground: what is written, what the server says, and when to draw.
import { distribution } from './sampler.mjs';
import { drawBars, percent, tokenElement, watchTokens } from './view.mjs';

const $ = (id) => document.getElementById(id);
const SHOWN = 14; // bars of the next token
const number = (id) => Number($(id).value);

let model = null;
let running = null; // AbortController of the generation
let session = 0; // counts how often everything was cleared
let turns = []; // of the chat: { role, content, tokens }
let output = []; // tokens of the completion, or of the answer that is being made
let next = null; // the next token's whole distribution
const tidyTip = watchTokens($('text'), $('tip'));

const mode = () => document.documentElement.dataset.mode;
const textOf = (tokens) => tokens.map((token) => token.text).join('');

function say(text, bad = false) {
  $('status').textContent = text;
  $('status').classList.toggle('bad', bad);
}

async function post(path, body, signal) {
  const response = await fetch(path, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body), signal });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({ error: { message: response.statusText } }));
  throw new Error(error.message);
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
  wayIn();
  $('text').scrollTop = $('text').scrollHeight;
  tidyTip();
}

// The Tab key leads to the first token, the arrow keys on from there.
function wayIn() {
  const first = $('text').querySelector('.token');
  if (first) first.tabIndex = 0;
}

// Tokens come faster than a screen is drawn, and a layout for each would leave no time for the Stop button.
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

// The data of server-sent events.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split('\n\n');
    rest = parts.pop();
    for (const part of parts) if (part.startsWith('data: ')) yield part.slice(6);
  }
}

// A token of either protocol's chunk: { text, name, p, top }, or null.
function tokenOf({ text, delta, logprobs }, isFirst) {
  if (!logprobs) return null;
  let name, logprob, top;
  if (logprobs.content) {
    if (logprobs.content.length === 0) return null;
    ({ token: name, logprob, top_logprobs: top } = logprobs.content[0]);
    top = top.map((a) => [a.token, a.logprob]);
  } else {
    name = logprobs.tokens[0];
    logprob = logprobs.token_logprobs[0];
    top = Object.entries(logprobs.top_logprobs[0]);
  }
  text ??= delta.content ?? '';
  // The library begins its text without the first token's space; behind a prompt it belongs there.
  if (isFirst && mode() === 'completion' && name === ` ${text}`) text = name;
  top = top.map(([name, l]) => ({ text: name === '' ? '<end>' : name, p: Math.exp(l) })).sort((a, b) => b.p - a.p);
  return { text, name, p: Math.exp(logprob), top };
}

async function generate() {
  if (running) return;
  const chat = mode() === 'chat';
  const options = {
    model, stream: true, stream_options: { include_usage: true }, max_tokens: number('max_tokens'),
    temperature: number('temperature'), top_k: number('top_k'), top_p: number('top_p'),
    ...($('seed').value === '' ? {} : { seed: number('seed') }),
  };
  let path, body;
  if (chat) {
    const content = $('message').value.trim();
    if (content === '') return;
    turns.push({ role: 'user', content });
    output = [];
    $('message').value = '';
    path = '/v1/chat/completions';
    body = { ...options, messages: messages(), logprobs: true, top_logprobs: 10 };
  } else {
    path = '/v1/completions';
    body = { ...options, prompt: $('prompt').value + textOf(output), logprobs: 10 };
  }

  const mine = session;
  running = new AbortController();
  $('go').disabled = true;
  $('stop').disabled = false;
  drawText();
  drawNext();
  $('text').classList.add('caret');
  say('Generating');
  const begin = performance.now();
  const before = output.length;
  let first = null;
  let last = begin;
  let done = false;
  const showFigures = () => done || mine !== session || figures(output.length - before, rate(), first - begin, null);
  let outcome = '';
  let bad = false;
  figures(0, null, null, null);
  try {
    const response = await post(path, body, running.signal);
    for await (const data of events(response)) {
      if (data === '[DONE]' || mine !== session) break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) {
        // The server's clock: fast models arrive here in bursts.
        const { first_token_ms, total_ms } = chunk.timings;
        const { completion_tokens: n, prompt_tokens, prompt_tokens_details } = chunk.usage;
        const speed = n > 1 ? (1000 * (n - 1)) / (total_ms - first_token_ms) : null;
        done = true;
        figures(n, speed, first - begin, prompt_tokens_details && `${prompt_tokens_details.cached_tokens} of ${prompt_tokens}`);
      }
      const choice = chunk.choices[0];
      if (!choice) continue;
      const token = tokenOf(choice, output.length === before);
      if (token) {
        last = performance.now();
        first ??= last;
        append(token, showFigures);
      } else if (choice.text || choice.delta?.content) {
        append({ text: choice.text ?? choice.delta.content, name: '', p: 1, top: [] }, showFigures); // held back until now
      }
      if (choice.finish_reason) outcome = choice.finish_reason === 'length' ? 'Stopped at the limit of tokens' : 'The model ended its text';
    }
  } catch (error) {
    const stopped = error.name === 'AbortError';
    outcome = stopped ? 'Stopped' : error.message;
    bad = !stopped;
  }
  function rate() {
    const n = output.length - before;
    return n > 1 ? (1000 * (n - 1)) / (last - first) : null;
  }
  if (mine !== session) return;
  flush();
  wayIn();
  showFigures();
  idle();
  if (chat) {
    if (output.length > 0) turns.push({ role: 'assistant', content: textOf(output), tokens: output });
    else $('message').value = turns.pop().content; // nothing came of it
    drawText();
  }
  say(outcome, bad);
  refresh();
}

function idle() {
  running?.abort();
  running = null;
  $('go').disabled = false;
  $('stop').disabled = true;
  $('text').classList.remove('caret');
}

function clear() {
  session++;
  idle();
  output = [];
  turns = [];
  drawText();
  figures('–', null, null, null);
  say('');
  refresh();
}

function figures(tokens, rate, first, cached) {
  $('f-tokens').textContent = tokens;
  $('f-rate').textContent = rate === null ? '–' : rate.toFixed(rate < 100 ? 1 : 0);
  $('f-first').textContent = first === null ? '–' : `${first.toFixed(first < 100 ? 1 : 0)} ms`;
  $('f-cached').textContent = cached ?? '–';
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
      else if ($('message').value.trim()) body = { messages: [...all, { role: 'user', content: $('message').value }] };
    }
    let got = null;
    let problem = '';
    try {
      if (body) got = await (await post('/playground/next', body)).json();
    } catch (error) {
      problem = error.message;
    }
    if (mine !== asked || running) return;
    next = got;
    $('next').ariaBusy = 'false';
    drawNext();
    if (problem) say(problem, true);
  }, delay);
}

function drawNext() {
  for (const id of ['temperature', 'top_k', 'top_p']) {
    const off = (id === 'top_k' && number(id) === 0) || (id === 'top_p' && number(id) === 1);
    const text = off ? 'off' : id === 'top_k' ? $(id).value : number(id).toFixed(2);
    document.querySelector(`output[for=${id}]`).textContent = text;
    $(id).setAttribute('aria-valuetext', text);
  }
  if (!next) {
    drawBars($('next'), []);
    $('kept').textContent = 'Write something, and what may follow appears here.';
    return;
  }
  const p = distribution(next.logprobs, { temperature: number('temperature'), topK: number('top_k'), topP: number('top_p') });
  const rows = next.texts.slice(0, SHOWN).map((text, i) => ({ text, raw: Math.exp(next.logprobs[i]), now: p[i] }));
  drawBars($('next'), rows, mode() === 'completion' && !running ? choose : undefined);
  const kept = p.reduce((n, one) => n + (one > 0), 0);
  const rest = p.slice(SHOWN).reduce((sum, one) => sum + one, 0);
  $('kept').textContent = `${kept.toLocaleString('en')} of ${next.ids.length.toLocaleString('en')} tokens can be drawn` +
    (rest > 0 ? `; ${percent(rest)} is spread over those not shown.` : '.');
}

// Appends a token of the reader's choice.
function choose(i) {
  const text = next.texts[i];
  if ($('next').ariaBusy === 'true' || /^<.*>$|^bytes:/.test(text)) return; // no text of its own
  if (output.length === 0) drawText();
  const top = next.texts.slice(0, 10).map((name, k) => ({ text: name, p: Math.exp(next.logprobs[k]) }));
  output.push({ text, name: text, p: Math.exp(next.logprobs[i]), top });
  drawText();
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

for (const radio of document.querySelectorAll('input[name=mode]')) radio.addEventListener('change', () => setMode(radio.value));
for (const id of ['temperature', 'top_k', 'top_p']) $(id).addEventListener('input', drawNext);
$('prompt').addEventListener('input', () => {
  output = [];
  drawText();
  refresh(250);
});
$('message').addEventListener('input', () => refresh(250));
$('go').addEventListener('click', generate);
$('stop').addEventListener('click', () => running?.abort());
$('clear').addEventListener('click', clear);
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
try {
  model = (await (await fetch('/v1/models')).json()).data[0].id;
  $('model').textContent = model;
} catch {
  say('The server does not answer.', true);
}
