// Serves operations at a hub in Python until its input ends: node spoke.mjs <package> <url> <token>
const [, , packagePath, url, token] = process.argv;
const { CallError, connect } = await import(packagePath);

let produced = 0;
let stopped = 0;
let aborted = 0;
const announce = (line) => console.log(line);

const peer = await connect(url, {
  token,
  name: "typescript",
  onConnected: () => announce("again"),
  onError: (error, where) => console.error(where, error.message),
});

await peer.serve(
  {
    id: "ts.add",
    type: "query",
    description: "Add two numbers.",
    inputSchema: { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } }, required: ["a", "b"] },
    outputSchema: { type: "integer" },
    validate: (input) => (Number.isInteger(input?.a) && Number.isInteger(input?.b) ? undefined : "a and b are integers"),
    handler: ({ a, b }) => a + b,
  },
  { id: "ts.who", type: "query", handler: (_, context) => context.identity },
  { id: "ts.bytes", type: "query", handler: () => new Uint8Array([0, 255]) },
  { id: "ts.secret", type: "query", access: { requiredScopes: ["secret"] }, handler: () => "told" },
  {
    id: "ts.fail",
    type: "mutation",
    handler: ({ known }) => {
      if (known) throw new CallError("RATE_LIMITED", "not so fast", { retryAfterMs: 1500, details: { left: 0 } });
      throw new Error("the password is hunter2");
    },
  },
  {
    id: "ts.endless",
    type: "query",
    handler: (_, context) => {
      context.progress(1, 2, "it has begun");
      return new Promise((_, reject) =>
        context.signal.addEventListener("abort", () => {
          aborted += 1;
          reject(context.signal.reason);
        }),
      );
    },
  },
  {
    id: "ts.count",
    type: "subscription",
    handler: async function* ({ to }) {
      produced = 0;
      try {
        for (let number = 1; number <= to; number += 1) {
          produced = number;
          yield number;
        }
      } finally {
        stopped += 1;
      }
    },
  },
  { id: "ts.state", type: "query", handler: () => ({ produced, stopped, aborted }) },
  { id: "ts.nested", type: "query", handler: async (_, context) => (await context.call("math.whoami")).data },
  { id: "ts.own", type: "query", handler: async () => (await peer.call("math.whoami")).data },
);

const refused = await peer.serve({ id: "other.thing", type: "query", handler: () => 1 }).catch((error) => error);
announce(`ready ${refused.code}`);

process.stdin.resume();
process.stdin.on("end", () => peer.close());
await peer.closed;
