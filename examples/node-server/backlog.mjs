// What the system holds of a connection: bytes that were written and that the client has not taken.
//
// A write is finished, for Node, when the system has the bytes, and Linux lets a connection have
// megabytes of them: minutes of an answer that nobody reads. Node can neither bound that (a socket
// option, SO_SNDBUF) nor ask for it, but /proc/net/tcp says it: a line for each connection, with
// its two ends in hexadecimal and the length of its queue. Where there is no such file the
// system's own bound is the only one.
import { readFile } from 'node:fs/promises';
import { setTimeout as sleep } from 'node:timers/promises';

const MOST = 128 * 1024; // bytes that may be held of one connection, as many as go-server's
const BETWEEN = 64 * 1024; // bytes that are written from one look to the next
const PAUSE = 50; // milliseconds from one look to the next while there are too many

/** Makes whoever writes an answer wait while the client is behind. */
export class Backlog {
  #res;
  #signal;
  #patience;
  #written = 0; // bytes since the last look

  /** It waits while bytes are taken at least every `patience` ms, and ends with `signal`. */
  constructor(res, { signal, patience }) {
    this.#res = res;
    this.#signal = signal;
    this.#patience = patience;
  }

  /** So many bytes more have been written. */
  async wrote(bytes) {
    this.#written += bytes;
    if (this.#written < BETWEEN) return;
    this.#written = 0;
    let least = Infinity;
    let since;
    for (;;) {
      const now = await held(this.#res.socket);
      if (now <= MOST || this.#signal.aborted) return;
      if (now < least) [least, since] = [now, performance.now()];
      if (performance.now() - since > this.#patience) this.#res.destroy();
      if (this.#res.destroyed) return;
      await sleep(PAUSE, undefined, { signal: this.#signal }).catch(() => {});
    }
  }
}

/** Bytes that the system holds for the other end of `socket`; 0 where it does not say. */
export async function held(socket) {
  if (!socket?.remoteAddress || !socket.localPort) return 0; // it is closed
  const { localPort, remoteAddress, remotePort, remoteFamily } = socket;
  const ours = `:${hex(localPort, 4)} ${inWords(remoteAddress)}:${hex(remotePort, 4)} `;
  const table = await tableOf(remoteFamily === 'IPv6' ? '/proc/net/tcp6' : '/proc/net/tcp');
  const at = table.indexOf(ours);
  // "01 0001F582:": the state, then the queue.
  return at < 0 ? 0 : Number.parseInt(table.slice(at + ours.length + 3), 16);
}

// Whoever looks while the table is being read gets that one.
const reading = new Map();

function tableOf(file) {
  if (!reading.has(file)) {
    const table = readFile(file, 'latin1').catch(() => '');
    reading.set(file, table);
    table.then(() => reading.delete(file));
  }
  return reading.get(file);
}

const hex = (n, digits) => n.toString(16).toUpperCase().padStart(digits, '0');

// An address as Linux prints it: words of 32 bits, their bytes in the order of this machine, which
// is little-endian.
function inWords(address) {
  const bytes = bytesOf(address.split('%', 1)[0]);
  let words = '';
  for (let i = 0; i < bytes.length; i += 4) for (const byte of bytes.slice(i, i + 4).reverse()) words += hex(byte, 2);
  return words;
}

function bytesOf(address) {
  if (!address.includes(':')) return address.split('.').map(Number);
  const [head, tail = []] = address.split('::').map((part) => part.split(':').flatMap(groupBytes));
  return [...head, ...Array(16 - head.length - tail.length).fill(0), ...tail];
}

// A group of an IPv6 address is two bytes; the last may be an IPv4 address.
function groupBytes(group) {
  if (group === '') return [];
  if (group.includes('.')) return bytesOf(group);
  const n = Number.parseInt(group, 16);
  return [n >> 8, n & 255];
}
