// Draws hostile schemas and results with the functions of the page, and prints what they return: node hostile.mjs <console>
import { pathToFileURL } from "node:url";

const [console_] = process.argv.slice(2);
const { createServer } = await import(pathToFileURL(`${console_}/node_modules/vite/dist/node/index.js`).href);
globalThis.location = { hash: "", origin: "http://localhost" };
globalThis.window = { addEventListener() {} };
const server = await createServer({ root: console_, appType: "custom", server: { middlewareMode: true, hmr: false, ws: false, watch: null }, logLevel: "error" });
const { SchemaView } = await server.ssrLoadModule("/src/ui/schema.tsx");
const { mediaOf } = await server.ssrLoadModule("/src/ui/media.tsx");
const { line, visible } = await server.ssrLoadModule("/src/text.ts");
const { safeAddress } = await server.ssrLoadModule("/src/markdown.tsx");

const itself = { $ref: "#/$defs/a" };
const odd = { toString: 1 };
const schemas = {
  "a list of itself": { $ref: "#/$defs/a", $defs: { a: { type: "array", items: itself } } },
  "itself or null": { $ref: "#/$defs/a", $defs: { a: { anyOf: [itself, { type: "null" }] } } },
  "a union of itself": { $ref: "#/$defs/a", $defs: { a: { anyOf: Array(50).fill(itself) } } },
  "an invalid reference": { $ref: "#/%/%E0%A4%A" },
  "a reference to a prototype": { $ref: "#/constructor/prototype", properties: { ["__proto__"]: {}, constructor: {} } },
  "types that are not text": { type: odd, format: odd },
  "a list of odd types": { type: [odd, 5, null] },
  "titles that are not text": { anyOf: [{ title: odd, properties: { a: {} } }, { title: 5, properties: {} }] },
};
const found = {};
const timed = (name, act) => {
  const began = performance.now();
  try {
    act();
    found[name] = performance.now() - began < 5000 ? "drawn" : "slow";
  } catch (error) {
    found[name] = String(error);
  }
};
for (const [name, schema] of Object.entries(schemas)) timed(name, () => SchemaView({ schema }));
const blocks = [
  { type: "resource", resource: { text: 5, mimeType: odd, uri: odd } },
  { type: "resource", resource: { blob: odd } },
  { type: "text", text: odd },
  { type: "image", data: odd, mimeType: odd },
  { type: "resource_link", name: odd, uri: odd },
  null,
];
timed("blocks of odd values", () => {
  const media = mediaOf({ data: null, meta: { source: "mcp", content: blocks } });
  const texts = media.flatMap((each) => [each.type, each.data, each.text, each.name, each.link]);
  if (!texts.every((each) => each === undefined || typeof each === "string")) throw new Error("not text");
});
timed("text of odd values", () => [odd, 5, null, [], 10n ** 400n].forEach((each) => [line(each), visible(each)]));
found.hidden = visible("a\u202eb\u{e0041}\u{e007f}c 👍");
found.addresses = ["javascript:alert(1)", "JAVASCRIPT:x", " javascript:x", "data:text/html,x", "vbscript:x", "//evil", "blob:x"].map(safeAddress);
console.log(JSON.stringify(found));
await server.close();
process.exit(0);
