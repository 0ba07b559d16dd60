import { check, go, same, scenario, text } from "./page.mjs";

await scenario(async ({ data, login, screen, visit }) => {
  const page = await login();
  await page.goto(`${data.url}/runs/${data.run}`);
  await page.keyboard.press("2");
  await page.waitForURL(/changes/);
  const files = await page.locator(".filelist a.row").allInnerTexts();
  same([...files].sort(), Object.keys(data.plan).sort(), "changed files");
  const notes = { "logo.bin": "not shown as text: 3 → 3 bytes", "run.sh": "mode", "new.txt": "created", "old.txt": "deleted", "link": "edit.py", "crlf.txt": "2", "long.txt": "29000 more lines are not shown" };
  for (const name of files) {
    await page.locator(".filelist a.row", { hasText: name }).click();
    await page.locator(".viewer header b", { hasText: name }).waitFor();
    if (notes[name]) check((await text(page, ".viewer")).includes(notes[name]), `${name}: ${(await text(page, ".viewer")).slice(0, 300)}`);
    if (name !== "long.txt") await screen(page);
  }
  await page.goto(`${data.url}/runs/${data.run}/changes?file=${files.indexOf("edit.py")}`);
  same(await page.locator(".diff mark").allInnerTexts(), ["1", "2"], "marked words");
  await page.keyboard.press("v");
  await page.locator("li.viewed", { hasText: "edit.py" }).waitFor();
  await page.goto(`${data.url}/runs/${data.run}/changes?file=${files.indexOf("long.txt")}`);
  const refreshed = page.waitForResponse((r) => r.url().includes("whole=1") && r.request().resourceType() === "fetch");
  await page.getByRole("link", { name: "Show all lines" }).click();
  await page.locator(".diff tr.add").nth(30_999).waitFor({ state: "attached" });

  // The script fetches each new page once more. To show the same 31,000 rows again takes no time.
  await (await refreshed).finished();
  const rows = page.evaluate(() => fetch(location.href).then((r) => r.text()));
  check(await Promise.race([rows, new Promise((ok) => setTimeout(ok, 30_000))]), "the page of all lines hangs");

  // The preview says what the command says, and Apply does that.
  const plan = async () => {
    const verbs = { "as in the run": "apply", written: "apply", "merged with your changes": "merge", "left alone": "skip" };
    const rows = await page.locator(".result li").evaluateAll((list) => list.map((li) => [...li.children].map((c) => c.innerText)));
    return Object.fromEntries(rows.map(([path, verb]) => [path, verbs[verb] ?? verb]).sort());
  };
  await visit(page, `/runs/${data.run}/changes`);
  await page.keyboard.press("a");
  await page.waitForURL(/apply/);
  await screen(page);
  same(await plan(), data.plan, "the preview");
  check((await text(page)).includes("both.txt left alone:"), "why a file is left alone");
  await page.keyboard.press("a");
  await page.getByRole("heading", { name: "Applied to" }).waitFor();
  await screen(page);
  same(await plan(), data.plan, "what was applied");
  same(await go("difference"), "", "the directory, to what runs apply makes");

  await visit(page, `/runs/${data.run}/apply`);
  const again = await plan();
  same([again["edit.py"], again["both.txt"]], ["already has the changes", "skip"], "a second time");
  check(await page.locator("main button.primary").isDisabled(), "there is something left to apply");
});
