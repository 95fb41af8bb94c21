// The grammar that answers are kept to: what is chosen and written, and the server's verdict on it.
import { post } from './api.mjs';

const $ = (id) => document.getElementById(id);

// What each choice asks to be written, and an example of it.
const SOURCES = {
  guided_json: ['Schema', '{\n  "type": "object",\n  "properties": {\n    "animal": { "enum": ["fox", "cat"] },\n    "legs": { "type": "integer", "minimum": 0, "maximum": 9 }\n  },\n  "required": ["animal", "legs"]\n}'],
  guided_regex: ['Regular expression', '(red|blue|green) (fox|cat)'],
  guided_choice: ['Texts, one on a line', 'yes\nno'],
  guided_grammar: ['Grammar', 'start: WORD (" " WORD)* "."\nWORD: /[a-z]+/'],
};
const written = new Map(Object.entries(SOURCES).map(([name, [, example]]) => [name, example]));

let verdict = null; // of what is there now: true, false, or null until it is known
let asked = 0;
let timer = null;

/** The field of a request that asks for the grammar; {}: none. */
export function grammarFields() {
  const name = $('language').value;
  const source = $('source').value;
  if (name === '') return {};
  if (name === 'json_object') return { response_format: { type: name } };
  return { [name]: name === 'guided_choice' ? source.split('\n').filter((line) => line !== '') : source };
}

/** Whether answers are kept to a grammar. */
export const hasGrammar = () => $('language').value !== '';

/**
 * Whether the server can use the grammar, as far as is known; one that it cannot gets the focus.
 */
export function grammarIsGood() {
  if (verdict !== false) return true;
  $('grammar').open = true;
  $('source').focus();
  return false;
}

function say(text, isBad) {
  // Setting the same text again would announce it again.
  if ($('verdict').textContent !== text) $('verdict').textContent = text;
  $('verdict').classList.toggle('bad', isBad);
  if (isBad) $('source').setAttribute('aria-invalid', 'true');
  else $('source').removeAttribute('aria-invalid');
}

// Asks the server, when nothing has changed for a moment.
function judge(delay) {
  clearTimeout(timer);
  const mine = ++asked;
  verdict = null;
  if (!hasGrammar()) return say('', false);
  timer = setTimeout(async () => {
    let trouble = null;
    try {
      await post('/playground/grammar', grammarFields());
    } catch (error) {
      trouble = error;
    }
    if (mine !== asked) return;
    verdict = trouble === null ? true : trouble.isRefusal ? false : null;
    // An expression has no lines of its own: those are of the grammar that the library puts it in.
    const said = $('language').value === 'guided_grammar' ? trouble?.message : trouble?.message.replace(/, line \d+, column \d+(?=: )/, '');
    say(said ?? 'Good: every answer that ends by itself is of this grammar.', trouble !== null);
  }, delay);
}

export function watchGrammar() {
  let shown = '';
  $('language').addEventListener('change', () => {
    if (written.has(shown)) written.set(shown, $('source').value);
    shown = $('language').value;
    $('source-field').hidden = !written.has(shown);
    $('source-name').textContent = SOURCES[shown]?.[0] ?? '';
    $('source').value = written.get(shown) ?? '';
    judge(0);
  });
  $('source').addEventListener('input', () => judge(250));
}
