// How node-server sends: a client has its time for each piece of an answer, and not before its turn
// on the connection; answers that nobody takes have bounded memory.
import assert from 'node:assert/strict';
import { EventEmitter } from 'node:events';
import { mock } from 'node:test';
import { PATIENCE, taken, Unsent } from '../../examples/node-server/sending.mjs';

const settled = () => new Promise(setImmediate);

// An answer whose client takes nothing by itself.
class Answer extends EventEmitter {
  destroyed = false;
  writableFinished = false;
  socket = {};
  written = 0;
  req = { socket: { destroy: () => this.destroy() } };
  write(bytes) {
    this.written += bytes.length;
    return false;
  }
  end(bytes) {
    if (bytes) this.write(bytes);
  }
  destroy() {
    if (this.destroyed) return;
    this.destroyed = true;
    this.emit('close');
  }
}

mock.timers.enable({ apis: ['setTimeout'] });
const pass = async (ms) => {
  mock.timers.tick(ms);
  await settled();
};

{
  const [one, waiting, gone] = [new Answer(), new Answer(), new Answer()];
  waiting.socket = null; // behind another answer of its connection
  let ends = 0;
  for (const res of [one, waiting, gone]) taken(res, 'drain').then(() => ends++);
  gone.destroy();
  await pass(PATIENCE - 1);
  assert.deepEqual([ends, one.destroyed, waiting.destroyed], [1, false, false]);
  await pass(1);
  assert.deepEqual([ends, one.destroyed, waiting.destroyed], [2, true, false]);
  waiting.emit('socket', {});
  await pass(PATIENCE - 1);
  waiting.emit('drain');
  await pass(PATIENCE);
  assert.deepEqual([ends, waiting.destroyed], [3, false]);
  await taken(gone, 'finish'); // it waits for nobody
}

{
  // Half a minute for each piece, and for the end.
  const [res, bytes] = [new Answer(), Buffer.alloc(200_000)];
  let isSent = false;
  new Unsent().send(res, bytes).then(() => (isSent = true));
  for (let pieces = 1; pieces <= 4; pieces++) {
    assert.equal(res.written, Math.min(pieces * 65536, bytes.length));
    await pass(PATIENCE - 1);
    res.emit('drain');
    await settled();
  }
  assert(!isSent && !res.destroyed);
  res.writableFinished = true;
  res.emit('finish');
  await settled();
  assert(isSent);
}

{
  // Of more than there is room for, the one goes of which nothing has been taken for longest.
  const unsent = new Unsent(500_000);
  const all = [];
  const begin = (size) => {
    all.push(new Answer());
    unsent.send(all.at(-1), Buffer.alloc(size));
  };
  const cut = () => all.map(({ destroyed }) => destroyed);
  begin(200_000);
  begin(200_000);
  await settled();
  all[0].emit('drain');
  await settled();
  begin(1000); // not counted: it is one piece
  begin(200_000);
  assert.deepEqual(cut(), [false, true, false, false]);
  await settled();
  begin(2_000_000); // alone it may be larger
  assert.deepEqual(cut(), [true, true, false, true, false]);
  await settled();
  all[4].destroy();
  await settled();
  begin(400_000); // nothing is counted of those that are gone
  assert.deepEqual(cut(), [true, true, false, true, true, false]);
}
console.log('sending.mjs: patience, pieces and room');
