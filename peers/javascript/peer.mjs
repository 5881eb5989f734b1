// A whole peer in plain JavaScript, written from docs/reference/protocol.md alone: it serves the operations by which
// `opwire conformance` checks a server, and then calls. Node 22 or newer: node peer.mjs ws://127.0.0.1:8700 [token]
const [url, token] = process.argv.slice(2);
const socket = new WebSocket(url, "opwire.v1");
const send = (event) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(event));

// --- operations: a value, a promise, or an async generator --------------------------------------------------------------

let waiting = 0;
const operations = {
  "conformance.echo": { type: "query", run: ({ input }) => input ?? null },
  "conformance.fail": { type: "mutation", run: ({ input }) => { throw new Error(input.secret); } },
  "conformance.count": { type: "subscription", run: async function* ({ input }) { for (let n = 1; n <= input.to; n++) yield n; } },
  "conformance.waiting": { type: "query", run: () => waiting },
  "conformance.wait": {
    type: "query",
    run: ({ signal }) => new Promise((_, reject) => {
      waiting += 1;
      signal.addEventListener("abort", () => { waiting -= 1; reject(signal.reason); });
    }),
  },
  "conformance.steps": {
    type: "query",
    run: ({ report }) => { for (const n of [1, 2, 3]) report(n, 3); return 3; },
  },
};
const describe = async function* ({ input }) {
  for (const id of input?.operations ?? Object.keys(operations)) {
    if (operations[id]) yield { id, type: operations[id].type };
  }
};

// --- serving ------------------------------------------------------------------------------------------------------------

const served = new Map(); // by caller and request id
const ended = new Set(); // an id is not used twice
const natural = (value) => value == null || (Number.isInteger(value) && value >= 0);

async function serve(request) {
  const { requestId, operationId, input, credits, timeoutMs, peer } = request;
  const key = `${peer}\n${requestId}`;
  const to = { requestId, peer: peer ?? "server" };
  const fail = (code, message) => send({ type: "call.error", code, message, ...to });
  if (typeof requestId !== "string") return;
  if (typeof operationId !== "string" || !natural(credits)) return fail("PROTOCOL_ERROR", "invalid event");
  if (served.has(key)) return;
  if (ended.has(key)) return fail("PROTOCOL_ERROR", "the request id was used before");
  const operation = operationId === "opwire.operations" ? { type: "subscription", run: describe } : operations[operationId];
  if (!operation) return fail("OPERATION_NOT_FOUND", `Operation not found: ${operationId}`);
  if (timeoutMs != null && timeoutMs <= 0) return fail("TIMEOUT", "the deadline has passed");
  const stop = new AbortController();
  const call = { stop, granted: credits ?? Infinity, wake: () => {} };
  const streams = operation.type === "subscription";
  const timer = setTimeout(() => stop.abort("TIMEOUT"), timeoutMs ?? (streams ? 2 ** 31 - 1 : 30_000));
  served.set(key, call);
  const report = (progress, total) => request.progress && send({ type: "call.progress", progress, total, ...to });
  const output = (data) => ({ data, meta: { source: "local", operationId, timestamp: Date.now() } });
  try {
    const result = operation.run({ input, signal: stop.signal, report });
    if (!streams) return send({ type: "call.responded", output: output(await result), ...to });
    let seq = 0;
    while (!stop.signal.aborted) {
      if (seq >= call.granted) { await new Promise((wake) => (call.wake = wake)); continue; }
      const { done, value } = await result.next();
      if (done) return send({ type: "call.completed", seq, ...to });
      send({ type: "call.responded", output: output(value), seq: ++seq, ...to });
    }
    await result.return();
    throw stop.signal.reason;
  } catch (error) {
    if (error === "TIMEOUT") fail("TIMEOUT", `${operationId} did not respond in time`);
    else if (!stop.signal.aborted) fail("EXECUTION_ERROR", "The operation failed."); // the exception may hold secrets
  } finally {
    clearTimeout(timer);
    served.delete(key);
    ended.add(key);
  }
}

// --- calling ------------------------------------------------------------------------------------------------------------

const calls = new Map();
let number = 0;

function call(operationId, input, { timeoutMs = 30_000, credits, item } = {}) {
  const requestId = crypto.randomUUID();
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      calls.delete(requestId);
      send({ type: "call.aborted", requestId, reason: "the deadline has passed" });
      reject(new Error("TIMEOUT"));
    }, timeoutMs);
    calls.set(requestId, { resolve, reject, timer, item, seq: 0, taken: 0, granted: credits, window: credits });
    send({ type: "call.requested", requestId, operationId, input, timeoutMs, ...(credits && { credits }) });
  });
}

function settle(requestId, how, value) {
  const { timer, [how]: done } = calls.get(requestId);
  clearTimeout(timer);
  calls.delete(requestId);
  done(value);
}

function answered(event) {
  const { requestId, seq, peer } = event;
  const call = calls.get(requestId);
  if (!call || event.unmatched) return;
  if (event.type === "call.error") return settle(requestId, "reject", new Error(`${event.code}: ${event.message}`));
  if (event.type === "call.aborted") return settle(requestId, "reject", new Error(`ABORTED: ${event.reason}`));
  if (event.type === "call.completed" || !call.item) return settle(requestId, "resolve", event.output?.data);
  const next = seq ?? call.seq + 1;
  if (next <= call.seq) return;
  if (next > call.seq + 1) {
    send({ type: "call.aborted", requestId, reason: "an item was lost", peer: peer ?? "server" });
    return settle(requestId, "reject", new Error("UNAVAILABLE: an item was lost"));
  }
  call.seq = next;
  call.item(event.output.data);
  if (++call.taken * 2 < call.window) return;
  call.granted += call.taken;
  send({ type: "call.credit", requestId, n: call.taken, total: call.granted, received: call.seq, peer: peer ?? "server" });
  call.taken = 0;
}

// --- the session --------------------------------------------------------------------------------------------------------

socket.onopen = () => send({ type: "session.hello", version: 1, ...(token && { token }) });
socket.onclose = ({ code, reason }) => { console.error("closed", code, reason); process.exit(code === 1000 ? 0 : 1); };
socket.onmessage = ({ data }) => {
  let event;
  try { event = JSON.parse(data); } catch { return; }
  switch (event?.type) {
    case "session.welcome":
      setInterval(() => send({ type: "session.who", id: ++number }), event.heartbeatMs);
      send({ type: "session.announce", id: ++number, operations: Object.keys(operations) });
      break;
    case "session.done": main(); break;
    case "session.refused": console.error(event.code, event.message); break;
    case "session.left":
      for (const [key, { stop, wake }] of served) if (key.startsWith(`${event.peer}\n`)) { stop.abort("gone"); wake(); }
      break;
    case "call.requested": serve(event); break;
    case "call.credit": {
      const call = served.get(`${event.peer}\n${event.requestId}`);
      if (!call || !natural(event.n)) break;
      call.granted = event.total ?? call.granted + event.n;
      call.wake();
      break;
    }
    case "call.aborted": {
      const call = served.get(`${event.peer}\n${event.requestId}`);
      if (!call) return answered(event);
      call.stop.abort("the caller gave up");
      call.wake();
      break;
    }
    case "call.responded": case "call.completed": case "call.error": answered(event);
  }
};

async function main() {
  const results = {};
  const outcome = (promise) => promise.catch((error) => error.message.split(":")[0]);
  results.echo = await outcome(call("conformance.echo", { a: 1 }));
  let sum = 0;
  await outcome(call("conformance.count", { to: 100 }, { credits: 8, item: (n) => (sum += n) }));
  results.sum = sum;
  results.gap = await outcome(call("conformance.gap", {}, { credits: 8, item: () => {} }));
  results.late = await outcome(call("conformance.wait", {}, { timeoutMs: 100 }));
  console.log(JSON.stringify(results));
}
