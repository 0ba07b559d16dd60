// pictures.mjs LINK FOLDER FIXED FAILED: pictures of the list of runs, of a failed run, and of the changes of another.
import { createRequire } from "node:module";

const { chromium } = createRequire(process.env.PAGE_MODULES + "/")("playwright-core");
const [link, folder, fixed, failed] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: process.env.PAGE_BROWSER, args: ["--no-sandbox", "--no-proxy-server"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce" });
await page.goto(link);
const url = new URL(page.url()).origin;
for (const [name, path, colorScheme] of [["runs", "/runs", "light"], ["run", `/runs/${failed}`, "dark"], ["changes", `/runs/${fixed}/changes`, "light"]]) {
  await page.emulateMedia({ colorScheme });
  await page.goto(url + path);
  await page.screenshot({ path: `${folder}/ui-${name}.png` });
}
await browser.close();
