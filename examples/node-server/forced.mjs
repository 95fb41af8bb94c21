// Calls that a request asks for, as a language that the answer is kept in.
import { inLark, knowsOnly, withMember } from './constraint.mjs';
import { badRequest } from './http.mjs';
import { isObject, kind, rawParts } from './json.mjs';

/**
 * What a request wants of its tools: the `mode` auto, none, or required; with a `name`, a call of
 * that tool.
 */
export function choiceOf({ tool_choice: choice }) {
  if (choice === undefined || choice === null) return { mode: 'auto' };
  if (['auto', 'none', 'required'].includes(choice)) return { mode: choice };
  const called = isObject(choice) && isObject(choice.function) ? choice.function.name : null;
  if (choice.type === 'function' && typeof called === 'string' && called !== '') {
    knowsOnly('tool_choice', choice, ['type', 'function']);
    knowsOnly('tool_choice.function', choice.function, ['name']);
    return { mode: 'required', name: called };
  }
  throw badRequest('tool_choice', "'tool_choice' must be 'auto', 'none', 'required', or an object with the 'type' 'function' and a 'function' that has a 'name'.");
}

/**
 * The language of the calls that a request asks for, in the form that the model has for them: their
 * names are those of tools, their arguments as the tools' parameters say. Where the request asks
 * for no call, an answer may also be in the language of its own, `answer`.
 */
export function forcedCalls({ names, json, form, marker, single }, choice, tools, answer) {
  const alternatives = [];
  if (answer !== null) {
    if (choice.mode === 'required') throw badRequest('tool_choice', `'tool_choice' asks for a call, and '${answer.field}' for another answer.`);
    const expression = inLark(answer);
    if (expression === null) throw badRequest(answer.field, `'${answer.field}' is not supported with 'tools', unless 'tool_choice' is 'none'.`);
    alternatives.push(expression);
  }
  const texts = rawParts(json);
  const calls = [];
  const rules = names.map((name, i) => {
    if (choice.name !== undefined && name !== choice.name) return '';
    calls.push(`call${i}`);
    const begin = `{"name": ${JSON.stringify(name)}, "${form.bare ? 'parameters' : 'arguments'}": `;
    return `call${i}: ${JSON.stringify(begin)} arguments${i} "}"\narguments${i}: %json ${parametersOf(i, tools[i].function.parameters, texts[i][1])}\n`;
  });
  alternatives.push(callsOf(form, marker, !single && choice.name === undefined));
  const lark = `start: ${alternatives.join(' | ')}\ncall: ${calls.join(' | ')}\n${rules.join('')}`;
  return { field: answer?.field ?? 'tools', source: { lark } };
}

// An expression of one call, or of several.
function callsOf({ marker: text, open, close, bare }, marker, several) {
  const mark = marker === null ? JSON.stringify(text) : `<[${marker}]>`;
  if (open === '[') return `${mark} "[" call${several ? ' (", " call)*' : ''} "]"`;
  if (bare) return several ? 'call ("; " call)*' : 'call';
  const one = `${mark} "\\n" call ${JSON.stringify(`\n${close}`)}`;
  return several ? `(${one}) ("\\n" ${one})*` : one;
}

// The schema of a tool's arguments: of an object, for nothing else is a call.
function parametersOf(i, parameters, tool) {
  const at = `tools[${i}].function.parameters`;
  if (parameters === undefined || parameters === null) return '{"type": "object", "properties": {}, "additionalProperties": false}';
  if (!isObject(parameters)) throw badRequest(at, `'${at}' must be an object, not ${kind(parameters)}.`);
  const type = parameters.type ?? null;
  if (type !== null && type !== 'object') throw badRequest(`${at}.type`, `'${at}.type' must be 'object'.`);
  const part = (text, name) => rawParts(text).findLast(([key]) => key === name)[1];
  const schema = part(part(tool, 'function'), 'parameters');
  return type === null ? withMember(schema, '"type": "object"') : schema;
}
