// The tool calls of calls.json in node-server's hands. (go-server: calls_test.go, the same table.)
// A row has an answer's `text` in a `form`, of a request with `tools`, and what it is: the rest of
// the text as `content`, and names and arguments of `calls`.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { CallReader, FORMS } from '../../examples/node-server/calls.mjs';

const table = JSON.parse(readFileSync(new URL('calls.json', import.meta.url), 'utf8'));

function read({ form, tools }, parts) {
  const reader = new CallReader(FORMS[form], tools);
  const all = { content: '', calls: [] };
  for (const { text, calls } of [...parts.map((part) => reader.push(part)), reader.end()]) {
    all.content += text;
    all.calls.push(...calls.map((call) => [call.name, call.arguments]));
  }
  return all;
}

for (const row of table) {
  const about = `${row.form}: ${row.about}`;
  const expected = { content: row.content, calls: row.calls };
  const points = [...row.text];
  assert.deepEqual(read(row, [row.text]), expected, about);
  assert.deepEqual(read(row, points), expected, `${about}, by code points`);
  for (let i = 1; i < points.length; i++) {
    const parts = [points.slice(0, i).join(''), points.slice(i).join('')];
    assert.deepEqual(read(row, parts), expected, `${about}, cut at ${i}`);
  }
}

// What can be no part of a call is given out at once.
for (const form of Object.keys(FORMS)) {
  const reader = new CallReader(FORMS[form], []);
  for (const point of 'The sky, [as] <he> says,') {
    const held = point === ' ' || '[<'.includes(point);
    const { text } = reader.push(point);
    assert(text.endsWith(point) || held, `${form}: ${JSON.stringify(point)} is held back`);
  }
}
console.log(`tool calls: ${table.length} answers, cut everywhere`);
