"use strict";
// Calls tools of the host from code inside a Workcell sandbox.
//
//   const {tools, ToolDenied} = require("workcell");
//   const order = await tools.orders.lookup({id: "42"});                 // the tool's data, or its text
//   const rows = await tools.db.query({sql: "..."}, {save: "rows.json"}); // Saved: stays in a file below /workspace
//   await tools.call("orders.refund", {id: "42"}, {timeout: 10});
//
// A failure of a tool rejects with a ToolError or a subclass. The command `tools` lists the tools.
const {spawn} = require("child_process");
const fs = require("fs");
const net = require("net");
const path = require("path");

const PATIENCE = 30000; // maximum wait of a call for an unavailable host, in milliseconds
const META = {
  "io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": {name: "workcell-node", version: "1"},
  "io.modelcontextprotocol/clientCapabilities": {},
};

// ToolError means that a tool failed. code is the class of the failure, and remediation is a suggestion. If retryable
// is set, the same call may succeed later. If outcomeUnknown is set, the connection broke, and the tool may or may not
// have run.
class ToolError extends Error {
  constructor(code, message, {remediation = "", retryable = false, outcomeUnknown = false} = {}) {
    super(message);
    Object.assign(this, {name: new.target.name, code, remediation, retryable, outcomeUnknown});
  }
}
class ToolDenied extends ToolError {}
class ToolTimeout extends ToolError {}
class ToolUnavailable extends ToolError {}

const KINDS = {permission_denied: ToolDenied, timeout: ToolTimeout, unavailable: ToolUnavailable};
const failure = (code, message, more) =>
  new (KINDS[code] || ToolError)(code, message, {remediation: more.remediation, retryable: Boolean(more.retryable)});

// Saved is a result in a file. kind is the type of the JSON value, "text", or a media type.
class Saved {
  constructor({path, bytes, kind, length, keys = [], head = ""}) {
    Object.assign(this, {path, bytes, kind, length, keys, head});
  }
  async load() {
    const data = await fs.promises.readFile(this.path);
    return this.kind.includes("/") ? data : this.kind === "text" ? data.toString() : JSON.parse(data);
  }
}

// open returns a stream to the host. Before libuv 1.48, Node.js cannot connect to an abstract name, so the guest agent
// in /.workcell serves as a bridge.
function open(address) {
  const [major, minor] = process.versions.uv.split(".").map(Number);
  if (major > 1 || minor >= 48) {
    const socket = net.connect("\0" + address.slice(1));
    return {input: socket, output: socket, end: () => socket.destroy(), hold: on => on ? socket.ref() : socket.unref(),
      closed: f => socket.on("end", f).on("error", f), settle: () => turn().then(turn)};
  }
  const bridge = spawn(path.join(__dirname, "../../../workcell-guest"), ["mcp"], {stdio: ["pipe", "pipe", "ignore"]});
  const parts = [bridge, bridge.stdin, bridge.stdout];
  return {input: bridge.stdin, output: bridge.stdout, end: () => bridge.kill(), hold: on => parts.forEach(p => on ? p.ref() : p.unref()),
    closed: f => { parts.forEach(p => p.on("error", f)); bridge.stdout.on("end", f); }, settle: link => link.request("ping", {}, Infinity)};
}

const turn = () => new Promise(setImmediate); // waits for a turn of the event loop, which detects a closed socket

// Link is a connection to the host for any number of concurrent requests. Pending requests keep the process alive.
class Link {
  constructor(address) {
    this.waiting = new Map();
    this.last = 0;
    this.parts = [];
    this.stream = open(address);
    this.stream.output.on("data", chunk => this.read(chunk));
    this.stream.closed(() => this.close());
  }

  read(chunk) {
    for (let at; (at = chunk.indexOf(10)) >= 0; chunk = chunk.subarray(at + 1)) {
      const line = Buffer.concat([...this.parts, chunk.subarray(0, at)]);
      this.parts = [];
      const answer = JSON.parse(line);
      if (this.waiting.has(answer.id) && !answer.method) this.waiting.get(answer.id).resolve(answer);
    }
    if (chunk.length) this.parts.push(chunk);
  }

  close() {
    this.closed = true;
    this.stream.end();
    for (const w of this.waiting.values()) w.reject(new Error("the connection ended"));
  }

  async request(method, params, end) {
    const id = ++this.last;
    this.stream.hold(true);
    try {
      return await within(end, new Promise((resolve, reject) => {
        this.waiting.set(id, {resolve, reject});
        if (this.closed) reject(new Error("the connection ended"));
        this.send({jsonrpc: "2.0", id, method, params});
      }));
    } catch (e) {
      if (e instanceof Late) this.send({jsonrpc: "2.0", method: "notifications/cancelled", params: {requestId: id}});
      throw e;
    } finally {
      this.waiting.delete(id);
      if (!this.waiting.size && !this.closed) this.stream.hold(false);
    }
  }

  send(message) {
    if (!this.closed) this.stream.input.write(JSON.stringify(message) + "\n");
  }
}

class Late extends Error {}

function within(end, promise) {
  if (end === Infinity) return promise;
  let timer;
  const late = new Promise((_, reject) => { timer = setTimeout(() => reject(new Late()), Math.min(Math.max(end - Date.now(), 0), 2 ** 31 - 1)); });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

let current; // promise of the shared Link
let offered; // promise of the tools by name, with _ instead of -

async function dial() {
  const address = process.env.WORKCELL_TOOLS || "";
  if (!address.startsWith("@")) {
    throw new ToolUnavailable("unavailable", "this command has no host tools", {remediation: "Continue without them, and mention it in the answer."});
  }
  const until = Date.now() + PATIENCE;
  for (let pause = 20; ; pause = Math.min(2 * pause, 1000)) {
    const link = new Link(address);
    try {
      await link.request("ping", {}, until); // the sandbox also accepts connections while the host is unavailable
      return link;
    } catch (e) {
      link.close();
      if (Date.now() + pause >= until) {
        throw new ToolUnavailable("unavailable", `cannot reach the host: ${e.message}`, {remediation: "Try again later.", retryable: true});
      }
    }
    await new Promise(resolve => setTimeout(resolve, pause));
  }
}

async function connected(end) {
  for (;;) {
    const mine = current = current || dial();
    const forget = () => { if (current === mine) current = undefined; };
    mine.catch(forget);
    const link = await within(end, mine);
    if (!link.waiting.size) await within(end, link.stream.settle(link)).catch(e => { if (e instanceof Late) throw e; });
    if (!link.closed) return link;
    forget();
  }
}

async function request(method, params, end) {
  const trace = process.env.TRACEPARENT;
  params._meta = {...META, ...params._meta, ...(trace && {traceparent: trace})};
  const link = await connected(end);
  let answer;
  try {
    answer = await link.request(method, params, end);
  } catch (e) {
    if (e instanceof Late || e instanceof TypeError) throw e;
    throw new ToolUnavailable("unavailable", "lost the connection to the host during the call",
      {remediation: "Find out whether the call took effect before repeating it.", outcomeUnknown: true});
  }
  if (!answer.error) return answer.result;
  const {code, message, data} = answer.error, more = data || {};
  throw failure(more.code || {"-32601": "not_found", "-32602": "invalid_argument"}[code] || "internal", message, more);
}

const plain = name => name.replace(/-/g, "_");

function list(end) {
  const mine = offered = offered || request("tools/list", {}, Infinity).then(r => {
    const all = new Map();
    for (const t of r.tools) all.set(plain(t.name), all.has(plain(t.name)) ? {} : t); // no hints for equal names
    return all;
  });
  mine.catch(() => { if (offered === mine) offered = undefined; });
  return within(end, mine);
}

async function attempt(name, args, save, end) {
  const params = () => ({name, arguments: args, _meta: save === undefined ? {} : {"workcell/save": String(save)}});
  try {
    return await request("tools/call", params(), end);
  } catch (e) {
    if (!e.outcomeUnknown) throw e;
    const offers = await list(end).catch(() => new Map()); // the outcome of the call stays unknown
    const hints = (offers.get(plain(name)) || {}).annotations || {};
    if (!hints.readOnlyHint && !hints.idempotentHint) throw e;
  }
  return request("tools/call", params(), end);
}

// call calls a tool by name, server.tool. save is the path for the result, timeout is in seconds, and files is a list to
// which the result's files are added, each as a Saved.
async function call(name, args = {}, {save, timeout, files} = {}) {
  const end = timeout === undefined ? Infinity : Date.now() + 1000 * timeout;
  const mcp = name.replace(/[^A-Za-z0-9_-]/g, "_");
  try {
    return await value(await attempt(mcp, args, save, end), save, files);
  } catch (e) {
    if (!(e instanceof Late)) throw e;
    throw new ToolTimeout("timeout", "no answer within timeout", {remediation: "Pass a larger timeout, or do less in a call."});
  }
}

async function value(answer, save, files) {
  const text = (answer.content || []).filter(c => c.type === "text").map(c => c.text).join("\n");
  const data = answer.structuredContent;
  if (answer.isError) {
    const error = (data && data.error) || {};
    throw failure(error.code || "tool_failed", error.message === undefined ? text : error.message, error);
  }
  if (files) files.push(...((answer._meta || {})["workcell/files"] || []).map(f => new Saved(f)));
  if (data === undefined || data === null) return text;
  if (typeof data !== "object" || Object.keys(data).join() !== "$saved") return data;
  const saved = new Saved(data.$saved);
  if (save !== undefined) return saved;
  const loaded = await saved.load();
  if (saved.path.includes("/.workcell/results/")) await fs.promises.unlink(saved.path); // only the host creates files in this directory
  return loaded;
}

const own = ["then", "toJSON"]; // read by the language
const lookup = make => new Proxy({}, {get: (o, name) => typeof name === "string" && !(name in o) && !own.includes(name) ? make(name) : o[name]});

// tools are the host's tools by server and name.
const tools = lookup(server => server === "call" ? call : lookup(tool => (args, options) => call(`${server}.${tool}`, args, options)));

// result sets the result of the run, at most 64 KiB of JSON. The last call counts.
function result(value) {
  const file = process.env.WORKCELL_RESULT, data = JSON.stringify(value);
  if (!file) throw new Error("this command cannot return a result");
  if (data === undefined) throw new TypeError("the result cannot be encoded as JSON");
  if (Buffer.byteLength(data) > 65536) throw new RangeError(`the result has ${Buffer.byteLength(data)} bytes of JSON, the limit is 65536: write a file instead`);
  fs.writeFileSync(file + ".new", data);
  fs.renameSync(file + ".new", file);
}

module.exports = {tools, result, Saved, ToolError, ToolDenied, ToolTimeout, ToolUnavailable};
