// What all scenarios need: a browser that tells what went wrong, and questions to the Go test that started it. The test
// answers a question, one line of JSON, with another line.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(process.env.PAGE_MODULES + "/");
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

// go asks the test.
export async function go(name, figure) {
  process.stdout.write(JSON.stringify({ name, figure }) + "\n");
  const { value } = await lines.next();
  return JSON.parse(value);
}

const problems = [];
export const fail = (text) => problems.push(text);
export const check = (ok, text) => ok || fail(text);
export function same(got, want, what) {
  if (JSON.stringify(got) !== JSON.stringify(want)) fail(`${what}: ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
}

// scenario runs a function with a browser and the data of the test, and ends the process.
export async function scenario(fn) {
  const data = await go("data");
  const browser = await chromium.launch({ executablePath: process.env.PAGE_BROWSER, args: ["--no-sandbox", "--no-proxy-server"] });
  try {
    await fn({ data, browser, ...tools(browser, data) });
  } catch (err) {
    fail(err.stack);
  }
  await browser.close();
  for (const text of problems) console.error(text);
  process.exit(problems.length ? 1 : 0);
}

function tools(browser, data) {
  const expected = []; // console errors that the scenario makes on purpose

  // fresh returns a page of a browser that has not logged in.
  async function fresh(options = {}) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce", ...options });
    context.setDefaultTimeout(120_000);
    await context.addInitScript(() => addEventListener("securitypolicyviolation", (e) => console.error("CSP", e.violatedDirective, e.blockedURI)));
    context.on("console", (m) => m.type() === "error" && !expected.some((e) => e.test(m.text())) && fail(`console: ${m.text()} (${m.location().url})`));
    context.on("weberror", (e) => fail(`script: ${e.error().stack}`));
    context.on("dialog", (d) => fail(`dialog: ${d.message()}`));
    context.on("request", (r) => /^(http|ws)/.test(r.url()) && ![data.url, ...(data.others ?? [])].includes(new URL(r.url()).origin) && fail(`request to ${r.url()}`));
    context.on("response", (r) => r.status() >= 500 && fail(`${r.url()}: ${r.status()}`));
    return context.newPage();
  }

  // login returns a page of a browser that has logged in with a new link.
  async function login(options) {
    const page = await fresh(options);
    await page.goto(await go("link"));
    return page;
  }

  // screen checks the accessibility of the page in both themes.
  async function screen(page) {
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => globalThis.axe.run());
      for (const v of violations) {
        fail(`${page.url()} ${colorScheme}: ${v.id}: ${v.nodes.slice(0, 3).map((n) => `${n.target} ${n.failureSummary.replace(/\s+/g, " ")} ${n.html.slice(0, 200)}`).join(" | ")}`);
      }
    }
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    check(wide <= 0, `${page.url()}: ${wide} pixels wider than the window`);
  }

  const visit = async (page, path) => {
    await page.goto(data.url + path);
    await screen(page);
  };
  return { expect: (pattern) => expected.push(pattern), fresh, login, screen, visit };
}

// text returns what a reader sees of an element.
export const text = async (page, at = "#main") => (await page.locator(at).first().innerText()).replace(/\s+/g, " ");
