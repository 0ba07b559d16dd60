// Runs programs for one client after another and keeps their variables: node -e SOURCE DIR.
//
// Clients connect to DIR/node.sock. A request is a line of JSON; what is printed is sent back as frames, a kind ("o": standard
// output, "e": standard error, "x": exit code, the last one) and a length before the bytes. The value of the last expression and
// images are left in DIR, in a file that is named after the client's command. DIR/node.now has the name of the current command.
//
// A worker speaks with the clients, since a program may keep the main thread.
const fs = require("fs"), net = require("net"), path = require("path"), util = require("util"), vm = require("vm");
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");

const IDLE = 1800e3; // milliseconds without a call after which the interpreter ends
const GRACE = 3e3; // milliseconds that a program has to end when its client is gone
const MAX_VALUE = 64 << 10; // characters
const MAX_IMAGE = 8 << 20; // bytes
const MAX_FRAME = 1 << 20; // bytes; the relay refuses frames that are much larger

const frame = (kind, data) => {
  const head = Buffer.alloc(5, kind);
  head.writeUInt32BE(data.length, 1);
  return Buffer.concat([head, data]);
};

// serve accepts clients and passes their programs to the main thread, one at a time.
function serve(dir) {
  const waiting = [];
  let client = null, idle = null;
  const rest = () => (idle = setTimeout(() => process.kill(process.pid, "SIGKILL"), IDLE));
  const next = () => {
    if (client || waiting.length === 0) return;
    clearTimeout(idle);
    client = waiting.shift();
    if (client.conn.destroyed) return done(130);
    client.conn.once("close", client.gone);
    try {
      fs.writeFileSync(path.join(dir, "node.now"), client.request.exec);
    } catch {} // the host may end this interpreter if another program does not answer
    parentPort.postMessage(client.request);
  };
  const done = (code) => {
    clearTimeout(client.grace);
    client.conn.removeListener("close", client.gone);
    client.conn.end(frame("x", Buffer.from(String(code))));
    client = null;
    rest();
    next();
  };
  // A client that is gone has its program ended.
  const gone = () => {
    process.kill(process.pid, "SIGINT");
    parentPort.postMessage({ interrupt: true });
    client.grace = setTimeout(() => process.kill(process.pid, "SIGKILL"), GRACE);
  };
  parentPort.on("message", (m) => {
    if (!m.kind) return done(m.code);
    for (let at = 0; client && at < m.data.length; at += MAX_FRAME) client.conn.write(frame(m.kind, m.data.subarray(at, at + MAX_FRAME)));
  });
  const server = net.createServer((conn) => {
    const parts = [];
    conn.on("error", () => {});
    conn.on("data", (data) => {
      parts.push(data);
      if (data[data.length - 1] !== 10) return;
      try {
        waiting.push({ conn, gone, request: JSON.parse(Buffer.concat(parts)) });
        next();
      } catch {
        conn.destroy();
      }
    });
  });
  const address = path.join(dir, "node.sock");
  const listen = () => server.listen(address, () => {
    fs.writeFileSync(path.join(dir, "node.exec"), process.env.WORKCELL_EXEC || "");
    fs.writeSync(1, "ready\n");
    rest();
  });
  const other = net.connect(address, () => parentPort.postMessage({ served: true }));
  other.on("error", () => {
    fs.rmSync(address, { force: true });
    listen();
  });
}

// printTo has what the program prints sent to the client.
function printTo(worker) {
  for (const [name, kind] of [["stdout", "o"], ["stderr", "e"]]) {
    process[name].write = (data, encoding, callback) => {
      if (typeof encoding === "function") [encoding, callback] = [undefined, encoding];
      worker.postMessage({ kind, data: Buffer.from(data, typeof data === "string" ? encoding : undefined) });
      if (callback) process.nextTick(callback);
      return true;
    };
  }
}

// image returns the bytes of a value that is an image.
function image(value) {
  if (!(value instanceof Uint8Array) || value.length > MAX_IMAGE) return null;
  const data = Buffer.from(value);
  const magic = [[0x89, 0x50, 0x4e, 0x47], [0xff, 0xd8, 0xff], [0x47, 0x49, 0x46, 0x38]];
  return magic.some((m) => m.every((b, i) => data[i] === b)) ? data : null;
}

// present leaves the value of a program for the host.
function present(dir, exec, value) {
  if (value === undefined) return;
  const picture = image(value);
  let text = picture ? `<image of ${picture.length} bytes>` : util.inspect(value, { maxArrayLength: 1000, maxStringLength: MAX_VALUE });
  if (text.length > MAX_VALUE) text = `${text.slice(0, MAX_VALUE)}… (${text.length - MAX_VALUE} characters more)`;
  const file = path.join(dir, "result-" + path.basename(exec));
  fs.writeFileSync(file + ".new", JSON.stringify({ value: text, images: picture ? [picture.toString("base64")] : [] }));
  fs.renameSync(file + ".new", file);
}

// compiles reports whether a text is a program.
function compiles(text) {
  try {
    return Boolean(new vm.Script(text));
  } catch {
    return false;
  }
}

const asynchronous = (head, last) => `(async () => {${head}\nreturn (${last}\n)})()`;

// awaited returns a program that waits at its top as one whose value is a promise; empty when it is none. Its variables become
// global ones, and its value is that of the last lines, or what follows the last semicolon, that are an expression.
function awaited(text) {
  text = text.replace(/^(?:const|let|var)\s+([\w$]+)\s*=(?!=)/gm, "globalThis.$1 =").replace(/^(async function|function|class)\s+([\w$]+)/gm, "globalThis.$2 = $&");
  text = text.replace(/[\s;]+$/, "");
  for (const lines of [text.split("\n"), text.replace(/;(?=[^;\n]*$)/, ";\n").split("\n")]) {
    for (let i = lines.length - 1; i >= 0; i--) {
      const program = asynchronous(lines.slice(0, i).join("\n"), lines.slice(i).join("\n"));
      if (compiles(program)) return program;
    }
  }
  const program = asynchronous(text, "undefined");
  return compiles(program) ? program : "";
}

// runnable returns what is run for a program.
function runnable(text) {
  // Declared once more is declared anew: a program may be run again.
  const plain = text.replace(/^(?:const|let)(?=[\s{[])/gm, "var").replace(/^class\s+([\w$]+)/gm, "var $1 = class $1");
  if (/^\s*\{/.test(plain) && compiles(`(${plain})`)) return `(${plain})`; // an object, not a block
  return (!compiles(plain) && /\bawait\b/.test(plain) && awaited(text)) || plain;
}

// main runs programs, and keeps their variables as global ones.
function main(dir, source) {
  const worker = new Worker(source, { eval: true, workerData: dir });
  const interrupted = () => Object.assign(new Error("interrupted"), { interrupted: true });
  let fail = null; // ends the program that runs
  process.on("SIGINT", () => {}); // a program that waits is ended by the worker's message
  const exit = process.exit.bind(process);
  process.exit = (code) => {
    throw Object.assign(new Error("process.exit"), { exit: Number(code ?? process.exitCode ?? 0) });
  };
  const failed = (error) => (fail ? fail(error) : console.error(error)); // fail is null for what a program left running
  process.on("uncaughtException", failed).on("unhandledRejection", failed);
  globalThis.require = require("module").createRequire(path.join(process.cwd(), "/"));
  printTo(worker);
  const run = (text) => vm.runInThisContext(runnable(text), {
    filename: "program.js", breakOnSigint: true, importModuleDynamically: vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER,
  });
  worker.on("message", async (request) => {
    if (request.served) exit(0); // by another one
    if (request.interrupt) {
      if (fail) fail(interrupted());
      return;
    }
    let code = 0;
    try {
      const ended = new Promise((_, reject) => (fail = reject));
      const value = await Promise.race([ended, (async () => run(request.code || ""))()]);
      if (value !== undefined) globalThis._ = value;
      present(dir, request.exec, value);
    } catch (error) {
      if (error && error.exit !== undefined) code = error.exit & 255;
      else if (error && (error.interrupted || error.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED")) code = 130;
      else {
        code = 1;
        console.error(error instanceof Error || (error && error.stack) ? trimmed(error) : util.format("Uncaught", error));
      }
    }
    fail = null;
    await new Promise(setImmediate); // what is printed asynchronously
    worker.postMessage({ code });
  });
}

// trimmed returns the stack of an error without the frames of this program.
function trimmed(error) {
  const lines = String(error.stack).split("\n");
  const own = lines.findIndex((l) => /\bnode:vm\b|\[eval\]/.test(l));
  return (own < 0 ? lines : lines.slice(0, own)).join("\n");
}

if (isMainThread) {
  const dir = process.argv[1];
  fs.mkdirSync(dir, { recursive: true, mode: 0o700 });
  main(dir, process._eval);
} else {
  serve(workerData);
}
