// What a service does where a model overflows. `finite.mjs write FROM TO` makes such a checkpoint
// of finite weights (bf16, Hugging Face's form), `finite.mjs check URL` talks to a service that has
// it.
import assert from 'node:assert/strict';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';

const BAD = 77; // the token behind which no logit is finite
const RARE = 99; // the token whose own logit never is

function write(from, to) {
  cpSync(from, to, { recursive: true });
  const path = `${to}/model.safetensors`;
  const file = readFileSync(path);
  const start = 8 + Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.subarray(8, start).toString());
  const set = (name, index, bf16) => file.writeUInt16LE(bf16, start + header[name].data_offsets[0] + 2 * index);
  const [rows, width] = header['model.embed_tokens.weight'].shape;
  // Column 0 (1000) outweighs the others, with the other sign for one token; where it is positive,
  // gate times up is infinite (their weights are 1e30).
  for (let row = 0; row < rows; row++) set('model.embed_tokens.weight', row * width, row === BAD ? 0x447a : 0xc47a);
  for (const part of ['gate', 'up']) set(`model.layers.0.mlp.${part}_proj.weight`, 0, 0x7149);
  for (let i = 0; i < width; i++) set('lm_head.weight', RARE * width + i, 0x7f7f); // the greatest
  writeFileSync(path, file);
}

async function check(url) {
  const model = (await (await fetch(`${url}/v1/models`)).json()).data[0].id;
  const ask = async (body) => {
    const answer = await fetch(`${url}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model, temperature: 0, max_tokens: 4, ...body }),
    });
    return [answer.status, await answer.text()];
  };
  const healthy = async () => assert.equal((await fetch(`${url}/healthz`)).status, 200);

  const [status, text] = await ask({ prompt: [1, BAD, 5] });
  assert.equal(status, 500, text);
  assert.equal(JSON.parse(text).error.code, 'not_finite');
  await healthy();
  const [, events] = await ask({ prompt: [1, BAD, 5], stream: true });
  assert.match(events, /"code": ?"not_finite"/);
  await healthy();

  const [good, answer] = await ask({ prompt: [1, 5, RARE, 6], echo: true, logprobs: 2 });
  assert.equal(good, 200, answer);
  const { token_logprobs: logprobs } = JSON.parse(answer).choices[0].logprobs;
  assert.equal(logprobs[2], -9999, answer);
  assert(logprobs.length > 4 && logprobs.every((x, i) => (i === 0 ? x === null : x <= 0)), answer);
  await healthy();
}

const [what, ...rest] = process.argv.slice(2);
await { write, check }[what](...rest);
if (what === 'check') console.log('a model that overflows: as it should be');
