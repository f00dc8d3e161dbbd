"""Lines in the format of NeMo Gym's examples, with made-up content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ludus.curation.formats.base import UnreadableRecord
from ludus.curation.formats.nemo_gym import read_gym
from ludus.data.episode import Episode
from ludus.data.tool_schema import JsonObject

_REQUEST_NULLS = (
    *("background", "include", "instructions", "max_output_tokens", "max_tool_calls", "metadata"),
    *("model", "previous_response_id", "prompt", "reasoning", "service_tier", "store"),
    *("temperature", "text", "top_logprobs", "top_p", "truncation", "user", "stream"),
)
_RESPONSE_NULLS = (
    *("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p"),
    *("background", "conversation", "max_output_tokens", "max_tool_calls", "prompt"),
    *("previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier"),
    *("service_tier", "status", "text", "top_logprobs", "truncation", "user"),
)
USAGE = {
    "input_tokens": 40,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 60,
}
TOOL = {
    "type": "function",
    "name": "look_up",
    "description": "Look a word up.",
    "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    "strict": True,
}


def user(text: str) -> JsonObject:
    return {"content": text, "role": "user", "type": "message"}


def system(text: str) -> JsonObject:
    return {"content": text, "role": "system", "type": "message"}


def message_item(text: str) -> JsonObject:
    part: JsonObject = {"annotations": [], "text": text, "type": "output_text", "logprobs": None}
    item = {"id": "msg_1", "content": [part], "role": "assistant"}
    return item | {"status": "completed", "type": "message"}


def reasoning_item(text: str) -> JsonObject:
    summary = [{"text": text, "type": "summary_text"}]
    return {"id": "rs_1", "summary": summary, "type": "reasoning", "encrypted_content": None}


def call_item(identity: str, word: str = "owl") -> JsonObject:
    call = {"arguments": json.dumps({"word": word}), "call_id": identity, "name": "look_up"}
    return call | {"type": "function_call", "id": identity, "status": "completed"}


def output_item(identity: str, output: Any = "a bird") -> JsonObject:
    answer = {"call_id": identity, "output": output, "type": "function_call_output"}
    return answer | {"id": identity, "status": "completed"}


def request(given: Any, **more: Any) -> JsonObject:
    defaults: JsonObject = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {**dict.fromkeys(_REQUEST_NULLS), **defaults, "input": given, **more}


def response(output: Any, **more: Any) -> JsonObject:
    fixed: JsonObject = {"id": "resp_1", "created_at": 1786127167.0, "object": "response"}
    fixed |= {"model": "policy_model", "parallel_tool_calls": True, "tool_choice": "auto"}
    return {**dict.fromkeys(_RESPONSE_NULLS), **fixed, "tools": [], "usage": USAGE} | {
        "output": output,
        **more,
    }


def rollout(given: Any, output: Any, /, **more: Any) -> JsonObject:
    """Build a line; `asked` and `replied` are fields of the request and the response."""
    asked, replied = more.pop("asked", {}), more.pop("replied", {})
    return {
        "responses_create_params": request(given, **asked),
        "response": response(output, **replied),
        "reward": 1.0,
        **more,
        "_ng_task_index": more.get("_ng_task_index", 0),
        "_ng_rollout_index": 0,
        "agent_ref": {"type": "responses_api_agents", "name": "words_agent"},
    }


def write_lines(path: Path, *lines: JsonObject | str) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def read(folder: Path, *lines: JsonObject | str) -> list[Episode | UnreadableRecord]:
    return list(read_gym(write_lines(folder / "rollouts.jsonl", *lines)))


def import_rollout(folder: Path, line: JsonObject) -> Episode:
    (episode,) = read(folder, line)
    assert isinstance(episode, Episode), episode
    return episode


def shape(episode: Episode) -> list[tuple[Any, ...]]:
    """Return role, text, reasoning and call ids of each message."""
    return [
        (
            message.role,
            message.text,
            message.reasoning_content,
            tuple(call.id for call in message.tool_calls or ()) or message.tool_call_id,
        )
        for message in episode.messages
    ]
