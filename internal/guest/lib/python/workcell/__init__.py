"""Calls tools of the host from code inside a Workcell sandbox.

    from workcell import tools, ToolDenied
    order = tools.orders.lookup(id="42")                 # the tool's data, or its text as Text
    rows = tools.db.query(sql="...", _save="rows.json")  # Saved: stays in a file below /workspace
    tools.call("orders.refund", {"id": "42"}, _timeout=10)

A failure of a tool is raised as ToolError or a subclass. The command `tools` lists the tools.
"""
import asyncio
import functools
import itertools
import json
import keyword
import os
import re
import socket
import sys
import threading
import time
from concurrent import futures

__all__ = ["tools", "aio", "result", "Text", "Saved", "ToolError", "ToolDenied", "ToolTimeout", "ToolUnavailable"]

_PATIENCE = 30  # maximum wait of a call for an unavailable host, in seconds
_LINKS = 8  # maximum number of open connections; the sandbox allows a command 16
_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "workcell-python", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class ToolError(Exception):
    """A tool failed. code is the class of the failure, and remediation is a suggestion. If retryable is set, the same
    call may succeed later. If outcome_unknown is set, the connection broke, and the tool may or may not have run."""

    def __init__(self, code, message, remediation="", retryable=False, outcome_unknown=False):
        super().__init__(code, message, remediation, retryable, outcome_unknown)
        self.code, self.message, self.remediation = code, message, remediation
        self.retryable, self.outcome_unknown = retryable, outcome_unknown

    def __str__(self):
        text = self.code + ": " + self.message
        return text.rstrip(".") + ". " + self.remediation if self.remediation else text


class ToolDenied(ToolError):
    """A policy or a person refused the call."""


class ToolTimeout(ToolError):
    """A time limit ran out."""


class ToolUnavailable(ToolError):
    """The host, or a service needed by the tool, is unavailable."""


def _failure(code, message, more):
    kinds = {"permission_denied": ToolDenied, "timeout": ToolTimeout, "unavailable": ToolUnavailable}
    return kinds.get(code, ToolError)(code, message, more.get("remediation", ""), bool(more.get("retryable")))


class Text(str):
    """The result of a tool with text output."""

    def json(self):
        return json.loads(self)


class Saved:
    """A result in a file. kind is the type of the JSON value, "text", or a media type."""

    def __init__(self, path, bytes=0, kind="", length=None, keys=(), head="", **_):
        self.path, self.bytes, self.kind, self.length, self.keys, self.head = path, bytes, kind, length, list(keys), head

    def load(self):
        with open(self.path, "rb") as f:
            data = f.read()
        if "/" in self.kind:
            return data
        return Text(data.decode("utf-8", "replace")) if self.kind == "text" else json.loads(data.decode("utf-8"))

    def __repr__(self):
        return "Saved(path=%r, bytes=%r, kind=%r, length=%r, keys=%r)" % (self.path, self.bytes, self.kind, self.length, self.keys)


def _left(end):
    """Returns the seconds until end. None means no limit."""
    if end is not None and end <= time.monotonic():
        raise socket.timeout("timed out")
    return None if end is None else end - time.monotonic()


class _Link:
    """One connection to the host, with one request at a time."""

    def __init__(self, address, end):
        self.ids, self.buf, self.sock = itertools.count(1), bytearray(), socket.socket(socket.AF_UNIX)
        try:
            self.sock.settimeout(_left(end))
            self.sock.connect("\0" + address[1:])
            self.request("ping", {}, end)  # the sandbox also accepts connections while the host is unavailable
        except BaseException:
            self.sock.close()
            raise

    def stale(self):
        try:
            self.sock.settimeout(0)
            return not self.sock.recv(1, socket.MSG_PEEK)
        except OSError as e:
            return not isinstance(e, BlockingIOError)

    def request(self, method, params, end):
        """Returns the answer. Raises OSError if the connection breaks, and socket.timeout at the end."""
        number = next(self.ids)
        data = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}, separators=(",", ":"), allow_nan=False)
        self.sock.settimeout(_left(end))
        self.sock.sendall(data.encode() + b"\n")
        while True:
            answer = json.loads(self.line(end).decode("utf-8", "replace"))
            if answer.get("id") == number and "method" not in answer:
                return answer

    def line(self, end):
        seen = 0
        while True:
            at = self.buf.find(b"\n", seen)
            if at >= 0:
                line = bytes(self.buf[:at])
                del self.buf[: at + 1]
                return line
            seen = len(self.buf)
            self.sock.settimeout(_left(end))
            chunk = self.sock.recv(1 << 18)
            if not chunk:
                raise ConnectionResetError("the connection was closed")
            self.buf += chunk


class _Host:
    """The connections of this process, each for one call at a time, and the host's tools."""

    def __init__(self):
        self.idle, self.slots, self.offered = [], threading.Semaphore(_LINKS), None
        self.threads = futures.ThreadPoolExecutor(_LINKS)  # for aio, because asyncio has few threads, which belong to the program

    def forked(self):
        for link in self.idle:
            link.sock.close()
        self.__init__()

    def link(self, end):
        while True:
            try:
                link = self.idle.pop()
            except IndexError:  # also if another thread has just taken the last one
                break
            if not link.stale():
                return link
            link.sock.close()
        address = os.environ.get("WORKCELL_TOOLS", "")
        if not address.startswith("@"):
            raise ToolUnavailable("unavailable", "this command has no host tools", "Continue without them, and mention it in the answer.")
        until, pause = time.monotonic() + _PATIENCE, 0.02
        while True:
            try:
                return _Link(address, until if end is None else min(until, end))
            except OSError as e:
                _left(end)
                if time.monotonic() + pause >= until:
                    raise ToolUnavailable("unavailable", "cannot reach the host: %s" % e, "Try again later.", True) from e
            time.sleep(pause if end is None else min(pause, max(end - time.monotonic(), 0)))
            pause = min(pause * 2, 1)

    def request(self, method, params, end=None):
        trace = os.environ.get("TRACEPARENT")
        meta = dict(_META, **params.get("_meta", {}), **({"traceparent": trace} if trace else {}))
        params = dict(params, _meta=meta)  # the caller may use its params again
        if not self.slots.acquire(timeout=_left(end)):
            raise socket.timeout("timed out")
        link = None
        try:
            link = self.link(end)
            answer = link.request(method, params, end)
            self.idle.append(link)
            link = None
        except socket.timeout:
            raise
        except OSError as e:
            raise ToolUnavailable("unavailable", "lost the connection to the host during the call",
                                  "Find out whether the call took effect before repeating it.", False, True) from e
        finally:
            if link:
                link.sock.close()  # cancels a pending request
            self.slots.release()
        if "error" in answer:
            error = answer["error"]
            more = error["data"] if isinstance(error.get("data"), dict) else {}
            code = {-32601: "not_found", -32602: "invalid_argument"}.get(error.get("code"), "internal")
            raise _failure(more.get("code", code), error.get("message", ""), more)
        return answer["result"]

    def hints(self, name, end):
        """Returns the annotations of a tool, or {} if the names of two tools differ only in dashes."""
        if self.offered is None:
            offered = {}
            for t in self.request("tools/list", {}, end)["tools"]:
                plain = t["name"].replace("-", "_")
                offered[plain] = {} if plain in offered else t
            self.offered = offered
        return self.offered.get(name.replace("-", "_"), {}).get("annotations", {})

    def call(self, name, args, save, end):
        params = {"name": name, "arguments": args, "_meta": {} if save is None else {"workcell/save": os.fspath(save)}}
        try:
            return self.request("tools/call", params, end)
        except ToolUnavailable as e:
            if not e.outcome_unknown:
                raise
            try:
                hints = self.hints(name, end)
            except (ToolUnavailable, socket.timeout):
                hints = {}  # the outcome of the call stays unknown
            if not (hints.get("readOnlyHint") or hints.get("idempotentHint")):
                raise
        return self.request("tools/call", params, end)


_host = _Host()
os.register_at_fork(after_in_child=_host.forked)


def _call(name, args, save, timeout, files):
    end = None if timeout is None else time.monotonic() + timeout
    mcp = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    try:
        return _value(_host.call(mcp, {} if args is None else args, save, end), save, files)
    except socket.timeout:
        raise ToolTimeout("timeout", "no answer within _timeout", "Pass a larger _timeout, or do less in a call.") from None


def _value(answer, save, files):
    text = "\n".join(c.get("text", "") for c in answer.get("content") or () if c.get("type") == "text")
    data = answer.get("structuredContent")
    if answer.get("isError"):
        error = data.get("error") if isinstance(data, dict) else None
        error = error if isinstance(error, dict) else {}
        raise _failure(error.get("code", "tool_failed"), error.get("message", text), error)
    if files is not None:
        files.extend(Saved(**f) for f in answer.get("_meta", {}).get("workcell/files", ()))
    if data is None:
        return Text(text)
    if not isinstance(data, dict) or set(data) != {"$saved"}:
        return data
    saved = Saved(**data["$saved"])
    if save is not None:
        return saved
    value = saved.load()
    if "/.workcell/results/" in saved.path:  # only the host creates files in this directory
        os.unlink(saved.path)
    return value


def _original(name):
    """Returns the name for an identifier, for example from for from_."""
    return name[:-1] if name[-1:] == "_" and (keyword.iskeyword(name[:-1]) or name == "call_") else name


class _Tools:
    """Tools by server and name, for example tools.orders.lookup(id="42"). Calls of aio must be awaited."""

    def __init__(self, path="", awaited=False):
        self._path, self._awaited = path, awaited

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Tools((self._path and self._path + ".") + _original(name), self._awaited)

    def __call__(self, _args=None, /, *more, _save=None, _timeout=None, _files=None, **args):
        if more or not isinstance(_args, (dict, type(None))):
            raise TypeError("%s takes its arguments by name: %s(name=value)" % (self._path, self._path))
        return self.call(self._path, dict(_args or {}, **{_original(k): v for k, v in args.items()}), _save, _timeout, _files)

    def call(self, name, args=None, _save=None, _timeout=None, _files=None):
        """Calls a tool by name, server.tool, with exactly these arguments. _save is the path for the result, _timeout
        is in seconds, and _files is a list to which the result's files are added, each as a Saved."""
        call = functools.partial(_call, name, args, _save, _timeout, _files)
        return asyncio.get_running_loop().run_in_executor(_host.threads, call) if self._awaited else call()


tools, aio = _Tools(), _Tools(awaited=True)


def result(value):
    """Sets the result of the run, at most 64 KiB of JSON. The last call counts."""
    path, data = os.environ.get("WORKCELL_RESULT"), json.dumps(value, allow_nan=False).encode()
    if not path or len(data) > 64 << 10:
        raise ValueError("the result has %d bytes of JSON, the limit is 65536: write a file instead" % len(data) if path else "this command cannot return a result")
    with open(path + ".new", "wb") as f:
        f.write(data)
    os.replace(path + ".new", path)


# For: from workcell.aio import tools
vars(aio).update({name: globals()[name] for name in __all__ if name != "aio"}, tools=aio)
sys.modules[__name__ + ".aio"] = aio
