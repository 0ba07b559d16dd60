import { go, scenario } from "./page.mjs";

const p95 = (list) => list.sort((a, b) => a - b)[Math.ceil(list.length * 0.95) - 1];
const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];

await scenario(async ({ data, login, fresh }) => {
  const page = await login(), cookies = await page.context().cookies();
  const loads = async (path, name) => {
    const paints = [], servers = [];
    for (let i = 0; i < 20; i++) { // each with an empty cache
      const one = await fresh();
      await one.context().addCookies(cookies);
      await one.goto(data.url + path);
      await one.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length);
      const [paint, server] = await one.evaluate(() => {
        const n = performance.getEntriesByType("navigation")[0];
        return [performance.getEntriesByName("first-contentful-paint")[0].startTime, n.responseEnd - n.requestStart];
      });
      paints.push(paint);
      servers.push(server);
      await one.context().close();
    }
    await go(`figure ms-paint-${name}-p95`, p95(paints));
    await go(`figure ms-server-${name}-p95`, p95(servers));
  };
  await loads("/runs", "runs");
  await loads(`/runs/${data.long}`, "run");

  // From the return of Append to the frame that shows the entry.
  await page.goto(`${data.url}/runs/${data.live}`);
  const pixels = [];
  for (let i = 1; i <= 200; i++) {
    const seen = page.evaluate((name) => new Promise((done) => {
      const look = () => {
        if (!document.getElementById(name)) return;
        watch.disconnect();
        requestAnimationFrame(() => done(performance.timeOrigin + performance.now()));
      };
      const watch = new MutationObserver(look);
      watch.observe(document.documentElement, { childList: true, subtree: true, attributes: true });
      look();
    }), `row-step-${i}@1.1`);
    const at = await go("append");
    pixels.push(await seen - at);
    await new Promise((done) => setTimeout(done, 150));
  }
  await go("figure ms-entry-to-pixel-p95", p95(pixels));

  // A page that shows a run in which nothing happens.
  const cdp = await page.context().newCDPSession(page);
  await cdp.send("Performance.enable");
  const busy = async () => (await cdp.send("Performance.getMetrics")).metrics.find((m) => m.name === "TaskDuration").value;
  const before = [await busy(), await go("cpu")];
  await new Promise((done) => setTimeout(done, 20_000));
  await go("figure percent-cpu-idle-page", (await busy() - before[0]) * 5);
  await go("figure percent-cpu-idle-server", (await go("cpu") - before[1]) * 5);

  // The same entries with a page that watches them and without.
  const watching = [], alone = [];
  for (let i = 0; i < 5; i++) {
    await page.goto(`${data.url}/runs/${await go("begin")}`);
    watching.push(await go("rate"));
    await page.goto("about:blank");
    await go("begin");
    alone.push(await go("rate"));
  }
  await go("figure entries/s-watched", median(watching));
  await go("figure entries/s-alone", median(alone));
});
