import assert from "node:assert/strict";
import { test } from "node:test";
import { CallError, type Context } from "../src/index.ts";
import { FakeHub, local } from "./hub.ts";

const failure = (code: string) => (error: unknown) => error instanceof CallError && error.code === code;

test("the first message is a hello with the token, and the welcome has the address", async () => {
  const hub = new FakeHub();
  const peer = await hub.connect();
  assert.deepEqual(hub.socket.sent[0], { type: "session.hello", version: 1, maxMessage: 1_032_192, token: "secret" });
  assert.equal(peer.address, "c1");
  peer.close();
  assert.equal(hub.socket.closed, 1000);
});

test("a refused token and another version reject the connection", async () => {
  const hub = new FakeHub();
  hub.greeting = (socket) => socket.give({ type: "session.refused", code: "UNAUTHENTICATED", message: "no" });
  await assert.rejects(hub.connect(), failure("UNAUTHENTICATED"));
  hub.greeting = (socket) =>
    socket.give({ type: "session.welcome", version: 2, peer: "c1", maxMessage: 1, heartbeatMs: 1 });
  await assert.rejects(hub.connect(), failure("UNAVAILABLE"));
  hub.greeting = () => undefined;
  await assert.rejects(hub.connect({ connectTimeoutMs: 5 }), failure("UNAVAILABLE"));
});

test("a call is answered by the peer that has it, and by no other", async () => {
  const hub = new FakeHub();
  const peer = await hub.connect();
  const call = peer.call("a.b", { x: 1 }, { to: "c9", timeoutMs: 1000 });
  const request = await hub.socket.next("call.requested");
  assert.deepEqual([request["peer"], request["input"], request["timeoutMs"]], ["c9", { x: 1 }, 1000]);
  const answer = { type: "call.responded", requestId: request["requestId"] };
  hub.socket.give({ ...answer, output: local("forged"), peer: "c8" });
  hub.socket.give({ ...answer, output: local("unmatched"), peer: "c9", unmatched: true });
  hub.socket.give({ ...answer, output: local("true"), peer: "c9" });
  assert.equal((await call).data, "true");
  peer.close();
});

test("an unknown code is EXECUTION_ERROR, and an invalid answer PROTOCOL_ERROR", async () => {
  const hub = new FakeHub();
  const peer = await hub.connect();
  const first = peer.call("a.b");
  const { requestId } = await hub.socket.next("call.requested");
  hub.socket.give({ type: "call.error", requestId, code: "NEW_CODE", message: "oh" });
  await assert.rejects(first, { code: "EXECUTION_ERROR", foreignCode: "NEW_CODE", message: "oh" });
  const second = peer.call("a.b");
  const { requestId: other } = await hub.socket.next("call.requested");
  hub.socket.give({ type: "call.responded", requestId: other, output: { data: 1 } });
  await assert.rejects(second, failure("PROTOCOL_ERROR"));
  await hub.socket.next("call.aborted");
  peer.close();
});

test("a request that was not started is sent again, four times at most", async () => {
  const hub = new FakeHub();
  const peer = await hub.connect();
  const call = peer.call("a.b");
  for (let attempt = 0; attempt < 5; attempt += 1) {
    const { requestId } = await hub.socket.next("call.requested");
    hub.socket.give({ type: "call.error", requestId, code: "UNAVAILABLE", message: "later", notStarted: true, peer: `c${attempt}` });
  }
  await assert.rejects(call, failure("UNAVAILABLE"));
  peer.close();
});

test("a subscription grants credits as it is consumed, and a lost item ends it", async () => {
  const hub = new FakeHub();
  const peer = await hub.connect();
  const items = peer.subscribe<number>("a.b", null, { credits: 2 });
  const first = items.next();
  const { requestId, credits } = await hub.socket.next("call.requested");
  assert.equal(credits, 2);
  const item = (seq: number) => hub.socket.give({ type: "call.responded", requestId, output: local(seq), seq });
  item(1);
  item(1); // repeated
  assert.equal((await first).value?.data, 1);
  const second = items.next();
  const credit = await hub.socket.next("call.credit");
  assert.deepEqual([credit["n"], credit["total"], credit["received"]], [1, 3, 1]);
  item(3);
  await assert.rejects(second, failure("UNAVAILABLE"));
  assert.equal((await hub.socket.next("call.aborted"))["requestId"], requestId);
  assert.equal(peer.openCalls, 0);
  peer.close();
});

test("a producer that ignores credits is stopped before it fills the memory", async () => {
  const hub = new FakeHub();
  const peer = await hub.connect();
  const items = peer.subscribe("a.b", null, { credits: 1 });
  const first = items.next();
  const { requestId } = await hub.socket.next("call.requested");
  for (let seq = 1; seq < 1000; seq += 1) {
    hub.socket.give({ type: "call.responded", requestId, output: local("x".repeat(8000)), seq });
  }
  await first;
  await hub.socket.next("call.aborted");
  await assert.rejects(async () => {
    for await (const _ of items);
  }, failure("ABORTED"));
  peer.close();
});

test("a loss fails calls, and operations are announced again", async () => {
  const hub = new FakeHub();
  let again: () => void = () => undefined;
  const connected = new Promise<void>((resolve) => (again = resolve));
  const peer = await hub.connect({ onConnected: again });
  await peer.serve({ id: "a.b", type: "query", handler: () => 1 });
  const call = peer.call("c.d");
  hub.socket.drop(1001, "the server leaves");
  await assert.rejects(call, failure("UNAVAILABLE"));
  await assert.rejects(peer.call("c.d"), failure("UNAVAILABLE"));
  await connected;
  assert.equal(hub.sockets.length, 2);
  assert.deepEqual((await hub.socket.next("session.announce"))["operations"], ["a.b"]);
  peer.close();
});

test("a token that has expired ends a peer that has no other", async () => {
  const hub = new FakeHub();
  const peer = await hub.connect();
  hub.socket.drop(4401, "the token has expired");
  assert.equal((await peer.closed)?.code, "UNAVAILABLE");
  assert.equal(hub.sockets.length, 1);
});

test("the context of another connection, or of a call that has ended, is refused", async () => {
  const [hub, other] = [new FakeHub(), new FakeHub()];
  const [peer, elsewhere] = [await hub.connect(), await other.connect()];
  let context: Context | undefined;
  let finish: (value: unknown) => void = () => undefined;
  const begun = new Promise<void>((resolve) => {
    void peer.serve({
      id: "a.b",
      type: "query",
      access: { public: true },
      handler: (_, given) => {
        context = given;
        resolve();
        return new Promise((end) => (finish = end));
      },
    });
  });
  hub.socket.give({ type: "call.requested", requestId: "r1", operationId: "a.b", timeoutMs: 5000, peer: "c7" });
  await begun;
  await assert.rejects(elsewhere.call("c.d", null, { context: context! }), failure("ACCESS_DENIED"));
  void context!.call("c.d").catch(() => undefined);
  const nested = await hub.socket.next("call.requested");
  assert.equal(nested["parentRequestId"], "r1");
  assert.ok(nested["timeoutMs"] <= 5000, "the nested call ends with the one it belongs to");
  finish(1);
  await hub.socket.next("call.responded");
  await assert.rejects(context!.call("c.d"), failure("ACCESS_DENIED"));
  peer.close();
  elsewhere.close();
});

test("a result that is too large or not JSON fails its call alone", async () => {
  const hub = new FakeHub();
  const peer = await hub.connect();
  const access = { public: true };
  await peer.serve(
    { id: "a.large", type: "query", access, handler: () => "x".repeat(20_000) },
    { id: "a.big", type: "query", access, handler: () => 10n },
    { id: "a.none", type: "query", access, handler: () => undefined },
  );
  const codes: unknown[] = [];
  for (const operationId of ["a.large", "a.big"]) {
    hub.socket.give({ type: "call.requested", requestId: operationId, operationId });
    codes.push((await hub.socket.next("call.error"))["code"]);
  }
  assert.deepEqual(codes, ["PAYLOAD_TOO_LARGE", "VALIDATION_ERROR"]);
  hub.socket.give({ type: "call.requested", requestId: "r1", operationId: "a.none" });
  assert.equal((await hub.socket.next("call.responded"))["output"].data, null);
  peer.close();
});

test("a hub that is silent is left", async () => {
  const hub = new FakeHub();
  const greeting = { type: "session.welcome", version: 1, peer: "c1", maxMessage: 10_000, heartbeatMs: 1 };
  hub.greeting = (socket) => socket.give(greeting);
  let lost: (error: CallError) => void = () => undefined;
  const loss = new Promise<CallError>((resolve) => (lost = resolve));
  const peer = await hub.connect({ onLost: lost });
  assert.match((await loss).message, /nothing was heard/);
  peer.close();
});

test("a hub that takes no messages fails calls, and nothing else", async () => {
  const hub = new FakeHub();
  hub.greeting = (socket) =>
    socket.give({ type: "session.welcome", version: 1, peer: "c1", maxMessage: 1, heartbeatMs: 60_000 });
  const peer = await hub.connect();
  await assert.rejects(peer.call("a.b"), failure("PAYLOAD_TOO_LARGE"));
  hub.socket.give({ type: "call.requested", requestId: "r1", operationId: "a.b" });
  hub.socket.give('{"type":"call.requested","requestId":"r2"}');
  await new Promise((resolve) => setTimeout(resolve));
  assert.equal(peer.openCalls, 0);
  peer.close();
});
