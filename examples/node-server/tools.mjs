// Tools: what requests say of them, chats that have calls in them, and calls as the protocol has
// them.
import { randomUUID } from 'node:crypto';
import { CallReader, FORMS } from './calls.mjs';
import { choiceOf, forcedCalls } from './forced.mjs';
import { badRequest } from './http.mjs';
import { isObject, isObjectText, kind, nestedTooDeep, rawOf, wellFormed } from './json.mjs';
import { contentOf, listOf, onlyHas, PARSED, roleOf, typeOf } from './messages.mjs';

/**
 * The tools that the model may call, null where there are none: `names`, their `json` for the
 * template, whether only the first call of an answer counts (`single`), and the language of the
 * calls that have to come (`forced`, null: the model may call or not). An answer that is no call is
 * in the language of `answer`, if that is not null.
 */
export function toolsOf(body, template, answer) {
  const choice = choiceOf(body);
  const parallel = body.parallel_tool_calls ?? true;
  if (typeof parallel !== 'boolean') throw badRequest('parallel_tool_calls', `'parallel_tool_calls' must be true or false, not ${kind(parallel)}.`);
  const tools = body.tools ?? [];
  if (!Array.isArray(tools)) throw badRequest('tools', `'tools' must be an array of tools, not ${kind(tools)}.`);
  if (tools.length === 0) {
    if (choice.mode === 'required') throw badRequest('tool_choice', "'tool_choice' asks for a call, but there are no 'tools'.");
    return null;
  }
  if (!template?.tools) throw badRequest('tools', "'tools' is not supported: the model's chat format has no place for tools.");
  if (template.form === null) {
    throw badRequest('tools', "'tools' is not supported: the model's chat format has calls in a form that the service does not know.");
  }
  const names = tools.map((tool, i) => {
    const at = `tools[${i}]`;
    if (!isObject(tool)) throw badRequest(at, `'${at}' must be an object with a 'type' and a 'function', not ${kind(tool)}.`);
    if (tool.type !== 'function') throw badRequest(`${at}.type`, `'${at}.type' must be 'function': the service has no tools of its own.`);
    const called = tool.function;
    if (!isObject(called)) throw badRequest(`${at}.function`, `'${at}.function' must be an object with a 'name', not ${kind(called)}.`);
    if (typeof called.name !== 'string' || called.name === '') {
      throw badRequest(`${at}.function.name`, `'${at}.function.name' must be a string with a name.`);
    }
    return wellFormed(called.name);
  });
  if (choice.name !== undefined && !names.includes(choice.name)) {
    throw badRequest('tool_choice', `'tool_choice' is '${[...choice.name].slice(0, 100).join('')}', which is none of 'tools'.`);
  }
  if (choice.mode === 'none') return null; // what the model does not hear of it does not call
  const use = { names, json: rawOf(body, 'tools'), form: template.form, marker: template.marker, single: !parallel };
  return { ...use, forced: choice.mode === 'required' || answer !== null ? forcedCalls(use, choice, tools, answer) : null };
}

/** JSON of the variables that the template sees beside. */
export function variablesOf(body, template) {
  const name = 'chat_template_kwargs';
  const variables = body[name] ?? {};
  if (!isObject(variables)) throw badRequest(name, `'${name}' must be an object, not ${kind(variables)}.`);
  const keys = Object.keys(variables).sort();
  if (keys.length === 0) return undefined;
  if (!template) throw badRequest(name, `'${name}' is not supported: the model has no chat template.`);
  for (const key of ['messages', 'tools']) {
    if (keys.includes(key)) throw badRequest(`${name}.${key}`, `'${name}.${key}' is not supported: the request has '${key}' for that.`);
  }
  return rawOf(body, name);
}

/**
 * What the template gets of a request's messages; where `begun`, the last of them is what the
 * answer begins with.
 */
export function conversationOf(list, template) {
  const messages = listOf(list).map((message, i) => messageOf(`messages[${i}]`, message, template, i === list.length - 1));
  const last = messages.at(-1);
  if (last.role !== 'assistant') return { messages, begun: false };
  if (last.content !== '') return { messages, begun: true };
  messages.pop(); // nothing is begun
  if (messages.length === 0) throw badRequest('messages', "'messages' must have a message before the one of 'assistant' that is continued.");
  return { messages, begun: false };
}

function messageOf(at, message, template, isLast) {
  if (!isObject(message)) throw badRequest(at, `'${at}' must be an object with a 'role' and a 'content', not ${kind(message)}.`);
  const role = roleOf(at, message);
  const known = ['role', 'content', 'name'];
  if (!['system', 'user', 'assistant', ...(template.results ? ['tool'] : [])].includes(role)) {
    const shown = [...role].slice(0, 100).join('');
    const others = template.results ? "'user', 'assistant' and 'tool'" : "'user' and 'assistant'";
    throw badRequest(`${at}.role`, `'${at}.role' is '${shown}'; the model's chat format has 'system' (or 'developer'), ${others}.`);
  }
  if (role === 'assistant') known.push('reasoning_content', PARSED, ...(template.calls ? ['tool_calls'] : []));
  if (role === 'tool') {
    known.push('tool_call_id');
    if (message.tool_call_id == null) throw badRequest(`${at}.tool_call_id`, `'${at}.tool_call_id' is missing.`);
  }
  onlyHas(at, message, [...known, ...typeOf(message)]);
  const made = { role };
  for (const name of ['name', 'reasoning_content', 'tool_call_id']) {
    if (message[name] == null) continue;
    if (typeof message[name] !== 'string') throw badRequest(`${at}.${name}`, `'${at}.${name}' must be a string, not ${kind(message[name])}.`);
    made[name] = wellFormed(message[name]);
  }
  const calls = callsOf(`${at}.tool_calls`, message.tool_calls ?? []);
  if (calls.length > 0) {
    if (isLast) throw badRequest(`${at}.tool_calls`, `'${at}.tool_calls' must be followed by a message of 'tool' for each call.`);
    made.tool_calls = calls;
  }
  if (message.content == null && calls.length > 0) made.content = template.nulls ? null : '';
  else made.content = contentOf(`${at}.content`, message.content);
  return made;
}

// An assistant's earlier calls.
function callsOf(name, calls) {
  if (!Array.isArray(calls)) throw badRequest(name, `'${name}' must be an array of calls, not ${kind(calls)}.`);
  const text = (at, object, name) => {
    if (typeof object[name] === 'string') return wellFormed(object[name]);
    throw badRequest(`${at}.${name}`, `'${at}.${name}' must be a string, not ${kind(object[name])}.`);
  };
  return calls.map((call, i) => {
    const at = `${name}[${i}]`;
    if (!isObject(call)) throw badRequest(at, `'${at}' must be an object with an 'id' and a 'function', not ${kind(call)}.`);
    const id = text(at, call, 'id');
    if ((call.type ?? 'function') !== 'function') throw badRequest(`${at}.type`, `'${at}.type' must be 'function'.`);
    onlyHas(at, call, ['id', 'type', 'function', 'index']); // see PARSED
    const called = call.function;
    const within = `${at}.function`;
    if (!isObject(called)) throw badRequest(within, `'${within}' must be an object with a 'name' and 'arguments', not ${kind(called)}.`);
    const made = { name: text(within, called, 'name'), arguments: text(within, called, 'arguments') };
    if (made.arguments === '') made.arguments = '{}'; // as some models write a call without any
    if (nestedTooDeep(Buffer.from(made.arguments)) || !isObjectText(made.arguments)) {
      throw badRequest(`${within}.arguments`, `'${within}.arguments' must be a JSON object in a string.`);
    }
    onlyHas(within, called, ['name', 'arguments', 'parsed_arguments']);
    return { id, type: 'function', function: made };
  });
}

/** Makes of an answer's text the protocol's text and calls. */
export class AnswerReader {
  #tools;
  #reader;
  #made = 0;

  constructor(tools) {
    this.#tools = tools;
    this.#reader = new CallReader(tools.form, tools.names);
  }

  /** The next piece of the answer; `finish` is how it ends, null until then. */
  read(text, finish) {
    const pieces = [this.#reader.push(text), ...(finish === null ? [] : [this.#reader.end()])];
    let calls = pieces.flatMap((piece) => piece.calls);
    if (this.#tools.single) calls = calls.slice(0, this.#made > 0 ? 0 : 1);
    calls = calls.map((call) => ({ index: this.#made++, id: this.#id(), type: 'function', function: call }));
    return {
      text: pieces.map((piece) => piece.text).join(''),
      calls,
      finish: finish === 'stop' && this.#made > 0 ? 'tool_calls' : finish,
    };
  }

  // Of a new call; Mistral's templates take none but nine letters and digits.
  #id() {
    const id = randomUUID().replaceAll('-', '');
    return this.#tools.form === FORMS.mistral ? id.slice(0, 9) : `call_${id.slice(0, 24)}`;
  }
}

/** What a stream has of a call: first id and name, then the arguments. */
export const deltasOf = ({ index, id, type, function: { name, arguments: json } }) => [
  { tool_calls: [{ index, id, type, function: { name, arguments: '' } }] },
  { tool_calls: [{ index, function: { arguments: json } }] },
];
