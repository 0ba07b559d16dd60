import { check, go, same, scenario, text } from "./page.mjs";

await scenario(async ({ data, fresh, screen, visit, expect }) => {
  expect(/401/);
  const link = await go("link");
  const page = await fresh();
  await page.goto(data.url + "/runs");
  check((await text(page)).startsWith("Log in"), "a stranger sees more than the login");
  await screen(page);
  await page.goto(link);
  same(page.url(), data.url + "/runs", "after the login");
  await screen(page);
  same(await page.locator("tbody tr").count(), 50, "rows");
  check((await text(page)).includes("10,000 or more"), "the number of runs is not shown");

  const other = await fresh();
  await other.goto(link);
  check((await text(other)).includes("not valid"), "a link works twice");
  await other.goto(await go("link"));
  same(other.url(), data.url + "/runs", "a second link of the same server");

  // Keys, pages, search, and the theme.
  await page.keyboard.press("n");
  await page.waitForURL(/before=/);
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/runs\/run_/);
  await visit(page, "/runs?q=nothing+like+this");
  check((await text(page)).includes("No run matches"), "an empty search");
  await visit(page, "/runs?state=failed");
  same(await page.locator("tbody .s-failed").count(), await page.locator("tbody tr").count(), "failed runs");
  for (const theme of ["light", "dark", "auto"]) {
    await page.keyboard.press("T");
    await page.getByRole("button", { name: theme }).waitFor();
  }
  await page.keyboard.press("?");
  await page.locator("#keys[open]").waitFor();
  await screen(page);

  // Reading needs no script: every link of every page is followed once.
  const plain = await fresh({ javaScriptEnabled: false });
  await plain.context().addCookies((await page.context().cookies()));
  const todo = ["/runs?workflow=debug-and-fix", "/sandboxes"], done = new Set();
  while (todo.length) {
    const path = todo.shift(), kind = path.replace(/(at|file|from)=[^&]*/, "$1");
    if (done.has(kind) || /\/(patch|raw|steps)\b|before=|^\/runs$/.test(path)) continue;
    done.add(kind);
    const answer = await plain.goto(data.url + path);
    check(answer.ok(), `${path}: ${answer.status()}`);
    for (const href of await plain.locator("main a[href]").evaluateAll((list) => list.map((a) => a.href))) todo.push(href.slice(data.url.length));
  }
  check(done.size >= 8, `pages without a script: ${[...done]}`);
});
