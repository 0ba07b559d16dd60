import { check, same, scenario, text } from "./page.mjs";

await scenario(async ({ data, login, screen, expect }) => {
  expect(/status of 40[04]/); // a run of that name, and output that was not kept
  const page = await login(), done = new Set();
  // whole checks that the page is ours: text that looks like markup, controls or directions is text.
  const whole = async (at) => {
    same(await page.evaluate(() => [globalThis.pwned, document.querySelectorAll("#hostile, main script, main :is(img, iframe, object, embed, style, base, meta, link), [onload], [onerror], main [style]").length, document.scripts.length]),
      [null, /inline=1/.test(at) ? 1 : 0, 2], `${at}: what came of the text`);
    const odd = (await page.evaluate(() => document.documentElement.outerHTML)).match(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/);
    same(odd && odd[0].codePointAt(0).toString(16), null, `${at}: a character that is not visible`);
    check(!(await page.title()).includes("\u202e"), `${at}: the title`);
  };
  const todo = ["/runs", ...data.runs.map((r) => `/runs/${r}`), "/sandboxes", `/runs?q=${encodeURIComponent(data.text)}`, `/runs/${encodeURIComponent(data.text)}`, ...data.boxes.map((b) => `/sandboxes/${b}/files`)];
  while (todo.length) {
    const path = todo.shift();
    if (done.has(path) || /before=|\/raw\/|\/steps\/|\/patch/.test(path)) continue;
    done.add(path);
    await page.goto(data.url + path);
    await page.evaluate(() => document.querySelectorAll("details.entry").forEach((d) => { d.open = true; }));
    await whole(path);
    if (!done.has(path.replace(/\?.*/, "?"))) await screen(page);
    done.add(path.replace(/\?.*/, "?"));
    for (const href of await page.locator("main a[href]").evaluateAll((list) => list.map((a) => a.href))) {
      if (!href.startsWith(data.url + "/")) throw new Error(`${path} links to ${href}`);
      todo.push(href.slice(data.url.length));
    }
  }
  for (const part of ["/changes?file=", "/files?file=", "?at=", "/apply", "/execs/"]) check([...done].some((p) => p.includes(part)), `no page of ${part} was seen`);

  // All of it can be read, also what a soft link brings.
  await page.goto(`${data.url}/runs/${data.runs[0]}`);
  check((await text(page)).includes("</script><script>pwned=1</script><img id=hostile"), "the error is not shown as it is");
  for (let i = 0; i < 12; i++) {
    await page.keyboard.press("j");
    await page.waitForTimeout(50);
    await whole("a soft link");
  }
  await page.goto(data.url + "/runs");
  check((await text(page)).includes("<script>"), "the list does not show the name");

  // Files are downloads, and never pages of this server.
  for (const path of data.raw) {
    for (const query of ["", "?inline=1"]) {
      const [ok, how, type, policy] = await page.evaluate((url) => fetch(url).then((r) => [r.ok, ...["disposition", "type", "security-policy"].map((h) => r.headers.get("content-" + h))]), path + query);
      check(ok && how.startsWith("attachment") && type === "application/octet-stream" && /sandbox/.test(policy), `${path + query}: ${ok} ${how} ${type} ${policy}`);
    }
  }
});
