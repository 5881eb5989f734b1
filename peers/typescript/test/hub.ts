/** A hub in memory: a WebSocket class, and what the test does at its other end. */

import { connect, type ConnectOptions, type WebSocketLike } from "../src/index.ts";

type Message = Record<string, any>;

export class FakeHub {
  sockets: FakeSocket[] = [];
  /** What a new connection is answered to its hello with. */
  greeting: (socket: FakeSocket) => void = (socket) =>
    socket.give({ type: "session.welcome", version: 1, peer: `c${this.sockets.length}`, maxMessage: 10_000, heartbeatMs: 60_000 });

  /** Connect a peer to this hub. */
  async connect(options: ConnectOptions = {}) {
    const hub = this;
    const WebSocket = class extends FakeSocket {
      constructor(_url: string, _protocols?: string | string[]) {
        super(hub);
      }
    };
    return connect("ws://hub.example", { WebSocket, token: "secret", ...options });
  }

  get socket(): FakeSocket {
    return this.sockets.at(-1)!;
  }
}

export class FakeSocket implements WebSocketLike {
  bufferedAmount = 0;
  protocol = "opwire.v1";
  closed: number | undefined;
  sent: Message[] = [];
  #hub: FakeHub;
  #listeners = new Map<string, (event: unknown) => void>();
  #waiting: (() => void)[] = [];

  constructor(hub: FakeHub) {
    this.#hub = hub;
    hub.sockets.push(this);
    queueMicrotask(() => this.#fire("open", {}));
  }

  send(data: string): void {
    const message = JSON.parse(data);
    if (message.type === "session.hello") queueMicrotask(() => this.#hub.greeting(this));
    else if (message.type === "session.announce") this.give({ type: "session.done", id: message.id });
    this.sent.push(message);
    for (const wake of this.#waiting.splice(0)) wake();
  }

  close(code = 1000): void {
    this.closed = code;
  }

  addEventListener(type: string, listener: (event: any) => void): void {
    this.#listeners.set(type, listener);
  }

  /** Deliver a message of the hub. */
  give(message: Message | string): void {
    this.#fire("message", { data: typeof message === "string" ? message : JSON.stringify(message) });
  }

  /** End the connection from the hub's side. */
  drop(code = 1006, reason = ""): void {
    this.#fire("close", { code, reason });
  }

  /** Wait for the next message of a type, and take it. */
  async next(type: string): Promise<Message> {
    for (;;) {
      const index = this.sent.findIndex((each) => each["type"] === type);
      if (index >= 0) return this.sent.splice(index, 1)[0]!;
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }

  #fire(type: string, event: unknown): void {
    this.#listeners.get(type)?.(event);
  }
}

export const local = (data: unknown) => ({ data, meta: { source: "local", operationId: "a.b", timestamp: 1 } });
