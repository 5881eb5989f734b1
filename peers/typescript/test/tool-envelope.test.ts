import assert from "node:assert/strict";
import { test } from "node:test";
import { encodeToolEnvelope, findToolEnvelope, parseToolEnvelope, toolEnvelopeBlocks } from "../src/index.ts";

test("an envelope is read back as it was written", () => {
  const text = encodeToolEnvelope({ sum: "3 €" }, { tool: "add", ts: "now", deprecations: ["old"] });
  const meta = { tool: "add", ts: "now", version: 1, deprecations: ["old"] };
  assert.deepEqual(parseToolEnvelope(text), { payload: { sum: "3 €" }, meta });
});

test("the bytes are those of the format's other implementations", () => {
  const text = encodeToolEnvelope("x", { tool: "t", ts: "2026-01-02T03:04:05.678Z" });
  const json = '{"payload":"x","meta":{"tool":"t","ts":"2026-01-02T03:04:05.678Z","version":1}}';
  assert.equal(text, `__ENVELOPE_V1__:${Buffer.from(json).toString("base64")}`);
});

test("base64 of either alphabet is read, with line breaks and without padding", () => {
  const text = encodeToolEnvelope("??>>", { tool: "t", ts: "" });
  const untidy = text.replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "").replace(/(.{30})/g, "$1\n");
  assert.deepEqual(parseToolEnvelope(untidy), parseToolEnvelope(text));
});

test("other versions and invalid content are rejected with the reason", () => {
  const base64 = (text: string) => `__ENVELOPE_V1__:${Buffer.from(text, "latin1").toString("base64")}`;
  assert.throws(() => parseToolEnvelope("# Sum"), /not an envelope block/);
  assert.throws(() => parseToolEnvelope("__ENVELOPE_V2__:e30="), /version 2/);
  assert.throws(() => parseToolEnvelope(base64("[1]")), /JSON object/);
  assert.throws(() => parseToolEnvelope(base64("{")), /readable JSON/);
  assert.throws(() => parseToolEnvelope(base64("\xff")), /readable JSON/);
  assert.throws(() => parseToolEnvelope(base64('{"meta":1}')), /meta/);
});

test("an envelope is found among blocks for people", () => {
  const blocks = toolEnvelopeBlocks("# Sum", 3, { tool: "add" });
  assert.equal(findToolEnvelope([null, { type: "image" }, ...blocks])?.payload, 3);
  assert.equal(findToolEnvelope(blocks.slice(0, 1)), undefined);
});
