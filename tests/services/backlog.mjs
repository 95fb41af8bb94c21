// What node-server finds that the system holds of a connection: nothing of one that is read, all
// that was written of one that is not, over each kind of address.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { held } from '../../examples/node-server/backlog.mjs';

async function pair(host, to) {
  const server = createServer().listen(0, host);
  await once(server, 'listening');
  const client = connect(server.address().port, to);
  const [[socket]] = await Promise.all([once(server, 'connection'), once(client, 'connect')]);
  return { socket, client, end: () => (server.close(), socket.destroy(), client.destroy()) };
}

let kinds = 0;
for (const [host, to] of [['127.0.0.1', '127.0.0.1'], ['::1', '::1'], ['::', '127.0.0.1']]) {
  const made = await pair(host, to).catch((error) => error);
  if (made instanceof Error) {
    assert.match(made.code, /EADDRNOTAVAIL|EAFNOSUPPORT/); // a machine without IPv6
    continue;
  }
  kinds++;
  const { socket, client, end } = made;
  assert.equal(await held(socket), 0);
  client.pause();
  const written = 3_000_000;
  socket.write(Buffer.alloc(written));
  let before = -1;
  for (let now = await held(socket); now !== before; now = await held(socket)) {
    before = now;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  // The client's system has some, Node keeps what this one did not take.
  assert(before > 64 * 1024 && before <= written - socket.writableLength, `${host}: ${before} bytes`);
  client.resume();
  while ((await held(socket)) > 0) await new Promise((resolve) => setTimeout(resolve, 10));
  end();
  assert.equal(await held(socket), 0); // closed
}
console.log(`backlog.mjs: ${kinds} kinds of addresses`);
