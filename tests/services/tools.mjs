// Tools with the official openai client of npm, against a checkpoint of scripted.py: tools.mjs URL.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';

const { OpenAI } = createRequire(`${resolve(process.env.OPENAI_FROM)}/package.json`)('openai');
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: 'none', maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const ask = { role: 'user', content: 'How warm is it in Zürich?' };
const asked = [];
const weather = {
  name: 'get_weather',
  description: 'the weather of a city',
  parameters: { type: 'object', properties: { city: { type: 'string' } } },
};
const body = { model, messages: [ask], chat_template_kwargs: { script: 'call' } };

// By hand: question, call, result, answer.
const tools = [{ type: 'function', function: weather }];
const first = (await client.chat.completions.create({ ...body, tools })).choices[0];
assert.equal(first.finish_reason, 'tool_calls');
const [call] = first.message.tool_calls;
assert.equal(JSON.parse(call.function.arguments).city, 'Zürich');
const result = { role: 'tool', tool_call_id: call.id, content: '21 degrees' };
const second = await client.chat.completions.create({ ...body, tools, messages: [ask, first.message, result] });
assert.equal(second.choices[0].message.content, 'It is 21 degrees in Zürich.');

// The client's own loop, which calls the function itself, whole and as a stream.
for (const stream of [false, true]) {
  const runner = client.chat.completions.runTools({
    ...body,
    stream,
    tools: [{ type: 'function', function: { ...weather, parse: JSON.parse, function: ({ city }) => (asked.push(city), '21 degrees') } }],
  });
  assert.equal(await runner.finalContent(), 'It is 21 degrees in Zürich.');
}
assert.deepEqual(asked, ['Zürich', 'Zürich']);
console.log('tools with the client of npm: by hand, its own loop');
