// The script keeps a page up to date and adds keys. Everything that it shows is rendered by the server.

const trusted = globalThis.trustedTypes?.createPolicy("workcell", { createHTML: (html) => html }) ?? { createHTML: (html) => html };
const main = () => document.getElementById("main");
document.documentElement.classList.add("scripts");

// Pages: refresh fetches the current page, and replaces the parts that have changed.
let tag = null, busy = false, again = false, wait = 0;

async function refresh() {
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  try {
    const url = location.href;
    const answer = await fetch(url, { headers: tag ? { "If-None-Match": tag } : {}, redirect: "error" });
    if (answer.status === 401) location.reload();
    if (answer.ok && url === location.href) {
      tag = answer.headers.get("ETag");
      show(new DOMParser().parseFromString(trusted.createHTML(await answer.text()), "text/html"));
    }
    wait = 100; // at most ten times a second
  } catch {
    wait = 2000;
  }
  setTimeout(() => {
    busy = false;
    if (again) {
      again = false;
      refresh();
    }
  }, wait);
}

// If the questions change, their buttons work only after a moment, because a click may be meant for another question.
let asked = null, timer = 0;

function settle() {
  const now = [...document.querySelectorAll(".question")].map((q) => q.id).join();
  if (asked === now) return;
  asked = now;
  const rest = (off) => document.querySelectorAll(".question button").forEach((b) => { b.disabled = off; });
  rest(true);
  clearTimeout(timer);
  timer = setTimeout(rest, 500, false);
}

function show(next) {
  document.title = next.title;
  const waiting = next.getElementById("waiting");
  if (waiting) document.getElementById("waiting").textContent = waiting.textContent;
  Idiomorph.morph(main(), next.getElementById("main"), {
    morphStyle: "outerHTML", ignoreActiveValue: true,
    callbacks: {
      beforeAttributeUpdated: (name, node) => !(name === "open" && node.localName === "details") && !(name === "disabled" && node.closest(".question")),
      beforeNodeMorphed: (node, next) => {
        if (!node.matches?.("table.diff")) return node.localName !== "wc-output" && node.name !== "note";
        if (!node.isEqualNode(next)) node.replaceChildren(...next.childNodes); // for 30,000 lines, a morph takes minutes
        return false;
      },
    },
  });
  settle();
  mark();
  listen();
}

// Streams: the server rings when the page has changed. A hidden page has no stream.
let stream = null, source = "";

function listen() {
  const url = document.hidden ? "" : main().dataset.events ?? "";
  if (url === source && stream) return;
  stream?.close();
  stream = null;
  source = url;
  if (!url) return say("");
  stream = new EventSource(url);
  stream.onopen = () => say("live"); // the server rings at first
  stream.onerror = (e) => {
    say("not connected");
    if (e.target.readyState !== EventSource.CLOSED || e.target !== stream) return; // it connects again
    stream = null;
    setTimeout(() => { refresh(); listen(); }, 3000);
  };
  stream.addEventListener("change", refresh);
}

function say(text) { document.getElementById("link").textContent = text; }

document.addEventListener("visibilitychange", listen);
setInterval(() => { if (document.hidden && main().dataset.events) refresh(); }, 20000); // for the number in the title

// Links with the class soft change the current page without loading it.
document.addEventListener("click", (e) => {
  const copy = e.target.closest("[data-copy]");
  if (copy) {
    navigator.clipboard.writeText(copy.dataset.copy).then(() => { copy.textContent = "copied"; });
    return;
  }
  const link = e.target.closest("a.soft");
  if (!link || e.button || e.ctrlKey || e.metaKey || e.shiftKey) return;
  e.preventDefault();
  history.pushState(null, "", link.href);
  refresh();
});
addEventListener("popstate", refresh);

// Durations of running things grow, and the time that is left decreases.
setInterval(() => {
  for (const node of document.querySelectorAll("[data-since], [data-until]")) {
    const { since, until } = node.dataset;
    const s = Math.max(0, Math.floor((since ? Date.now() - since : until - Date.now()) / 1000));
    const two = (n) => String(n).padStart(2, "0");
    node.textContent = s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  }
}, 1000);

// Keys: every control with data-key has a key. j and k move between rows.
let prefix = "";

function move(by) {
  const rows = [...document.querySelectorAll("a.row")];
  let at = rows.indexOf(document.activeElement);
  if (at < 0) at = rows.findIndex((a) => a.closest("[aria-selected], [aria-current]"));
  const next = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
  if (next?.classList.contains("soft")) next.click();
}

addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.target.closest("input, select, textarea")) {
    if (e.key === "Escape") e.target.blur();
    return;
  }
  const grid = e.target.closest("[role=treegrid]");
  if (e.key === "j" || grid && e.key === "ArrowDown") return e.preventDefault(), move(1);
  if (e.key === "k" || grid && e.key === "ArrowUp") return e.preventDefault(), move(-1);
  if (document.querySelector("dialog[open]")) return;
  const key = prefix + e.key;
  prefix = e.key === "g" && !prefix ? "g " : "";
  if (e.key === "v") viewed();
  const name = `[data-key="${CSS.escape(key)}"]`;
  const here = e.target.closest(".question");
  const control = here?.querySelector(name) ?? document.querySelector(name);
  if (!control) return;
  e.preventDefault();
  const question = control.closest(".question");
  if (question !== here && question) return question.querySelector("a.row").focus(); // the next press answers it
  if (question && e.repeat) return;
  if (control.matches("input")) control.focus();
  else control.click();
});

document.getElementById("showkeys").addEventListener("click", () => {
  const list = document.querySelector("#keys dl");
  const keys = [["j k", "next or previous row"], ["Enter", "open the row"]];
  if (document.querySelector(".diffs")) keys.push(["v", "mark the file as viewed"]);
  for (const c of document.querySelectorAll("[data-key]")) if (!keys.some(([key]) => key === c.dataset.key)) keys.push([c.dataset.key, c.getAttribute("aria-label") || c.textContent.trim()]);
  list.replaceChildren(...keys.flatMap(([key, text]) => [["dt", key], ["dd", text]]).map(([name, text]) => {
    const node = document.createElement(name);
    node.textContent = text;
    return node;
  }));
  document.getElementById("keys").showModal();
});

// Files that the user has viewed, by the address of their changes.
const viewedKey = (a) => "viewed " + location.pathname + " " + a.textContent;

function viewed() {
  const a = document.querySelector(".diffs [aria-current] a.row");
  if (!a) return;
  if (!localStorage.getItem(viewedKey(a))) localStorage.setItem(viewedKey(a), "1");
  else localStorage.removeItem(viewedKey(a));
  mark();
}

function mark() {
  for (const a of document.querySelectorAll(".diffs a.row")) a.parentElement.classList.toggle("viewed", !!localStorage.getItem(viewedKey(a)));
}

// Output of a running command. The page shows the newest lines; the page of the whole output is a download.
const maxLines = 5000;

customElements.define("wc-output", class extends HTMLElement {
  connectedCallback() {
    this.pre = this.querySelector("pre");
    this.last = [];
    this.seen = () => (document.hidden ? this.stop() : this.start());
    document.addEventListener("visibilitychange", this.seen);
    this.pre.scrollTop = this.pre.scrollHeight;
    this.seen();
  }

  disconnectedCallback() {
    document.removeEventListener("visibilitychange", this.seen);
    this.stop();
  }

  start() {
    if (!this.dataset.events || this.stream || this.done) return;
    this.stream = new EventSource(this.dataset.events);
    this.stream.onopen = () => this.pre.replaceChildren(); // the stream begins with the kept output
    this.stream.addEventListener("lines", (e) => this.add(JSON.parse(e.data)));
    this.stream.addEventListener("end", () => {
      this.done = true;
      this.stop();
      this.pre.append(this.line({ s: "note", l: [{ t: "[the command has ended]" }] }));
      refresh(); // if the sandbox is gone, the output stays
    });
  }

  stop() { this.stream = this.stream?.close(); }

  add({ lines, last, lost }) {
    const follow = this.pre.scrollTop + this.pre.clientHeight > this.pre.scrollHeight - 40;
    for (const node of this.last) node.remove();
    if (lost && this.pre.childElementCount) this.pre.append(this.line({ s: "note", l: [{ t: `[${lost} parts were written faster than they were read]` }] }));
    for (const l of lines ?? []) this.pre.append(this.line(l));
    this.last = (last ?? []).map((l) => this.line(l));
    this.pre.append(...this.last);
    while (this.pre.childElementCount > maxLines) this.pre.firstElementChild.remove();
    if (follow) this.pre.scrollTop = this.pre.scrollHeight;
  }

  line({ s, l }) {
    const div = document.createElement("div");
    div.className = s;
    for (const { c, t } of l ?? []) {
      const span = document.createElement("span");
      if (c) span.className = c;
      span.textContent = t;
      div.append(span);
    }
    if (!l) div.append("\n");
    return div;
  }
});

settle();
mark();
listen();
