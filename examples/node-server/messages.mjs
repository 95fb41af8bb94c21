// Messages of a chat, as a dialog that Meta's format has a place for.
import { badRequest } from './http.mjs';
import { isObject, kind, wellFormed } from './json.mjs';

// What the format is made of. The library looks for it in a dialog; the beginning of an answer is
// not part of one.
const TAGS = ['[INST]', '[/INST]', '<<SYS>>', '<</SYS>>'];
// The library's own words.
const TAGS_REFUSED = 'Error: special tags are not allowed as part of the prompt.';

/**
 * Of OpenAI's clients: they add to an answer's message the value of its JSON, to a call's function
 * that of its arguments, and its index where they have put a stream together. Who sends the message
 * back sends these, too. They say nothing that the texts do not.
 */
export const PARSED = 'parsed';

/**
 * The field `type` of a message whose value is what messages are: lm-evaluation-harness sends it
 * with each.
 */
export const typeOf = (message) => (message.type === 'text' ? ['type'] : []);

/** Refuses other fields of a part of a request, unless they are null or empty. */
export function onlyHas(name, object, known) {
  for (const key of Object.keys(object).sort()) {
    const value = object[key];
    if (known.includes(key) || value === null || (Array.isArray(value) && value.length === 0)) continue;
    throw badRequest(`${name}.${key}`, `'${name}.${key}' is not supported: the model's chat format has no place for it.`);
  }
}

/** A text, or a list of parts that are texts. */
export function contentOf(name, content) {
  if (typeof content === 'string') return wellFormed(content);
  if (!Array.isArray(content)) throw badRequest(name, `'${name}' must be a string or an array of parts, not ${kind(content)}.`);
  const texts = content.map((part, i) => {
    const at = `${name}[${i}]`;
    if (!isObject(part)) throw badRequest(at, `'${at}' must be an object with a 'type', not ${kind(part)}.`);
    if (part.type !== 'text') throw badRequest(`${at}.type`, `'${at}.type' must be 'text': the model reads nothing else.`);
    if (typeof part.text !== 'string') throw badRequest(`${at}.text`, `'${at}.text' must be a string, not ${kind(part.text)}.`);
    onlyHas(at, part, ['type', 'text']);
    return wellFormed(part.text);
  });
  return texts.join('');
}

export function roleOf(name, { role = null }) {
  if (role === null) throw badRequest(`${name}.role`, `'${name}.role' is missing.`);
  if (typeof role !== 'string') throw badRequest(`${name}.role`, `'${name}.role' must be a string, not ${kind(role)}.`);
  return role === 'developer' ? 'system' : role; // the newer name of the same
}

// Role and text of one message.
function messageOf(name, message) {
  if (!isObject(message)) throw badRequest(name, `'${name}' must be an object with a 'role' and a 'content', not ${kind(message)}.`);
  const role = roleOf(name, message);
  if (!['system', 'user', 'assistant'].includes(role)) {
    const shown = [...role].slice(0, 100).join('');
    throw badRequest(`${name}.role`, `'${name}.role' is '${shown}'; the model's chat format has 'system' (or 'developer'), 'user' and 'assistant'.`);
  }
  onlyHas(name, message, ['role', 'content', ...(role === 'assistant' ? [PARSED] : []), ...typeOf(message)]);
  return { role, text: contentOf(`${name}.content`, message.content) };
}

/** A request's messages, at least one. */
export function listOf(messages) {
  if (messages === undefined || messages === null) throw badRequest('messages', "You must provide a 'messages' parameter.");
  if (!Array.isArray(messages)) throw badRequest('messages', `'messages' must be an array of messages, not ${kind(messages)}.`);
  if (messages.length === 0) throw badRequest('messages', 'messages is empty: it must have at least one message.');
  return messages;
}

/**
 * The dialog, and the beginning of its answer ('' for none).
 *
 * The format has one system prompt, in front, and then user and assistant in turn. So system
 * messages, wherever they are, become one, and so do messages of one role in a row: with a blank
 * line between them. An assistant's message at the end is what the answer begins with.
 */
export function dialogOf(messages) {
  listOf(messages);
  const system = [];
  const turns = [];
  let last;
  messages.forEach((message, i) => {
    const name = `messages[${i}]`;
    const { role, text } = messageOf(name, message);
    last = role;
    if (role === 'system') system.push(text);
    else if (turns.at(-1)?.role === role) turns.at(-1).texts.push(text);
    else if (turns.length === 0 && role === 'assistant') {
      throw badRequest(`${name}.role`, `The first message that is not of 'system' must be of 'user', '${name}' is of 'assistant'.`);
    } else turns.push({ role, texts: [text] });
  });
  if (turns.length === 0) throw badRequest('messages', "'messages' must have a message of 'user'.");
  const dialog = turns.map(({ role, texts }) => ({ role, content: texts.join('\n\n') }));
  if (system.length > 0) dialog.unshift({ role: 'system', content: system.join('\n\n') });
  if (dialog.at(-1).role === 'user') return { dialog, begun: '' };
  if (last !== 'assistant') {
    const message = `After an answer the last message must be of 'user', or of 'assistant' to be continued, not of '${last}'.`;
    throw badRequest(`messages[${messages.length - 1}].role`, message);
  }
  const begun = dialog.pop().content;
  if (TAGS.some((tag) => begun.includes(tag))) throw badRequest('messages', TAGS_REFUSED);
  return { dialog, begun };
}
