import { check, go, same, scenario, text } from "./page.mjs";

await scenario(async ({ data, login, screen, expect }) => {
  expect(/ERR_(CONNECTION_REFUSED|INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE|CONNECTION_RESET)|404 \(Not Found\)/);
  const page = await login(), streams = new Set();
  page.on("request", (r) => r.resourceType() === "eventsource" && streams.add(r));
  for (const end of ["requestfinished", "requestfailed"]) page.on(end, (r) => streams.delete(r));
  const eventually = async (what, ok) => {
    for (let i = 0; i < 1200; i++, await new Promise((done) => setTimeout(done, 100))) if (await ok()) return;
    throw new Error(`not seen: ${what}: ${await text(page)}`);
  };
  const state = (name) => page.locator(`.head .s-${name}`).waitFor();
  check((await text(page)).includes("No runs yet"), "an empty list says what begins one");
  await screen(page);
  await page.evaluate(() => { globalThis.mark = "first"; });

  const run = await go("start"); // its second step waits
  await page.locator(`#run-${run} .s-running`).first().waitFor();
  await eventually("the running step in the list", async () => (await text(page)).includes("collect"));
  await screen(page);
  same(await page.evaluate(() => globalThis.mark), "first", "the list was loaded again");
  await page.locator(`#run-${run} a.row`).click();
  await page.evaluate(() => { globalThis.mark = "run"; });
  await page.locator("tr.k-live[aria-selected]", { hasText: "collect" }).waitFor();
  await screen(page);

  // The server dies and starts, twice: the second time the run goes on meanwhile.
  for (const step of ["kill", "serve", "kill", "let go", "serve"]) {
    await go(step);
    if (step === "kill") await eventually("the lost connection", async () => (await text(page, "#link")) === "not connected");
    if (step === "serve") await eventually("the connection", async () => (await text(page, "#link")) !== "not connected");
  }
  await state("succeeded");
  same(await page.evaluate(() => globalThis.mark), "run", "the page was loaded again");
  same(await page.locator(".rows .k-step").count(), 13, "steps");
  same(await page.locator(".k-live").count(), 0, "rows that run");
  // A finished run has only the stream of the inbox.
  await eventually("the end of the stream", () => [...streams].every((r) => r.url().endsWith("?inbox=1")));

  // Each entry is there once.
  await page.keyboard.press("4");
  await page.locator("details.entry").first().waitFor();
  const entries = await page.locator("details.entry summary .mono:first-child").allInnerTexts();
  same(entries, entries.map((_, i) => String(i + 1)), "entries");
  same(entries.length, await go("entries"), "number of entries");

  // A hidden page holds no connection.
  await page.keyboard.press("u");
  await page.waitForURL(/\/runs$/);
  await eventually("the stream of the list", () => [...streams].some((r) => !r.url().includes("inbox")));
  const hide = (hidden) => page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
  await hide(true);
  await eventually("no stream", () => streams.size === 0);
  const second = await go("start");
  await go("let go");
  await hide(false);
  await page.locator(`#run-${second} .s-succeeded`).first().waitFor();

  // The sandbox of a run, and the output of its command, while it runs.
  const third = await go("start");
  await page.goto(`${data.url}/sandboxes`);
  await page.locator("tbody tr", { hasText: third.slice(0, 10) }).waitFor();
  await screen(page);
  await page.goto(`${data.url}/runs/${third}`);
  await page.locator("tr.k-live[aria-selected]", { hasText: "collect" }).waitFor();
  await page.keyboard.press("s");
  await page.waitForURL(/sandboxes\/sbx_/);
  await page.locator("tbody .s-running").first().waitFor();
  await screen(page);
  await page.locator("tr:has(.s-running) a.row").click();
  await page.locator("wc-output", { hasText: "line 3" }).waitFor();
  await screen(page);

  // After the end, the output stays on the page, even if the sandbox of the run is gone.
  const again = page.waitForResponse((r) => r.url() === page.url() && r.request().resourceType() === "fetch");
  await go("let go");
  await again;
  check((await text(page, "wc-output")).includes("line 3"), "the output is gone");
});
