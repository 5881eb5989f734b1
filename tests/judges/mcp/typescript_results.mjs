// Starts the server that the arguments name, lists its tools, calls each of them, and prints all of it as JSON.
// The official client compares every result with the output schema of its tool, and throws where they do not agree.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [command, ...args] = process.argv.slice(2);
const client = new Client({ name: "judge", version: "1.0.0" });
await client.connect(new StdioClientTransport({ command, args }));
const { tools } = await client.listTools();
const results = {};
for (const { name } of tools) {
  results[name] = await client.callTool({ name, arguments: {} });
}
console.log(JSON.stringify({ tools, results }));
await client.close();
