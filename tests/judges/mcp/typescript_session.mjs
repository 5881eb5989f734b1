// Gives up a call that has begun, waits for news of the tools, and prints what came of both as JSON.
// The only argument is the URL of a server; several are the command that starts one.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CallToolResultSchema, ToolListChangedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

const [place, ...args] = process.argv.slice(2);
const transport = args.length
  ? new StdioClientTransport({ command: place, args })
  : new StreamableHTTPClientTransport(new URL(place));
const client = new Client({ name: "judge", version: "1.0.0" });
await client.connect(transport);

const progress = [];
const giveUp = new AbortController();
const endless = client.callTool({ name: "work_endless", arguments: {} }, CallToolResultSchema, {
  signal: giveUp.signal,
  onprogress: (each) => {
    progress.push(each);
    giveUp.abort("no longer needed");
  },
});
const givenUp = await endless.then(() => false, () => true);
const cancelled = await client.callTool({ name: "work_cancelled", arguments: {} });

const changed = new Promise((resolve) => client.setNotificationHandler(ToolListChangedNotificationSchema, resolve));
await client.callTool({ name: "work_grow", arguments: {} });
await changed;
const { tools } = await client.listTools();

console.log(JSON.stringify({ progress, givenUp, cancelled, tools: tools.map((tool) => tool.name) }));
await client.close();
