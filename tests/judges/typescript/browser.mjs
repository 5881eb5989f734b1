// Calls and serves over a hub from a page: node browser.mjs <folder of the package> <origin> <url> <two tokens>
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { chromium } from "playwright-core";

const [, , folder, origin, url, ...tokens] = process.argv;
const server = createServer(async ({ url: path }, response) => {
  const body = path === "/" ? "<!doctype html><title>peer</title>" : await readFile(folder + path, "utf-8").catch(() => "");
  response.setHeader("content-type", path === "/" ? "text/html" : "text/javascript").end(body);
});
await new Promise((resolve) => server.listen(Number(new URL(origin).port), "127.0.0.1", resolve));
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox"] });
try {
  const page = await browser.newPage();
  await page.goto(`${origin}/`);
  const results = await page.evaluate(
    async ([url, spokeToken, callerToken]) => {
      const { connect, unwrap } = await import("/index.js");
      const server = await connect(url, { token: spokeToken });
      await server.serve({ id: "ts.title", type: "query", handler: () => document.title });
      const caller = await connect(url, { token: callerToken });
      const results = { add: (await caller.call("math.add", { a: 1, b: 2 })).data };
      results.bytes = [...unwrap(await caller.call("work.bytes"))];
      results.unknown = await caller.call("math.ad").catch((error) => error.code);
      results.title = (await caller.call("ts.title")).data;
      results.items = [];
      for await (const item of caller.subscribe("work.count", { to: 1_000_000 }, { credits: 4 })) {
        if (results.items.push(item.data) === 3) break;
      }
      results.servers = (await caller.servers()).length;
      server.close();
      caller.close();
      return results;
    },
    [url, ...tokens],
  );
  console.log(JSON.stringify(results));
} finally {
  await browser.close();
  server.close();
}
