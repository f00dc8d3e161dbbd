"""A small MCP server on standard input and output, which fails on request.

The standard library alone, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTHING = {"type": "object", "properties": {}}
TOOLS = {
    "echo": TEXT,
    "count": NOTHING,
    "picture": NOTHING,
    "resources": NOTHING,
    "structured": NOTHING,
    "fail": TEXT,
    "refuse": NOTHING,
    "die": NOTHING,
    "hang": NOTHING,
    "environ": TEXT,
}
count = 0
OPTIONS = argparse.Namespace()


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    global count
    text = arguments.get("text", "")
    if name == "count":
        count += 1
        text = str(count)
    elif name == "picture":
        image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
        return {"content": [{"type": "text", "text": "a pixel"}, image]}
    elif name == "resources":
        embedded = {"uri": "note://1", "text": "a note"}
        link = {"type": "resource_link", "uri": "note://2", "name": "two"}
        audio = {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}
        return {"content": [{"type": "resource", "resource": embedded}, link, audio]}
    elif name == "structured":
        return {"content": [], "structuredContent": {"sum": 3}}
    elif name == "fail":
        return {"content": [{"type": "text", "text": text}], "isError": True}
    elif name == "die":
        print("Out of cheese.", file=sys.stderr, flush=True)
        os._exit(3)
    elif name == "hang":
        time.sleep(1000)
    elif name == "environ":
        text = os.environ.get(text, "")
    return {"content": [{"type": "text", "text": text}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        version = params["protocolVersion"]
        info = {"name": "small", "version": "1"}
        instructions = "Be kind."
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": info,
            "instructions": instructions,
        }
    if method == "tools/list":
        names = [*(OPTIONS.only or TOOLS), *OPTIONS.also]
        half = len(names) // 2  # In two pages.
        page = names[half:] if params.get("cursor") else names[:half]
        tools = [
            {"name": name, "description": name, "inputSchema": TOOLS.get(name, NOTHING)}
            for name in page
        ]
        return {"tools": tools, **({} if params.get("cursor") else {"nextCursor": "more"})}
    return call(params["name"], params.get("arguments") or {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=(), help="Tools that are listed.")
    parser.add_argument("--also", nargs="*", default=(), help="More tools, which return nothing.")
    parser.add_argument("--stubborn", action="store_true", help="Ignore the end of the input.")
    parser.add_argument("--child", action="store_true", help="Start a process that stays.")
    parser.add_argument("--tag", help="Ignored; tells servers apart in a list of processes.")
    parser.parse_args(namespace=OPTIONS)
    if OPTIONS.child:
        subprocess.Popen(["sleep", "1000"])
    print("A line that is no message.", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        params = request.get("params") or {}
        if params.get("name") == "refuse":
            reply["error"] = {"code": -32602, "message": "Not like this."}
        else:
            reply["result"] = answer(request["method"], params)
        print(json.dumps(reply), flush=True)
    if OPTIONS.stubborn:
        time.sleep(1000)


if __name__ == "__main__":
    main()
