"""A model on loopback that speaks Anthropic's messages and OpenAI's chat completions. Offered the tool lookup of the server
orders, it calls it once, and then says what came back. The port is the first line that it prints."""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ARGS = '{"id": "42"}'


def results(messages):
    """Returns the texts of the tool results in a conversation."""
    found = []
    for m in messages:
        parts = m["content"] if isinstance(m.get("content"), list) else []
        if m["role"] == "tool":
            found.append(json.dumps(m["content"]))
        found += [json.dumps(p["content"]) for p in parts if p.get("type") == "tool_result"]
    return found


def anthropic(body):
    tool = next((t["name"] for t in body.get("tools", ()) if t["name"].endswith("orders_lookup")), None)
    got = results(body["messages"])
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": [],
               "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 100, "output_tokens": 1}}
    yield {"type": "message_start", "message": message}
    if tool and not got:
        stop, block = "tool_use", {"type": "tool_use", "id": "toolu_1", "name": tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": ARGS}
    else:
        stop, block = "end_turn", {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": "the tool said " + "".join(got)}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


def openai(body):
    tool = next((t["function"]["name"] for t in body.get("tools", ()) if t["function"]["name"].endswith("orders_lookup")), None)
    got = results(body["messages"])
    if tool and not got:
        stop, delta = "tool_calls", {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": tool, "arguments": ARGS}}]}
    else:
        stop, delta = "stop", {"content": "the tool said " + "".join(got)}
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    yield dict(chunk, choices=[{"index": 0, "delta": dict(delta, role="assistant"), "finish_reason": None}])
    yield dict(chunk, choices=[{"index": 0, "delta": {}, "finish_reason": stop}], usage={"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120})


class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.split("?")[0]
        if path == "/v1/messages/count_tokens":
            return self.answer("application/json", b'{"input_tokens": 100}')
        speak = {"/v1/messages": anthropic, "/v1/chat/completions": openai}[path]
        out = b""
        for event in speak(body):
            if speak is anthropic:
                out += b"event: " + event["type"].encode() + b"\n"
            out += b"data: " + json.dumps(event).encode() + b"\n\n"
        self.answer("text/event-stream", out if speak is anthropic else out + b"data: [DONE]\n\n")

    def answer(self, kind, data):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
print(server.server_port, flush=True)
server.serve_forever()
