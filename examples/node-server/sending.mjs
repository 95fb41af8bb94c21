// Sends answers as fast as their clients take them, and no faster.

/** Milliseconds; a client that takes nothing for so long has left. */
export const PATIENCE = 30_000;

const PIECE = 64 * 1024; // bytes of an answer that are written at a time
const MOST = 256 * 2 ** 20; // bytes of whole answers that may wait for their clients

/** Resolves with an answer's event `drain` or `finish`, or when its connection is closed. */
export function taken(res, event) {
  return new Promise((resolve) => {
    if (res.destroyed || res.writableFinished) return resolve();
    let patience;
    const wait = () => (patience = setTimeout(() => res.destroy(), PATIENCE));
    const done = () => {
      clearTimeout(patience);
      res.off('socket', wait).off(event, done).off('close', done);
      resolve();
    };
    // Behind another answer of its connection (pipelining) it does not wait for its client yet.
    if (res.socket === null) res.once('socket', wait);
    else wait();
    res.once(event, done).once('close', done);
  });
}

/** Whole answers of more than a piece that wait for their clients. */
export class Unsent {
  #most;
  #bytes = 0;
  #sizes = new Map(); // of each answer, first the one of which nothing has been taken for longest

  /**
   * Where they have more than `most` bytes in all, the connections of those are cut of which
   * nothing has been taken for longest, but for the last one.
   */
  constructor(most = MOST) {
    this.#most = most;
  }

  /** Sends the body of an answer, whose head has been written, and its end. */
  async send(res, bytes) {
    if (bytes.length <= PIECE) {
      res.end(bytes);
      return taken(res, 'finish');
    }
    for (let at = 0; at < bytes.length && !res.destroyed; at += PIECE) {
      this.#leave(res);
      this.#enter(res, bytes.length);
      if (!res.write(bytes.subarray(at, at + PIECE))) await taken(res, 'drain');
    }
    res.end();
    await taken(res, 'finish');
    this.#leave(res);
  }

  #enter(res, size) {
    this.#sizes.set(res, size);
    this.#bytes += size;
    for (const [other] of this.#sizes) {
      if (this.#bytes <= this.#most || other === res) return;
      this.#leave(other);
      other.req.socket.destroy(); // one that waits behind another has no socket of its own yet
    }
  }

  #leave(res) {
    this.#bytes -= this.#sizes.get(res) ?? 0;
    this.#sizes.delete(res);
  }
}
