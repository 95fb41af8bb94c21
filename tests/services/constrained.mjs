// Answers of a zod schema with the official openai client of npm: constrained.mjs URL.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';

const require = createRequire(`${resolve(process.env.OPENAI_FROM)}/package.json`);
const { OpenAI } = require('openai');
const { zodFunction, zodResponseFormat } = require('openai/helpers/zod');
const { z } = require('zod');
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: 'none', maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: 'user', content: 'Tell me a story about a fox.' }];

// Every animal ends by itself.
const Animal = z.object({
  kind: z.enum(['fox', 'cow']),
  legs: z.number().int().min(0).max(99),
  tail: z.object({ colours: z.array(z.enum(['red', 'grey'])).max(2) }).nullable(),
});
const body = { model, messages, max_tokens: 200, response_format: zodResponseFormat(Animal, 'animal') };

for (const seed of [1, 2, 3]) {
  const { message, finish_reason: reason } = (await client.chat.completions.parse({ ...body, seed })).choices[0];
  assert.equal(reason, 'stop');
  assert.deepEqual(message.parsed, Animal.parse(JSON.parse(message.content)));
  assert.deepEqual(Object.keys(message.parsed), ['kind', 'legs', 'tail']);
  // A message with the value that the client has added is taken back.
  const next = await client.chat.completions.create({ model, messages: [...messages, message, { role: 'user', content: 'Another one.' }], max_tokens: 1 });
  assert.equal(next.usage.completion_tokens, 1);
  const stream = client.chat.completions.stream({ ...body, seed });
  assert.equal((await stream.finalChatCompletion()).choices[0].message.content, message.content);
}
// The model's format has no tools, and so nothing to be kept to.
const tools = [zodFunction({ name: 'look', parameters: Animal })];
await assert.rejects(client.chat.completions.parse({ model, messages, tools, tool_choice: 'required' }), /has no place for tools/);
console.log('constrained with the client of npm: zod, streams');
