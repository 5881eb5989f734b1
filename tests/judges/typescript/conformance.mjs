// Serves or calls `conformance.*`, for the conformance kit: node conformance.mjs <package> <url> serve|call
const [, , packagePath, url, role] = process.argv;
const { connect } = await import(packagePath);
const peer = await connect(url, { token: "any" });

let waiting = 0;
const open = { public: true };
const operations = [
  { id: "conformance.echo", type: "query", handler: (input) => input },
  { id: "conformance.fail", type: "mutation", handler: ({ secret }) => { throw new Error(secret); } },
  {
    id: "conformance.count",
    type: "subscription",
    handler: function* ({ to }) {
      for (let number = 1; number <= to; number += 1) yield number;
    },
  },
  { id: "conformance.waiting", type: "query", handler: () => waiting },
  {
    id: "conformance.wait",
    type: "query",
    handler: (_, { signal }) =>
      new Promise((_, reject) => {
        waiting += 1;
        signal.addEventListener("abort", () => {
          waiting -= 1;
          reject(signal.reason);
        });
      }),
  },
  {
    id: "conformance.steps",
    type: "query",
    handler: (_, context) => {
      for (const step of [1, 2, 3]) context.progress(step, 3);
      return 3;
    },
  },
];

if (role === "serve") {
  await peer.serve(...operations.map((each) => ({ ...each, access: open })));
} else {
  const failed = (error) => error.code;
  const results = [(await peer.call("conformance.echo", { a: 1 })).data];
  let sum = 0;
  for await (const item of peer.subscribe("conformance.count", { to: 300 })) sum += item.data;
  results.push(sum);
  const drain = async (items) => {
    for await (const _ of items);
  };
  results.push(await drain(peer.subscribe("conformance.gap")).catch(failed));
  results.push(await peer.call("conformance.wait", {}, { timeoutMs: 100 }).catch(failed));
  console.log(JSON.stringify(results));
  await new Promise((resolve) => setTimeout(resolve, 500)); // its aborts are seen
  peer.close();
}
await peer.closed;
process.exit();
