// What the model's chat template has a place for.
import { LlamaError } from 'llamabi';
import { CallReader, FORMS } from './calls.mjs';

// What the probe says; each is looked for in the text that the template makes of it.
const TOOL = 'probe_tool';
const CALL = 'probe_call';
const ARGUMENTS = '{"probe_argument": "probe_value"}';
const RESULT = 'probe_result';
const ID = 'probe0001'; // Mistral's templates want nine letters and digits

const PARAMETERS = { type: 'object', properties: { probe_argument: { type: 'string', description: 'probe' } }, required: ['probe_argument'] };
const probe = (content) => ({
  messages: [
    { role: 'user', content: 'probe_question' },
    { role: 'assistant', content, tool_calls: [{ id: ID, type: 'function', function: { name: CALL, arguments: ARGUMENTS } }] },
    { role: 'tool', content: RESULT, tool_call_id: ID },
  ],
  tools: [{ type: 'function', function: { name: TOOL, description: 'probe', parameters: PARAMETERS } }],
});

/**
 * Finds out by rendering a dialog with a tool, a call and its result: templates are programs, and
 * say nothing about themselves. `tools`, `calls` and `results` say whether there is a place for
 * these; `nulls`, whether the content of a message with calls may be null; `form` is how calls are
 * written, null for none of the forms; `marker`, the token that is the form's marker and has a text
 * only where one asks, or null.
 */
export async function probeTemplate(model) {
  const rendered = async (content) => {
    try {
      return await model.renderChatAsync(probe(content));
    } catch (error) {
      if (!(error instanceof LlamaError)) throw error;
      return null; // such a dialog is refused
    }
  };
  let text = await rendered(null);
  const nulls = text !== null;
  text ??= (await rendered('')) ?? '';
  const at = text.indexOf(CALL);
  const form = at < 0 ? null : (Object.values(FORMS).find((form) => wrote(form, text, at)) ?? null);
  return { nulls, tools: text.includes(TOOL), calls: at >= 0, results: text.includes(RESULT), form, marker: form && silent(model, form.marker) };
}

// Whether a text has, around `at`, the probe's call in this form.
function wrote(form, text, at) {
  const starts = [text.lastIndexOf(form.marker, at)];
  if (form.bare) starts.push(text.lastIndexOf(form.open, at));
  return starts.some((start) => {
    if (start < 0) return false;
    const [call] = new CallReader(form, [CALL]).push(text.slice(start)).calls;
    return call?.name === CALL && JSON.parse(call.arguments).probe_argument === 'probe_value';
  });
}

// The token of a text that has no bytes of its own.
const silent = (model, text) => model.encode(text, { special: true }).findLast((token) => model.tokenBytes(token).length === 0) ?? null;
