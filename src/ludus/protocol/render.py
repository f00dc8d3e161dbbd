"""How an observation reads to a model: a pure function of what stood on the wire.

Both ends of the wire see the same dictionary, so an episode reads the same in process and over a
socket, and a foreign server needs no wrapper. Fields that describe the task to the infrastructure
(metadata, info) are not shown: they may hold the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from ludus.data.content import Block, Content, Image, Text

PRIMARY = ("text", "question", "prompt", "message", "echoed_message")
"""The first of these that holds text is the whole message."""
PICTURES = ("screenshot", "image")
"""Fields in which environments on this wire put a base64 picture."""

_BLOCK_KEYS = ("type", "text", "data", "mimeType", "mime_type")
_blocks: TypeAdapter[list[Text | Image]] = TypeAdapter(list[Block])


def render(observation: Mapping[str, Any]) -> Content:
    """What the model is shown: text, or blocks where there are pictures."""
    fault = observation.get("error")
    if isinstance(fault, Mapping) and "message" in fault:
        return f"Error: {fault['message']}"
    if "tool_name" in observation and "result" in observation:
        return render_result(observation["result"])
    if observation.get("content"):
        return _blocks.validate_python(observation["content"])
    words = _words(observation)
    pictures = [picture for name in PICTURES if (picture := _picture(observation.get(name)))]
    return [Text(text=words), *pictures] if pictures else words


def render_result(result: Any) -> Content:
    """What a tool answered: text and MCP's content blocks as they are, the rest as JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        known = [block for block in result["content"] if block.get("type") in ("text", "image")]
        blocks = _blocks.validate_python([_bare(block) for block in known])
        if all(isinstance(block, Text) for block in blocks):
            return "\n".join(block.text for block in blocks if isinstance(block, Text))
        return blocks
    return json.dumps(result, ensure_ascii=False)


def _bare(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: block[key] for key in _BLOCK_KEYS if key in block}


def _words(observation: Mapping[str, Any]) -> str:
    for name in PRIMARY:
        value = observation.get(name)
        if isinstance(value, str) and value:
            return value
    lines = [
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in observation.items()
        if value not in (None, "", [], {}) and name not in PICTURES and not _hidden(name)
    ]
    return "\n".join(lines)


def _hidden(name: str) -> bool:
    return name.endswith("metadata") or name in ("info", "done", "reward")


def _picture(value: Any) -> Image | None:
    if not isinstance(value, str) or not value:
        return None
    head, _, data = value.rpartition("base64,")
    kind = head.removeprefix("data:").rstrip(";") or "image/png"
    return Image(data=data, mime_type=kind)
