// Ends a server that clients keep their connections to: each is closed as soon as it waits for no
// answer. Node's own `closeIdleConnections` closes those that are idle when it is called, and
// `close` waits for the others until their keep-alive time is over.
export class Drain {
  #server;
  #connections = new Map(); // to the answers under way on each
  #draining = false;

  constructor(server) {
    this.#server = server;
    server.on('connection', (socket) => {
      this.#connections.set(socket, new Set());
      socket.once('close', () => this.#connections.delete(socket));
    });
    server.prependListener('request', (req, res) => {
      const { socket } = req;
      const answers = this.#connections.get(socket);
      answers?.add(res);
      if (this.#draining) res.setHeader('connection', 'close');
      res.once('close', () => {
        answers?.delete(res);
        if (this.#draining && answers?.size === 0) socket.destroySoon();
      });
    });
  }

  // Answers that have not been sent to their end.
  get answers() {
    let n = 0;
    for (const answers of this.#connections.values()) n += answers.size;
    return n;
  }

  // Takes no new connection, and ends those there are after the answers that are under way.
  begin() {
    this.#draining = true;
    this.#server.close();
    for (const [socket, answers] of this.#connections) {
      if (answers.size === 0) socket.destroySoon();
      for (const res of answers) if (!res.headersSent) res.setHeader('connection', 'close');
    }
  }
}
