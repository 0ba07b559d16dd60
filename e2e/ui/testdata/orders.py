#!/usr/bin/python3
"""An MCP server with one tool, which waits for nothing and returns its arguments."""
import json
import sys

schema = {"type": "object", "properties": {"id": {"type": "string"}}}
tools = [{"name": "refund", "description": "Refund an order", "inputSchema": schema}]
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answers = {
        "initialize": lambda p: {"protocolVersion": p["protocolVersion"], "capabilities": {"tools": {}},
                                 "serverInfo": {"name": "orders", "version": "1"}},
        "tools/list": lambda p: {"tools": tools},
        "tools/call": lambda p: {"content": [{"type": "text", "text": json.dumps(p["arguments"])}]},
    }
    do = answers.get(asked["method"])
    answer = {"result": do(asked.get("params", {}))} if do else {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
