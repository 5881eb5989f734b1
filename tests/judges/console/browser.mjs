// Drives Chromium through the console: `node browser.mjs ADDRESS`. Prints one line of JSON per scenario.
// A scenario fails by an exception. Waiting is for states, never for a time.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [, , address, only] = process.argv;
const OWNER = "owner-token-0123456789";
const CLERK = "clerk-token-0123456789";
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const PATIENCE = 30_000;

function check(condition, message) {
  if (!condition) throw new Error(message);
}

function equal(found, expected, what = "value") {
  const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
  check(a === b, `${what}: ${a} instead of ${b}`);
}

class Session {
  constructor(context, page) {
    this.context = context;
    this.page = page;
  }

  /** A page with its own cookies and storage, logged in unless `token` is null. */
  static async open(browser, { token = OWNER, ...options } = {}) {
    const context = await browser.newContext({ viewport: { width: 1360, height: 860 }, acceptDownloads: true, permissions: ["clipboard-read", "clipboard-write"], ...options });
    context.setDefaultTimeout(PATIENCE);
    const page = await context.newPage();
    const session = new Session(context, page);
    session.faults = [];
    await page.addInitScript(() => document.addEventListener("securitypolicyviolation", (event) => console.error(`CSP ${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`)));
    page.on("pageerror", (error) => session.faults.push(`error: ${error.message}`));
    page.on("console", (message) => message.text().startsWith("CSP ") && session.faults.push(message.text()));
    page.on("request", (request) => {
      const { protocol, origin } = new URL(request.url());
      if (/^https?:$/.test(protocol) && origin !== new URL(address).origin) session.faults.push(`request to ${request.url()}`);
    });
    page.on("dialog", (dialog) => session.faults.push(`dialog: ${dialog.message()}`));
    if (token !== null) {
      const reply = await context.request.post(`${address}/console/api/session`, { data: { token }, headers: { "X-Opwire-Console": "1", Origin: address } });
      check(reply.ok(), `login: ${reply.status()}`);
    }
    return session;
  }

  async go(hash) {
    await this.page.goto(`${address}/console/${hash}`);
    await this.page.locator("main").waitFor();
  }

  async operation(id, tab = "try") {
    await this.go(`#/operations/${encodeURIComponent(id)}/${tab}`);
    await this.page.locator(".detail-body").waitFor();
  }

  button(name) {
    return this.page.getByRole("button", { name, exact: true });
  }

  async run() {
    await this.button("Run").click();
  }

  /** The outcome of the last run. */
  async outcome() {
    return (await this.page.locator(".run-head .outcome.good, .run-head .outcome.bad").first().textContent()).trim();
  }

  async json() {
    return JSON.parse(await this.page.locator(".input-json .editor .cm-content").evaluate((node) => [...node.querySelectorAll(".cm-line")].map((line) => line.textContent).join("\n")));
  }

  async until(test, argument) {
    await this.page.waitForFunction(test, argument, { timeout: PATIENCE });
  }

  async close() {
    const pwned = await this.page.evaluate(() => window.pwned ?? ({}).polluted ?? null).catch(() => null);
    await this.context.close();
    check(pwned === null, `foreign code ran: ${pwned}`);
    equal(this.faults, [], "faults");
  }
}

const scenarios = {
  async operations(s) {
    await s.go("");
    const { page } = s;
    await page.getByText("10,0", { exact: false }).first().waitFor();
    const tree = page.getByRole("tree", { name: "Operations" });
    await tree.getByText("catalogue", { exact: true }).click();
    await tree.getByText("group 00").waitFor();
    await page.locator(".operations").evaluate((node) => (node.scrollTop = 200_000));
    await s.until(() => document.querySelectorAll(".operations .row").length > 10 && document.querySelector(".operations").scrollTop > 100_000);
    const rows = await page.locator(".operations .row").count();
    check(rows < 100, `${rows} rows are drawn`);
    for (const by of ["Tag", "Source"]) await s.button(by).click();
    await s.button("Name").click();
  },

  async search(s) {
    await s.go("");
    const { page } = s;
    const ranking = page.waitForResponse((reply) => reply.url().includes("/api/search?q=place"));
    await page.getByRole("searchbox", { name: "Search operations" }).fill("place an order");
    check((await ranking).ok(), "search");
    await page.locator(".operations .row", { hasText: "shop.order" }).first().waitFor();
    // Without the server's ranking the words still find something.
    await page.route("**/api/search?*", (route) => route.abort());
    await page.getByRole("searchbox", { name: "Search operations" }).fill("item00042");
    await page.locator(".operations .row", { hasText: "catalogue.item00042" }).click();
    await page.getByRole("heading", { name: "catalogue.item00042" }).waitFor();
  },

  async reference(s) {
    await s.operation("shop.order", "reference");
    const text = await s.page.locator(".detail-body > .reference").textContent();
    for (const part of ["Order articles", "shop:write", "tokens", "lines", "payment", "TEA-3"]) check(text.includes(part), `${part} is missing`);
    await s.button("JSON Schema").first().click();
    await s.page.locator(".reference pre.code").first().waitFor();
    await s.button("Use this input").click();
    await s.until(() => document.querySelector(".input-form input")?.value === "TEA-3");
    await s.operation("shop.close", "reference");
    await s.page.locator(".marks .badge.bad", { hasText: "destructive" }).waitFor();
    await s.page.locator(".facts", { hasText: "idempotentHint" }).waitFor();
    await s.page.locator(".operations .row.chosen").getByLabel("destructive").waitFor();
  },

  async form(s) {
    await s.operation("shop.order");
    const { page } = s;
    await page.locator(".input-form label", { hasText: "article" }).first().waitFor();
    await page.locator(".input-json .cm-content").waitFor();
    await s.run(); // nothing is sent: fields are missing
    await page.locator(".field.wrong", { hasText: "This field is required." }).first().waitFor();
    check((await page.locator(".run").count()) === 0, "an invalid input was sent");
    await page.getByLabel("article").fill("TEA-1");
    await page.getByLabel("amount").fill("5000");
    await page.locator(".field.wrong", { hasText: "1000" }).first().waitFor();
    await page.getByLabel("amount").fill("2");
    await page.locator("legend", { hasText: /^delivery$/ }).waitFor(); // the name of the field, and not its type's title
    equal(await page.locator(".union-choice select").last().locator("option").allInnerTexts(), ["integer", "string"]);
    await page.locator(".union-choice select").first().selectOption({ label: "Invoice" });
    await page.getByLabel("email").fill("ann@example.com");
    await s.button("Add to lines").click();
    await page.getByLabel("article").nth(1).fill("TEA-2");
    await page.getByLabel("priority").selectOption({ label: "express" });
    const file = join(tmpdir(), "opwire-attachment.bin");
    writeFileSync(file, Buffer.from([1, 2, 3, 255]));
    await page.locator("input[type=file]").setInputFiles(file);
    await page.locator(".file-name", { hasText: "4 B" }).waitFor();
    await page.locator(".input-json .cm-line", { hasText: "AQID/w==" }).waitFor();
    const input = await s.json();
    equal(input.lines, [{ article: "TEA-1", amount: 2 }, { article: "TEA-2" }]);
    equal([input.payment.kind, input.payment.email, input.priority, input.attachment], ["invoice", "ann@example.com", "express", "AQID/w=="]);
    await s.run();
    equal(await s.outcome(), "OK");
    await page.locator(".tree-row", { hasText: "attachment" }).getByText("4", { exact: true }).waitFor();
  },

  async editor(s) {
    await s.operation("shop.search");
    const { page } = s;
    await page.getByLabel("words").waitFor();
    const editor = page.locator(".input-json .cm-content");
    await editor.click();
    await page.keyboard.press("ControlOrMeta+a");
    await page.keyboard.insertText('{"words": "sencha", "limit": 3}');
    await s.until(() => document.querySelector(".input-form input").value === "sencha");
    await page.keyboard.insertText("oops");
    await page.getByText("The JSON is not valid").waitFor();
    await page.keyboard.press("ControlOrMeta+a");
    await page.keyboard.insertText('{"words": "tea", "limit": 0}');
    await page.locator(".field.wrong", { hasText: "limit" }).waitFor();
    await s.run();
    await s.button("Send anyway").click(); // the server has the last word
    equal(await s.outcome(), "VALIDATION_ERROR");
    await page.keyboard.press("Escape");
    await page.getByLabel("limit").fill("3");
    await page.keyboard.press("ControlOrMeta+Enter");
    await page.getByRole("tab", { name: "Table (3)" }).click();
    await page.getByRole("columnheader", { name: "name" }).getByRole("button").click();
    await page.getByRole("cell", { name: "Assam, second flush" }).first().waitFor();
  },

  async untyped(s) {
    await s.operation("shop.anything");
    await s.page.getByLabel("value").fill('{"exact": 9007199254740993}');
    await s.run();
    equal(await s.outcome(), "OK");
    await s.page.locator(".try-result .tree-number", { hasText: "9007199254740993" }).waitFor();
  },

  async exact(s) {
    const { page } = s;
    const sent = async (press) => {
      const request = page.waitForRequest((each) => each.method() === "POST" && each.url().endsWith("/api/call"));
      await press();
      return /"input":(.*)}$/.exec((await request).postData())[1];
    };
    const run = () => sent(() => s.run());
    const write = async (text) => {
      await page.locator(".input-json .cm-content").click();
      await page.keyboard.press("ControlOrMeta+a");
      await page.keyboard.insertText(text);
    };
    await s.operation("exact.numbers");
    await page.getByLabel("weight").waitFor();
    equal(await run(), '{"number":1152921504606846977,"others":[],"weight":1.5}', "default");
    await page.locator(".tree-string", { hasText: '"1152921504606846977"' }).waitFor(); // a text is not only green
    await page.locator(".tree-string", { hasText: '"null"' }).waitFor();
    await page.getByLabel("Use an example").selectOption({ index: 1 });
    equal(await run(), '{"number":9007199254740993,"others":[18446744073709551615]}', "example");
    await page.getByLabel("number").fill("123456789012345678901234567890");
    await page.getByLabel("weight").fill("2.5");
    equal(await run(), '{"number":123456789012345678901234567890,"others":[18446744073709551615],"weight":2.5}', "form");
    await page.getByRole("tab", { name: "History" }).click();
    await page.reload();
    await s.button("Use").first().click();
    equal(await run(), '{"number":123456789012345678901234567890,"others":[18446744073709551615],"weight":2.5}', "history");
    await write('{"number": 1e400}');
    await page.getByText("A number is too large.").waitFor();
    await s.operation("exact.reserved");
    await page.getByText("No form can be drawn for this input").waitFor();
    await write('{"constructor": "c", "__proto__": 1, "a": "b"}');
    equal(await run(), '{"constructor":"c","__proto__":1,"a":"b"}', "reserved names");
    await s.operation("exact.open");
    equal(await page.locator(".detail-title > span").innerText(), "Takes anything, see the page for <owner>.", "HTML of a description");
    equal(await page.locator(".detail-title a").getAttribute("href"), "https://example.com/x");
    await page.getByText("This operation declares no fields").waitFor();
    await write('{"any": 1}');
    equal(await run(), '{"any":1}', "without fields");
    await s.go("#/tape");
    await s.button("Values").click();
    await page.locator(".connection.open").waitFor();
    await s.button("Clear").click();
    await s.operation("exact.numbers");
    await s.button("Reset").click();
    await run();
    equal(await s.outcome(), "OK");
    await s.go("#/tape");
    await page.locator(".row.call", { hasText: "exact.numbers" }).last().click();
    await page.locator(".tree-number", { hasText: "1152921504606846977" }).first().waitFor();
  },

  async results(s) {
    await s.operation("shop.clock");
    const { page } = s;
    await s.run();
    equal(await s.outcome(), "OK");
    await page.locator(".try-result .tree-number", { hasText: "9007199254740993" }).waitFor();
    await page.keyboard.press("ControlOrMeta+Enter");
    await page.getByRole("tab", { name: "Diff" }).click();
    await page.locator(".diff tr.changed", { hasText: "calls" }).waitFor();
    equal(await page.locator(".diff tbody tr").count(), 1, "differences");
    await page.getByRole("tab", { name: "Envelope" }).click();
    await page.locator(".raw .cm-content", { hasText: '"source": "local"' }).waitFor();
    await page.getByRole("tab", { name: "Meta" }).click();
    await page.locator(".result-body", { hasText: "operationId" }).waitFor();
    await page.getByRole("tab", { name: "History" }).click();
    equal(await page.locator(".history li").count(), 2, "history");
    await s.button("Forget these").click();
    await page.getByText("Nothing was called yet").waitFor();
  },

  async secrets(s) {
    await s.operation("shop.anything");
    await s.page.getByLabel("value").fill('{"user": "ann", "password": "hunter2", "deep": [{"apiKey": "k-123"}]}');
    await s.run();
    equal(await s.outcome(), "OK");
    await s.until(() => localStorage["opwire.console.history"]?.includes("ann"));
    const stored = await s.page.evaluate(() => JSON.stringify(localStorage));
    check(!stored.includes("hunter2") && !stored.includes("k-123"), `stored: ${stored}`);
  },

  async snippets(s) {
    await s.operation("shop.search");
    await s.page.getByLabel("words").fill("green");
    for (const [name, part] of [["curl", "curl"], ["Python", "opwire"], ["MCP request", "tools/call"]]) {
      await s.button(`Copy as ${name}`).click();
      await s.until(async (wanted) => {
        const text = await navigator.clipboard.readText();
        return text.includes(wanted) && text.includes("green");
      }, part);
    }
  },

  async options(s) {
    await s.operation("shop.restock");
    const { page } = s;
    await page.getByLabel("steps").fill("1000");
    await s.run();
    await page.locator("progress").waitFor();
    await page.getByText(/shelf \d+ of 1000/).waitFor();
    await s.button("Cancel").click();
    await page.getByText("Cancelled.").waitFor();
    await page.getByLabel("Deadline").fill("0.3");
    await s.run();
    await page.locator(".failure", { hasText: "TIMEOUT" }).waitFor();
    await s.operation("shop.clock");
    await page.getByText("Act as…").click();
    await page.getByLabel("Identity").fill("mallory");
    await s.run();
    await page.locator(".tree-string", { hasText: "mallory" }).waitFor();
    await page.locator(".badge", { hasText: "as mallory" }).waitFor();
  },

  async media(s) {
    await s.operation("media.gallery");
    const { page } = s;
    await s.run();
    await s.until(() => [...document.querySelectorAll(".media img")].length === 2 && [...document.querySelectorAll(".media img")].every((each) => each.naturalWidth > 0));
    for (const part of ["audio", "iframe", "strong"]) await page.locator(`.media ${part}`).first().waitFor();
    equal(await page.locator(".media iframe").count(), 1, "frames"); // HTML is a file to save, not a document to open
    equal(await page.locator(".media a").count(), 0, "links");
    await s.operation("media.photo");
    await s.run();
    await s.until(() => document.querySelector(".media img")?.naturalWidth === 120);
    const download = page.waitForEvent("download");
    await page.locator(".media").getByRole("button", { name: "Save" }).click();
    check(/^[\w .-]+\.png$/.test((await download).suggestedFilename()), "file name");
  },

  async streams(s) {
    await s.operation("shop.ticks");
    const { page } = s;
    await page.getByLabel("every").fill("0.02");
    await s.button("Subscribe").click();
    await page.locator(".items .item").nth(5).waitFor();
    await page.getByRole("link", { name: "Streams" }).click();
    await page.locator(".stream-list", { hasText: "shop.ticks" }).waitFor();
    await s.button("Pause").click();
    await page.getByText("back-pressure holds the operation back").waitFor();
    const seen = await page.locator(".stream-head .figure").first().textContent();
    await s.button("Resume").click();
    await s.until((before) => document.querySelector(".stream-head .figure").textContent !== before, seen);
    await page.getByRole("searchbox", { name: "Filter items" }).fill("TEA-3");
    await s.until(() => [...document.querySelectorAll(".items .item")].length > 0 && [...document.querySelectorAll(".items .item")].every((each) => each.textContent.includes("TEA-3")));
    await s.button("Stop shop.ticks").click();
    await page.locator(".state", { hasText: "cancelled" }).waitFor();
  },

  async firehose(s) {
    await s.operation("shop.firehose");
    await s.button("Subscribe").click();
    // The buffer is bounded: old items are let go, and few rows are drawn.
    await s.page.getByText(/older ones were let go/).waitFor();
    check((await s.page.locator(".items .item").count()) < 60, "too many rows");
    await s.button("Stop").click();
    await s.page.getByText("Cancelled.").waitFor();
    // A browser has six connections to a server: the page keeps some of them free.
    for (const id of ["shop.ticks", "shop.firehose", "shop.restock", "shop.refund"]) {
      await s.operation(id);
      if (id === "shop.restock") await s.page.getByLabel("steps").fill("100000");
      await s.page.getByRole("button", { name: /^(Run|Subscribe)$/ }).click();
    }
    await s.operation("shop.clock");
    await s.run();
    await s.page.locator(".failure", { hasText: "Stop one of them first" }).waitFor();
  },

  async questions(s) {
    await s.operation("shop.refund");
    const { page } = s;
    await s.run();
    await page.getByText("How is order 4711 paid back?").waitFor();
    await page.getByRole("link", { name: "Streams" }).click();
    await page.locator(".question").getByLabel("amount").fill("12.5");
    await page.locator(".question").getByLabel("way").selectOption({ label: "voucher" });
    await s.button("Answer").click();
    await page.getByRole("link", { name: "Operations" }).click();
    await s.operation("shop.refund", "history");
    await page.locator(".history .outcome", { hasText: "OK" }).waitFor();
  },

  async approvals(s) {
    await s.operation("shop.close");
    const { page } = s;
    await s.run();
    await page.getByRole("link", { name: /Streams/ }).click();
    await page.locator(".approval", { hasText: "shop.close" }).waitFor();
    await s.button("Approve").click();
    await page.locator(".approval").waitFor({ state: "detached" });
    await s.operation("shop.close", "history");
    await page.locator(".history .outcome", { hasText: "OK" }).waitFor();
  },

  async tape(s) {
    await s.go("#/tape");
    const { page } = s;
    await s.button("Values").click();
    await page.locator(".connection.open").waitFor();
    await s.operation("shop.total");
    await s.run();
    equal(await s.outcome(), "OK");
    await page.getByRole("link", { name: "Tape" }).click();
    await page.getByRole("searchbox").fill("operation:shop.total caller:owner"); // other scenarios are on the tape, too
    await page.locator(".row.call", { hasText: "shop.total" }).last().click();
    await s.until(() => document.querySelectorAll(".waterfall li").length === 3);
    await page.locator(".call-detail .tree", { hasText: "total" }).waitFor();
    await page.getByRole("searchbox").fill("operation:shop.price caller:owner outcome:ok");
    await s.until(() => [...document.querySelectorAll(".row.call:not(.head)")].length > 0 && [...document.querySelectorAll(".row.call:not(.head)")].every((each) => each.textContent.includes("shop.price")));
    const download = page.waitForEvent("download");
    await s.button("JSON lines").click();
    const lines = readFileSync(await (await download).path(), "utf8").split("\n").map((each) => JSON.parse(each));
    check(lines.length >= 2 && lines.every((each) => each.operationId === "shop.price"), "export");
  },

  async load(s) {
    await s.operation("load.run");
    const { page } = s;
    await page.evaluate(() => {
      window.longest = 0;
      new PerformanceObserver((list) => list.getEntries().forEach((each) => (window.longest = Math.max(window.longest, each.duration)))).observe({ entryTypes: ["longtask"] });
    });
    await s.run();
    await page.getByRole("link", { name: "Tape" }).click();
    const total = (least) => Number(/of ([\d,]+) seen/.exec(document.querySelector(".page.tape [role=status]")?.textContent ?? "")?.[1].replaceAll(",", "")) >= least;
    await s.until(total, 1500);
    await s.button("Pause").click(); // the page answers while it is flooded
    await page.getByText(/newer calls wait/).waitFor();
    const rows = await page.locator(".row.call").count();
    check(rows < 80, `${rows} rows are drawn`);
    await s.button("Resume").click();
    await s.until(total, 4000);
    return { longestTaskMs: Math.round(await page.evaluate(() => window.longest)) };
  },

  async flood(s) {
    await s.operation("load.run");
    const { page } = s;
    await page.getByLabel("rate").fill("20000");
    await page.getByLabel("seconds").fill("60");
    await s.run();
    await page.getByRole("link", { name: "Tape" }).click();
    await page.getByText(/calls were only counted/).waitFor();
    await page.locator(".row.call", { hasText: "TIMEOUT" }).first().waitFor();
    await page.getByLabel("Filter, such as caller:alice").fill("id:-99"); // one call of a hundred
    await page.getByText("The server sends only calls that match the filter.").waitFor();
    await page.getByText(/matching calls\/s/).waitFor();
    await page.getByLabel("Filter, such as caller:alice").fill("");
    await page.getByText("The server sends only").waitFor({ state: "detached" });
    await page.getByRole("link", { name: "Streams" }).click();
    await s.button("Stop load.run").click();
  },

  async system(s) {
    await s.operation("shop.price");
    const { page } = s;
    await page.getByLabel("article").fill("TEA-9");
    await s.run();
    equal(await s.outcome(), "EXECUTION_ERROR");
    await page.getByRole("link", { name: "System" }).click();
    await page.locator(".card", { hasText: "tea shop" }).waitFor();
    await page.route("**/api/system", async (route) => {
      const reply = await route.fetch();
      const found = await reply.json();
      const spokes = Array.from({ length: 50 }, (_, number) => ({ ...found.servers[0], id: `s${number}`, name: `spoke ${number}`, kind: "spoke", status: number === 40 ? "draining" : "serving" }));
      await route.fulfill({ response: reply, json: { ...found, servers: [...found.servers, ...spokes] } });
    });
    await page.locator(".card", { hasText: "spoke 40" }).waitFor(); // one with a problem is not hidden
    check((await page.locator(".card").count()) === 12, "too many servers are drawn at once");
    await s.button(`Show all ${50 + 1} servers`).click();
    await page.locator(".card", { hasText: "spoke 49" }).waitFor();
    await page.unroute("**/api/system");
    await page.locator(".sources", { hasText: "Connection refused" }).waitFor();
    await page.getByText("What was skipped, and why").click();
    await page.getByText("the body has no content type").waitFor();
    const row = page.locator(".figures tr", { hasText: "shop.price" });
    await row.getByText("EXECUTION_ERROR").waitFor();
    check((await row.locator(".histogram rect").count()) > 0, "no histogram");
    await page.locator("section[aria-label=Journal]", { hasText: "shop.order" }).waitFor();
    await s.button("Retry").first().click();
    await page.locator("section[aria-label=Journal] tr", { hasText: "waiting" }).waitFor();
    equal(await s.button("Retry").count(), 0);
  },

  async login(s) {
    const { page } = s;
    await s.go("");
    await page.locator(".operations .row", { hasText: "search" }).waitFor(); // public operations only
    check((await page.locator(".operations .row", { hasText: "order" }).count()) === 0, "too much is public");
    await s.go("#/operations/shop.order");
    await page.getByRole("dialog", { name: "Log in" }).waitFor();
    check(!(await page.getByRole("dialog").innerText()).includes("has ended"), "a session that was not there has ended");
    await page.getByLabel("Token").fill("wrong");
    await page.getByLabel("Token").press("Enter");
    await page.getByText("does not accept this token").waitFor();
    await page.getByLabel("Token").fill(CLERK);
    await page.getByLabel("Token").press("Enter");
    await page.locator(".operations .row", { hasText: "order" }).waitFor();
    await s.operation("shop.anything");
    await page.getByLabel("value").fill('"kept"');
    await s.context.clearCookies(); // the session ends
    await s.run();
    await page.getByText("Your session has ended").waitFor();
    await page.getByLabel("Token").fill(CLERK);
    await page.getByLabel("Token").press("Enter");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    equal(await s.json(), { value: "kept" }, "input");
    await s.context.clearCookies();
    await s.run();
    await page.getByText("Your session has ended").waitFor();
    const tab = await s.context.newPage(); // a login there is one here as well
    await tab.goto(`${address}/console/#/operations/shop.order`);
    await tab.getByLabel("Token").fill(CLERK);
    await tab.getByLabel("Token").press("Enter");
    await tab.getByRole("dialog").waitFor({ state: "detached" });
    await tab.close();
    await page.evaluate(() => window.dispatchEvent(new Event("focus"))); // a headless browser focuses all of its tabs
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await s.run();
    await page.locator(".tree-string", { hasText: "kept" }).waitFor();
    await page.getByRole("link", { name: "Tape" }).click();
    await page.getByText("opwire:observe").waitFor(); // the clerk may not watch
  },

  async link(s) {
    const { page } = s;
    await page.goto(process.env.LINK);
    await page.locator(".topbar summary", { hasText: "local" }).waitFor();
    check(!page.url().includes("link="), "the code stays in the address");
    await s.context.clearCookies();
    await page.goto("about:blank");
    await page.goto(process.env.LINK);
    await page.getByText("This link has been used already").waitFor();
  },

  async lost(s) {
    await s.operation("shop.anything");
    const { page } = s;
    await page.locator(".connection.open").waitFor();
    await page.getByLabel("value").fill("1");
    await page.route("**/api/**", (route) => route.abort("connectionrefused"));
    await page.evaluate(() => window.dispatchEvent(new Event("online"))); // connect again, in vain
    await page.getByText("The connection to the server is lost, and is being restored.").waitFor();
    await s.run();
    await page.locator(".failure", { hasText: "cannot be reached" }).waitFor();
    await page.unroute("**/api/**");
    await s.button("Try now").click();
    await page.locator(".connection.open").waitFor();
    await page.locator(".banner").waitFor({ state: "detached" });
    await s.run();
    equal(await s.outcome(), "OK");
  },

  async large(s) {
    await s.operation("shop.export");
    await s.run();
    await s.page.getByText("too much to show here").waitFor();
    const download = s.page.waitForEvent("download");
    await s.page.locator(".notice").getByRole("button", { name: "Save" }).click();
    const { size } = await import("node:fs").then(async (fs) => fs.statSync(await (await download).path()));
    check(size > 50_000_000, `${size} bytes`);
    await s.page.getByLabel("megabytes").fill("4"); // as much as is shown inline
    await s.run();
    await s.page.locator(".tree-index").first().waitFor();
  },

  async hostile(s) {
    const { page } = s;
    await s.go("");
    const names = await page.evaluate(async () => (await (await fetch("api/operations")).json()).operations.map((each) => each.id).filter((id) => id.startsWith("hostile.")));
    check(names.length >= 7, "no hostile operations");
    for (const name of names) {
      await s.operation(name, "reference");
      equal(await page.locator(".detail-title h1").textContent(), name, "name");
      const links = await page.locator(".reference a").evaluateAll((all) => all.map((each) => each.getAttribute("href")));
      check(links.every((each) => /^https?:/.test(each)), `links: ${links}`);
      check((await page.locator(".reference img, .reference script").count()) === 0, "elements");
      await page.getByRole("tab", { name: "Try it" }).click();
      await s.run();
      await s.outcome();
    }
    await s.operation("hostile.result");
    await s.run();
    await page.locator(".tree", { hasText: "⟨202E⟩txt.exe" }).waitFor();
    for (const tab of [/Table/, "Envelope", "Meta"]) await page.getByRole("tab", { name: tab }).click();
    check((await page.locator(".try-result img, .try-result script").count()) === 0, "elements");
    for (const target of ["#/tape", "#/system", "#/operations/%E0%A4%A", "#/nowhere/../x"]) await s.go(target);
  },

  async keyboard(s) {
    const { page } = s;
    await s.go("");
    await page.locator(".operations .row").first().waitFor();
    await page.keyboard.press("/");
    await page.keyboard.type("shop.clock");
    await page.locator(".operations .row", { hasText: "shop.clock" }).waitFor();
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    await page.keyboard.press("j");
    await page.keyboard.press("j");
    await page.keyboard.press("k");
    await page.locator(".operations .row.active").waitFor();
    await page.keyboard.press("/");
    await page.keyboard.type("shop.clock");
    await s.until(() => document.querySelector(".operations .row")?.textContent.includes("shop.clock"));
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "shop.clock" }).waitFor();
    await page.locator(".try").waitFor();
    await page.keyboard.press("ControlOrMeta+Enter");
    equal(await s.outcome(), "OK");
    await page.keyboard.press("Escape"); // clears the search
    await page.keyboard.press("Escape"); // and leaves it
    await page.keyboard.press("?");
    await page.getByRole("dialog", { name: "Keyboard" }).waitFor();
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.keyboard.press("g");
    await page.keyboard.press("t");
    await page.getByRole("heading", { name: "Tape" }).waitFor();
    await page.keyboard.press("d");
    await page.keyboard.press("d");
    await s.until(() => document.documentElement.dataset.theme === "dark");
  },

  async narrow(s) {
    const { page } = s;
    await page.setViewportSize({ width: 390, height: 844 });
    for (const [target, ready] of VIEWS) {
      await s.go(target);
      await page.locator(ready).first().waitFor();
      const wide = await page.evaluate(() => Math.max(document.documentElement.scrollWidth, ...[...document.querySelectorAll(".page, .detail-body, .pane")].map((each) => each.scrollWidth)));
      check(wide <= 390, `${target} is ${wide} pixels wide`);
    }
    await s.operation("shop.clock");
    await s.run();
    equal(await s.outcome(), "OK");
    await s.button("Back to the list").click();
    await page.locator(".operations .row").first().waitFor();
  },

  async accessible(s) {
    const { page } = s;
    const found = [];
    for (const theme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: theme });
      for (const [target, ready, run] of VIEWS) {
        await s.go(target);
        await page.locator(ready).first().waitFor();
        if (run) {
          await page.getByRole("button", { name: /^(Run|Subscribe|Stop)$/ }).click();
          await page.locator(".run-head, .field.wrong").first().waitFor();
        }
        await page.evaluate(AXE);
        const rules = theme === "light" ? {} : { runOnly: ["color-contrast"] }; // the rest does not depend on colours
        const { violations } = await page.evaluate((options) => window.axe.run(document, { resultTypes: ["violations"], ...options }), rules);
        for (const each of violations) {
          if (["serious", "critical"].includes(each.impact)) found.push(`${theme} ${target}: ${each.id} ${each.nodes.slice(0, 2).map((node) => node.html.slice(0, 160)).join(" | ")}`);
        }
      }
    }
    equal(found, [], "findings");
  },
};

const VIEWS = [
  ["#/operations", ".operations .row"],
  ["#/operations/shop.order", ".input-form .field", true],
  ["#/operations/shop.search", ".input-form .field", true],
  ["#/operations/shop.ticks", ".input-form .field", true],
  ["#/operations/shop.order/reference", ".reference .schema"],
  ["#/operations/shop.clock/history", ".history, .pad"],
  ["#/streams", ".page.streams"],
  ["#/tape", ".page.tape"],
  ["#/system", ".page.system .card"],
];

const OPTIONS = { login: { token: null }, link: { token: null } };

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });

async function perform(name) {
  const started = Date.now();
  let error = null;
  let figures = null;
  let session = null;
  try {
    session = await Session.open(browser, OPTIONS[name]);
    figures = (await scenarios[name](session)) ?? null;
  } catch (problem) {
    error = String(problem.stack ?? problem).slice(0, 2000);
    if (process.env.SHOTS) await session?.page.screenshot({ path: `${process.env.SHOTS}/${name}.png` }).catch(() => undefined);
  }
  try {
    await session?.close();
  } catch (problem) {
    error ??= String(problem.message);
  }
  console.log(JSON.stringify({ scenario: name, error, ms: Date.now() - started, ...figures }));
}

// Two at a time: while one page waits for the server, the other draws. The longest one begins.
const waiting = only ? [only] : ["accessible", ...Object.keys(scenarios).filter((name) => name !== "accessible")];
async function work() {
  for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) await perform(name);
}
await Promise.all([work(), work()]);
await browser.close();
