// The official client of TypeScript in its second version: lists the tools of the server at a URL, and calls one.
// The arguments are the URL, and how to negotiate the revision: "legacy", or "auto" for the newest.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const [url, mode] = process.argv.slice(2);
const client = new Client({ name: "judge", version: "1.0.0" }, { versionNegotiation: { mode } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { tools } = await client.listTools();
const result = await client.callTool({ name: "test_header_echo", arguments: { region: "north" } });
const revision = client.getNegotiatedProtocolVersion();
console.log(JSON.stringify({ tools: tools.map((tool) => tool.name), echoed: result.structuredContent, revision }));
await client.close();
