// Calls what a hub in Python serves, and prints what happened: node caller.mjs <package> <url> <token> [<package ws>]
const [, , packagePath, url, token, ws] = process.argv;
const platform = ws === undefined ? {} : { WebSocket: (await import(ws)).WebSocket };
const { CallError, connect, findToolEnvelope, unwrap } = await import(packagePath);

const outcome = (work) =>
  work.then(
    (value) => ({ value }),
    (error) => ({ code: error instanceof CallError ? error.code : String(error), message: error.message, details: error.details }),
  );

const results = {};
results.refused = await outcome(connect(url, { token: "not-a-valid-token", ...platform }));

let reconnected;
const again = new Promise((resolve) => (reconnected = resolve));
const peer = await connect(url, { token, onConnected: reconnected, ...platform });

results.add = await peer.call("math.add", { a: 1, b: 2 });
results.bytes = [...unwrap(await peer.call("work.bytes"))];
results.tool = findToolEnvelope((await peer.call("work.tool")).meta.content);
results.unknown = await outcome(peer.call("math.ad"));
results.invalid = await outcome(peer.call("math.add", { a: "one", b: 2 }));
results.broken = await outcome(peer.call("work.broken"));
results.large = await outcome(peer.call("math.add", { a: "x".repeat(2_000_000) }));
results.wrongKind = await outcome(peer.call("work.count", { to: 2 }));
results.late = await outcome(peer.call("work.endless", null, { timeoutMs: 50 }));

const giving = new AbortController();
const given = outcome(peer.call("work.endless", null, { signal: giving.signal, onProgress: () => giving.abort() }));
results.aborted = await given;
results.endless = unwrap(await peer.call("work.cancelled", { number: 2 }));

let sum = 0;
for await (const item of peer.subscribe("work.count", { to: 1000 })) sum += item.data;
results.sum = sum;

const few = [];
for await (const item of peer.subscribe("work.count", { to: 1_000_000 }, { credits: 4 })) {
  few.push(item.data);
  if (few.length < 3) continue;
  results.produced = unwrap(await peer.call("work.produced"));
  break;
}
results.few = few;
results.stopped = unwrap(await peer.call("work.stopped"));

// The hub restarts: calls in flight fail, and the peer is there again.
results.lost = await outcome(peer.call("work.restart"));
await again;
results.after = (await peer.call("math.add", { a: 2, b: 2 })).data;
results.openCalls = peer.openCalls;
peer.close();
results.closed = (await peer.closed) ?? null;
results.afterClose = await outcome(peer.call("math.add"));
console.log(JSON.stringify(results));
