import { check, go, same, scenario, text } from "./page.mjs";

await scenario(async ({ data, login, screen, expect }) => {
  expect(/ 409 /); // the answers that do not count
  expect(/ERR_FAILED/); // the streams that the test blocks
  const page = await login();
  await page.goto(`${data.url}/inbox`);
  check((await text(page)).includes("No call waits for approval."), "an empty inbox says so");
  await screen(page);
  const run = await go("start");

  // Keys answer the question that they have selected, without a reload.
  const question = page.locator("article.question");
  await question.waitFor();
  same(await page.title(), "(1) Inbox · workcell", "the title");
  same(await text(page, "#waiting"), "1", "the number in the menu");
  check((await text(page, ".question pre")).includes("</pre><b id=hostile>"), `the arguments are no text: ${await text(page, ".question pre")}`);
  same(await page.locator("#hostile").count(), 0, "elements made of arguments");
  await screen(page);
  await page.keyboard.press("y");
  if (await page.locator("[role=status]", { hasText: "orders.refund: allowed by" }).count() === 0) await page.keyboard.press("y");
  await page.locator("[role=status]", { hasText: "orders.refund: allowed by" }).waitFor();

  // The page of the run has the question, too. A note goes to the code.
  await page.goto(`${data.url}/runs/${run}`);
  await page.locator("article.question", { hasText: '"two"' }).waitFor();
  await screen(page);
  await page.getByLabel("Deny, with a note").fill("not this one");
  await page.keyboard.press("Enter");
  await page.locator("[role=status]", { hasText: "orders.refund: denied by" }).waitFor();
  same(new URL(page.url()).pathname, `/runs/${run}`, "the page after an answer");

  // Two pages and a terminal at once: one answer counts, and the others say so.
  const pages = [page, await login()];
  for (const p of pages) {
    await p.route("**/events*", (r) => r.abort()); // another answer must not remove the button before the click
    await p.goto(`${data.url}/inbox`);
    await p.locator("article.question", { hasText: '"three"' }).waitFor();
  }
  const before = await Promise.all(pages.map((p) => p.locator("article.question").getAttribute("id")));
  same(before[0], before[1], "the question of both pages");
  same(await go("waiting"), 1, "the questions of the terminal");
  const clicks = pages.map(async (p) => {
    const answer = p.waitForResponse((r) => r.request().method() === "POST");
    await p.locator(`#${before[0]}`).getByRole("button", { name: "Allow once" }).click();
    return (await answer).status();
  });
  const codes = [await go("allow"), ...(await Promise.all(clicks))];
  await page.unroute("**/events*");
  same(codes.filter((c) => c === 0 || c === 303).length, 1, `answers that count, of ${codes}`);

  // A call with too many arguments to read is refused; the rest of the run needs no answer for this tool.
  await page.goto(`${data.url}/inbox`);
  await page.locator("article.question", { hasText: '"four"' }).waitFor();
  await page.getByRole("button", { name: "Allow this tool in this run" }).click();
  await page.locator("[role=status]", { hasText: "allowed for the rest of the run by" }).waitFor();
  const result = await go("result");
  for (const line of ["keys: yes", "note: no", "once: yes", "long: no", "tool: yes", "same: yes"]) check(result.includes(line), `${line} is missing: ${result}`);
  await page.getByRole("heading", { name: "No longer open" }).waitFor();
  await screen(page);

  // Nothing waits for a killed run.
  await go("start");
  await question.waitFor();
  await go("kill");
  await page.locator("article.question").waitFor({ state: "detached" });
  same(await text(page, "#waiting"), "", "the number in the menu");
});
