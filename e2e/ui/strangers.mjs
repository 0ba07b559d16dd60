import { check, go, same, scenario } from "./page.mjs";

// Pages of other origins try to read and to act with the cookie of somebody who has logged in.
await scenario(async ({ data, login, expect, visit }) => {
  expect(/40[0-9]|421|ERR_|CORS|Content Security|frame|WebSocket|opener|Trusted/i);
  const page = await login();
  const acts = [`/runs/${data.run}/cancel`, `/runs/${data.done}/apply`];
  const reads = ["/runs", `/runs/${data.run}`, `/runs/${data.done}/patch`, `/events?run=${data.run}`];
  const answers = [];
  page.context().on("response", async (r) => {
    const from = await r.request().headerValue("sec-fetch-site").catch(() => "none"); // after the last step
    if (new URL(r.url()).port === new URL(data.url).port && !["same-origin", "none"].includes(from)) answers.push([r.request().method(), r.url(), r.status()]);
  });
  for (const origin of data.strangers) { // another port of the same host, and another host
    const stranger = await page.context().newPage();
    await stranger.goto(origin);
    const read = await stranger.evaluate(async ({ url, acts, reads }) => {
      const seen = [];
      for (const path of [...reads, ...acts]) {
        for (const credentials of ["include", "omit"]) {
          const method = acts.includes(path) ? "POST" : "GET";
          await fetch(url + path, { method, credentials }).then((r) => seen.push(`${path}: ${r.status}`), () => {});
          await fetch(url + path, { method, credentials, mode: "no-cors" }).catch(() => {});
        }
      }
      const events = new EventSource(url + reads[3], { withCredentials: true });
      await new Promise((done) => { events.onopen = () => seen.push("events"), done(); events.onerror = done; });
      events.close();
      const socket = new WebSocket(url.replace("http", "ws") + "/events");
      await new Promise((done) => { socket.onopen = () => seen.push("socket"), done(); socket.onerror = done; });
      const script = document.createElement("script");
      script.src = url + reads[2];
      await new Promise((done) => { script.onload = () => seen.push("script"), done(); script.onerror = done; document.head.append(script); });
      for (const sandbox of [null, "allow-forms allow-scripts"]) { // with the latter its origin is null
        const frame = document.createElement("iframe");
        if (sandbox) frame.sandbox = sandbox;
        frame.srcdoc = acts.map((p, i) => `<form id=f${i} method=post action="${url + p}" target=t${i}></form><iframe name=t${i}></iframe>`).join("") +
          `<script>for (const f of document.forms) f.submit()</scr` + `ipt>`;
        document.body.append(frame);
      }
      const inside = document.createElement("iframe");
      inside.src = url + "/runs";
      await new Promise((done) => { inside.onload = done; document.body.append(inside); });
      try { if (inside.contentDocument.body.innerText) seen.push("frame"); } catch { /* another origin */ }
      return seen;
    }, { url: data.url, acts, reads });
    same(read, [], `${origin} reads`);
    const [popup] = await Promise.all([page.context().waitForEvent("page"), stranger.evaluate((url) => { globalThis.other = open(url); }, data.url + "/runs")]);
    await popup.waitForLoadState();
    same(await stranger.evaluate(() => globalThis.other.closed), true, `${origin} keeps a hold of the window that it opened`);
    await popup.close();
    const [form] = await Promise.all([page.context().waitForEvent("page"), stranger.evaluate((action) => {
      const f = document.createElement("form");
      Object.assign(f, { action, method: "post", target: "_blank" });
      document.body.append(f);
      f.submit();
    }, data.url + acts[0])]);
    await form.waitForLoadState();
    await stranger.close();
    await form.close();
  }
  check(answers.some(([method]) => method === "POST"), "no form of a stranger has come to the server");
  for (const [method, url, status] of answers) {
    // A link from elsewhere opens a page without a cookie of ours or with it; what strangers may not do is act, or read it.
    check([401, 403, 421].includes(status) || method === "GET" && new URL(url).pathname !== "/events", `${method} ${url} of a stranger: ${status}`);
  }
  const rebound = await page.context().newPage();
  same((await rebound.goto(data.rebound)).status(), 421, "a foreign host name");
  same(await go("state"), ["running", "as it was"], "after the strangers");

  // A cookie of yesterday, and none.
  const cookies = await page.context().cookies();
  for (const value of [null, cookies[0].value.replace(/\.\d+\./, ".1."), "x"]) {
    await page.context().clearCookies();
    if (value) await page.context().addCookies([{ ...cookies[0], value }]);
    for (const path of ["/", "/runs", "/nothing", "/sandboxes", ...reads]) {
      const status = await page.evaluate((u) => fetch(u).then((r) => r.status), data.url + path);
      same(status, 401, `${path} with the cookie ${value}`);
    }
  }

  // A server that only reads has no button, and no route behind it.
  await go("read only");
  await page.goto(await go("link"));
  await visit(page, `/runs/${data.run}`);
  same(await page.locator("main form, main button.primary").count(), 0, "buttons of a read-only page");
  for (const path of acts) same(await page.evaluate((u) => fetch(u, { method: "POST" }).then((r) => r.status), path), 404, `POST ${path}`);
  await visit(page, `/runs/${data.done}/changes`);
  same(await go("state"), ["running", "as it was"], "after the reader");
});
