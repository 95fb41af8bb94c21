// The official openai client of npm against a service; arguments and models as for client.py.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';

// From the folder that it was installed into, which is not this one.
const from = resolve(process.env.OPENAI_FROM);
const { OpenAI } = createRequire(`${from}/package.json`)('openai');
const { version } = JSON.parse(readFileSync(`${from}/node_modules/openai/package.json`, 'utf8'));

const [URL, PID] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: 'none', maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const SKY = [{ role: 'user', content: 'What color is the sky?' }];
const FOX = [{ role: 'user', content: 'Tell me a story about a fox.' }];
const STORY = { model, prompt: 'Once upon a time' };
// mha-f32 repeats itself for ever; nobody waits for the end of LONGER.
const LONG = { model, prompt: '12345678901234567890', temperature: 0, max_tokens: 600 };
const LONGER = { ...LONG, max_tokens: 30_000 };

const chat = (options) => client.chat.completions.create({ model, messages: SKY, ...options });
const complete = (options) => client.completions.create({ ...STORY, ...options });

async function metric(name) {
  const text = await (await fetch(`${URL}/metrics`)).text();
  return Number(text.split('\n').find((line) => line.startsWith(`${name} `)).split(' ')[1]);
}

async function idle() {
  const deadline = Date.now() + 300_000;
  for (const name of ['llamabi_sequences_running', 'llamabi_sequences_waiting', 'llamabi_kv_pages_used']) {
    while ((await metric(name)) !== 0) assert(Date.now() < deadline, `${name} is not 0`);
  }
}

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const checks = {
  async chat() {
    const answer = await chat({ temperature: 0, max_completion_tokens: 100 });
    assert.equal(answer.choices[0].message.content.trim(), 'The sky is blue.');
    assert.equal(answer.choices[0].finish_reason, 'stop');
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },

  async completion() {
    const answer = await complete({ temperature: 0, max_tokens: 5 });
    assert.match(answer.choices[0].text, /^ there was/);
    assert.equal(answer.choices[0].finish_reason, 'length');
    assert.equal(answer.usage.completion_tokens, 5);
  },

  async streaming() {
    const options = { seed: 5, temperature: 0.9, max_tokens: 80 };
    const whole = await chat(options);
    const chunks = await collect(await chat({ ...options, stream: true, stream_options: { include_usage: true } }));
    assert.equal(chunks[0].choices[0].delta.role, 'assistant');
    assert.equal(chunks.map((c) => c.choices[0]?.delta.content ?? '').join(''), whole.choices[0].message.content);
    // more of them may be cached by now
    assert.equal(chunks.at(-1).usage.prompt_tokens, whole.usage.prompt_tokens);
    assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
    // The client's own way of putting a stream together.
    const runner = client.chat.completions.stream({ model, messages: SKY, ...options });
    assert.equal(await runner.finalContent(), whole.choices[0].message.content);

    const text = await complete(options);
    const parts = await collect(await complete({ ...options, stream: true }));
    assert.equal(parts.map((c) => c.choices[0].text).join(''), text.choices[0].text);
    assert.equal(parts.at(-1).choices[0].finish_reason, text.choices[0].finish_reason);
  },

  async logprobs() {
    const options = { temperature: 0, max_tokens: 8, logprobs: true, top_logprobs: 3 };
    const answer = await chat(options);
    const rows = answer.choices[0].logprobs.content;
    assert.equal(rows.length, answer.usage.completion_tokens);
    assert.equal(Buffer.from(rows.flatMap((r) => r.bytes)).toString(), answer.choices[0].message.content);
    for (const row of rows) assert(row.top_logprobs.length === 3 && row.top_logprobs[0].logprob === row.logprob);
    const chunks = await collect(await chat({ ...options, stream: true }));
    assert.deepEqual(chunks.flatMap((c) => c.choices[0].logprobs?.content ?? []), rows);

    const lists = (await complete({ temperature: 0, max_tokens: 8, logprobs: 2 })).choices[0].logprobs;
    for (const list of Object.values(lists)) assert.equal(list.length, 8);
    lists.tokens.forEach((token, i) => assert.equal(lists.top_logprobs[i][token], lists.token_logprobs[i]));
  },

  async stop() {
    const whole = (await complete({ temperature: 0, max_tokens: 40 })).choices[0].text;
    const { text, finish_reason } = (await complete({ temperature: 0, max_tokens: 40, stop: [' kind'] })).choices[0];
    assert.equal(text, whole.split(' kind')[0]);
    assert.equal(finish_reason, 'stop');
  },

  async seeds() {
    const text = async (seed) => (await complete({ seed, max_tokens: 40 })).choices[0].text;
    assert.equal(await text(0), await text(0));
    assert.equal(await text(9), await text(9));
    assert(new Set(await Promise.all([1, 2, 3, 4, 5].map(text))).size > 1);
  },

  async several() {
    const options = { messages: FOX, seed: 5, temperature: 0.9, max_tokens: 20 };
    const three = (await chat({ ...options, n: 3 })).choices;
    assert.deepEqual(three.map((c) => c.index), [0, 1, 2]);
    assert(new Set(three.map((c) => c.message.content)).size > 1, 'all answers are the same');
    assert.equal((await chat(options)).choices[0].message.content, three[0].message.content);
    const chunks = await collect(await chat({ ...options, n: 3, stream: true }));
    for (const { index, message } of three) {
      const own = chunks.filter((c) => c.choices[0].index === index);
      assert.equal(own.map((c) => c.choices[0].delta.content ?? '').join(''), message.content);
    }
    const texts = (await complete({ ...options, messages: undefined, n: 3 })).choices.map((c) => c.text);
    assert.equal(new Set(texts).size, 3);
  },

  async biases() {
    const options = { temperature: 0, max_tokens: 12 };
    const plain = (await complete(options)).choices[0].text;
    const { text } = (await complete({ ...options, logit_bias: { 713: 100 } })).choices[0];
    assert.notEqual(text, plain);
    // demo/expected.json: 1, 713, 714, 259, 596 are "Once upon a time"
    assert(text.startsWith('OnceOnceOnce') || text.startsWith(' Once Once Once'), text);
    const never = (await chat({ ...options, logit_bias: { 713: -100 } })).choices[0].message.content;
    assert.equal(never.trim(), 'The sky is blue.');
    await assert.rejects(complete({ logit_bias: { x: 1 } }), { status: 400, param: 'logit_bias' });
  },

  async predictions() {
    // Without draft_len, wrong guesses may rest the right ones behind them.
    const options = { messages: FOX, temperature: 0.9, seed: 3, max_tokens: 40, draft_len: 4 };
    const plain = await chat(options);
    const { content } = plain.choices[0].message;
    const guessed = await chat({ ...options, prediction: { type: 'content', content } });
    assert.equal(guessed.choices[0].message.content, content);
    assert(guessed.usage.completion_tokens_details.accepted_prediction_tokens > 0);
    const other = await chat({ ...options, prediction: { type: 'content', content: 'Nothing of the kind.' } });
    assert.equal(other.choices[0].message.content, content);
    const stream = await collect(await chat({ ...options, prediction: { type: 'content', content }, stream: true, stream_options: { include_usage: true } }));
    assert.equal(stream.map((c) => c.choices[0]?.delta.content ?? '').join(''), content);
    assert(stream.at(-1).usage.completion_tokens_details.accepted_prediction_tokens > 0);
  },

  async errors() {
    await assert.rejects(chat({ model: 'no-such' }), { status: 404, code: 'model_not_found' });
    await assert.rejects(chat({ temperature: 3 }), { status: 400, param: 'temperature', type: 'invalid_request_error' });
    await assert.rejects(chat({ messages: [] }), { status: 400, param: 'messages' });
    await assert.rejects(complete({ prompt: 'x '.repeat(5000), stream: true }), { status: 400, code: 'context_length_exceeded' });
    await assert.rejects(client.embeddings.create({ model, input: 'a' }), { status: 404, code: 'unknown_url' });
  },
};

const endings = {
  async abort() {
    let before = await metric('llamabi_generated_tokens_total');
    for await (const _ of await client.completions.create({ ...LONGER, stream: true })) {
      assert.equal(await metric('llamabi_sequences_running'), 1);
      break;
    }
    await idle();
    let made = (await metric('llamabi_generated_tokens_total')) - before;
    assert(made > 0 && made < 30_000, 'the client left, but its answer was finished');

    before = await metric('llamabi_generated_tokens_total');
    await assert.rejects(client.completions.create(LONGER, { signal: AbortSignal.timeout(50) }), OpenAI.APIUserAbortError);
    await idle();
    made = (await metric('llamabi_generated_tokens_total')) - before;
    assert(made < 30_000, 'the client left, but its answer was finished');
  },

  async full() {
    // All slots are taken until 18 have been refused, so that four wait, and are answered then.
    const refused = [];
    const occupy = async () => {
      for await (const _ of await client.completions.create({ ...LONGER, stream: true })) if (refused.length === 18) break;
    };
    const answer = async () => collect(await client.completions.create({ ...LONG, max_tokens: 50, stream: true }));
    const ask = () => answer().catch((e) => void refused.push(e));
    const slots = Array.from({ length: 8 }, occupy);
    while ((await metric('llamabi_sequences_running')) < 8);
    const outcomes = await Promise.all(Array.from({ length: 22 }, ask));
    await Promise.all(slots);
    const answered = outcomes.filter((chunks) => chunks?.at(-1).choices[0].finish_reason === 'length');
    assert.deepEqual([refused.length, answered.length], [18, 4]);
    for (const e of refused) {
      assert(e instanceof OpenAI.RateLimitError, String(e));
      assert.deepEqual([e.status, e.type, e.code], [429, 'rate_limit_error', 'rate_limit_exceeded']);
    }
    await idle();
  },

  async shutdown() {
    const stream = await client.completions.create({ ...LONG, stream: true });
    let last;
    for await (const chunk of stream) {
      if (last === undefined) process.kill(Number(PID), 'SIGTERM');
      last = chunk;
    }
    assert.equal(last.choices[0].finish_reason, 'length');
  },
};

const todo = PID === undefined ? checks : endings;
for (const check of Object.values(todo)) await check();
console.log(`openai ${version} of npm: ${Object.keys(todo).join(', ')}`);
