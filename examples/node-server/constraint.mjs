// The languages that a request's answers are to be in.
import { badRequest } from './http.mjs';
import { isObject, kind, rawOf, wellFormed } from './json.mjs';

// The fields that ask for a language, an answer can have one; each reads what the library makes a
// grammar of, null: any text.
const FIELDS = {
  guided_choice(name, value) {
    if (!Array.isArray(value)) throw badRequest(name, `'${name}' must be an array of strings, not ${kind(value)}.`);
    value.forEach((text, i) => {
      if (typeof text !== 'string') throw badRequest(name, `'${name}[${i}]' must be a string, not ${kind(text)}.`);
    });
    return { choice: JSON.stringify(value.map(wellFormed)) };
  },
  guided_grammar: (name, value) => ({ lark: sourceText(name, value) }),
  guided_json(name, value, body) {
    if (typeof value === 'string') return { jsonSchema: wellFormed(value) };
    if (!isObject(value)) throw badRequest(name, `'${name}' must be an object or a string, not ${kind(value)}.`);
    return { jsonSchema: rawOf(body, ...name.split('.')) };
  },
  guided_regex: (name, value) => ({ regex: sourceText(name, value) }),
  response_format: responseFormat,
  structured_outputs: structuredOutputs,
};
export const CONSTRAINTS = Object.keys(FIELDS);

function sourceText(name, value) {
  if (typeof value !== 'string') throw badRequest(name, `'${name}' must be a string, not ${kind(value)}.`);
  return wellFormed(value);
}

// vLLM's newer name of its fields: an object with one of them, without their prefix, or
// json_object.
function structuredOutputs(name, given, body) {
  if (!isObject(given)) throw badRequest(name, `'${name}' must be an object, not ${kind(given)}.`);
  const parts = ['choice', 'grammar', 'json', 'json_object', 'regex'];
  knowsOnly(name, given, parts);
  let found = null;
  for (const part of parts) {
    const at = `${name}.${part}`;
    const value = given[part] ?? null;
    if (part === 'json_object' && value !== null && typeof value !== 'boolean') {
      throw badRequest(at, `'${at}' must be true or false, not ${kind(value)}.`);
    }
    if (value === null || value === false && part === 'json_object') continue;
    if (found !== null) throw badRequest(at, `'${found.field}' and '${at}' are two constraints; an answer can have one.`);
    const source = part === 'json_object' ? { jsonSchema: '{"type": "object"}' } : FIELDS[`guided_${part}`](at, value, body);
    found = { field: at, ...source };
  }
  if (found === null) throw badRequest(name, `'${name}' must have one of 'choice', 'grammar', 'json', 'json_object' and 'regex'.`);
  return found;
}

// OpenAI's way to ask for JSON.
function responseFormat(name, format, body) {
  if (!isObject(format)) throw badRequest(name, `'${name}' must be an object, not ${kind(format)}.`);
  const { type } = format;
  if (type !== 'json_schema') knowsOnly(name, format, ['type']);
  if (type === 'text') return null;
  if (type === 'json_object') return { jsonSchema: '{"type": "object"}' };
  if (type !== 'json_schema') throw badRequest(`${name}.type`, `'${name}.type' must be 'text', 'json_object' or 'json_schema'.`);
  knowsOnly(name, format, ['type', 'json_schema']);
  const at = `${name}.json_schema`;
  const described = format.json_schema;
  if (!isObject(described)) throw badRequest(at, `'${at}' must be an object with a 'schema', not ${kind(described)}.`);
  knowsOnly(at, described, ['description', 'name', 'schema', 'strict']);
  for (const part of ['description', 'name']) {
    if (typeof (described[part] ?? '') !== 'string') throw badRequest(`${at}.${part}`, `'${at}.${part}' must be a string, not ${kind(described[part])}.`);
  }
  // The answer keeps to the schema either way.
  if (typeof (described.strict ?? true) !== 'boolean') throw badRequest(`${at}.strict`, `'${at}.strict' must be true or false, not ${kind(described.strict)}.`);
  if (!isObject(described.schema)) throw badRequest(`${at}.schema`, `'${at}.schema' must be an object, not ${kind(described.schema)}.`);
  return { jsonSchema: rawOf(body, name, 'json_schema', 'schema') };
}

/** JSON of an object with one more member, the first. */
export function withMember(object, member) {
  const inside = object.trimStart().slice(1).trimStart();
  return `{${member}${inside[0] === '}' ? '' : ', '}${inside}`;
}

/** Refuses other fields of a part of a request, unless they are null. */
export function knowsOnly(at, object, known) {
  for (const name of Object.keys(object).sort()) {
    if (object[name] !== null && !known.includes(name)) throw badRequest(`${at}.${name}`, `'${at}.${name}' is not supported.`);
  }
}

/**
 * The `field` that asks for a language, and its `source` as the library takes it; null: any text.
 */
export function constraintOf(body, ignoreEos) {
  let found = null;
  for (const [field, read] of Object.entries(FIELDS)) {
    if (body[field] == null) continue;
    const language = read(field, body[field], body);
    if (language === null) continue;
    if (found !== null) throw badRequest(field, `'${found.field}' and '${field}' are two constraints; an answer can have one.`);
    const { field: part = field, ...source } = language;
    found = { field: part, source };
  }
  if (found !== null && ignoreEos) {
    throw badRequest('ignore_eos', `'ignore_eos' and '${found.field}' exclude each other: an answer of a language ends where that does.`);
  }
  return found;
}

/** A language as an expression of Lark; null: none can say it. */
export const inLark = ({ source: { jsonSchema } }) => (jsonSchema === undefined ? null : `%json ${jsonSchema}`);

// Errors of the library that are about a grammar's source.
const REFUSALS = ['LLAMA_E_INVALID_ARGUMENT', 'LLAMA_E_UTF8', 'LLAMA_E_UNSUPPORTED'];

/** A job's grammar; the model keeps those that were used last. */
export function grammarOf(model, { field, source }) {
  return model.grammar(source).catch((error) => {
    throw REFUSALS.includes(error.code) ? badRequest(field, error.message) : error;
  });
}

/**
 * What a job's options are refused with that leave no token possible, for the library's error that
 * says so; null for any other one.
 */
export function forbidsAll(error, { forbidding = [], constraint }) {
  if (!String(error.message).endsWith('the options leave no token possible')) return null;
  const fields = [...forbidding, ...(constraint ? [constraint.field] : [])];
  if (fields.length === 0) return null;
  return badRequest(fields[0], `The options leave no token possible: ${fields.map((name) => `'${name}'`).join(', ')}.`);
}

/** Whether an error of the library is about a call's grammar. */
export const isAboutGrammar = (error) => String(error.message).includes('the grammar: ');
