import { check, same, scenario, text } from "./page.mjs";

await scenario(async ({ data, login, screen, visit }) => {
  const page = await login();
  await page.keyboard.press("!");
  await page.waitForURL(/state=failed/);
  check((await text(page)).includes(data.error), "the list does not say why");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/runs\/run_/);
  await screen(page);
  const selected = page.locator("tr[aria-selected]");
  same(await selected.count(), 1, "selected rows");
  check((await selected.innerText()).includes("build"), "the failed row is not selected");
  const pane = await text(page, ".pane");
  for (const part of [data.error.replace("step build: ", ""), "exit code 3", "line 40", "the linker ran out of patience"]) check(pane.includes(part), `the pane does not show ${part}: ${pane}`);
  same(await page.locator(".pane .f1").allInnerTexts(), ["error:"], "red text of the output");

  // The agent before it, from the trace: its answer, its call, and the command in the sandbox.
  await page.keyboard.press("k");
  const rows = page.locator(".rows tbody tr");
  for (const name of ["compiler", "sandbox_exec"]) check((await rows.allInnerTexts()).some((t) => t.includes(name)), `no row of ${name}`);
  await rows.filter({ hasText: "sandbox_exec" }).first().locator("a.row").click();
  await page.locator(".pane h2", { hasText: "sandbox_exec" }).waitFor();
  check(page.url().includes("at="), "the row has no address");
  await screen(page);
  await page.reload();
  same(await page.locator("tr[aria-selected] a.row").innerText().then((t) => t.includes("sandbox_exec")), true, "the address leads to the row");
  await visit(page, page.url().slice(data.url.length) + "&all=1");
  for (const tab of ["changes", "files", "journal"]) await visit(page, `/runs/${data.run}/${tab}`);
  await page.locator("details").last().locator("summary").click();
  check((await text(page)).includes('"run_finished"'), "the journal has no end");
  await screen(page);
});
