"""Sample episodes of all kinds, and a run folder with them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ludus.data.episode import Episode, EpisodeFault, Timing, Tokens, Usage
from ludus.data.messages import (
    Call,
    Function,
    ImagePart,
    ImageUrl,
    Message,
    Text,
)
from ludus.environment.registry import find_environment

SETTINGS: dict[str, Any] = {
    "environment": "reasoning_gym:chain_sum",
    "task": {"dataset_config": {"min_terms": 2}},
    "agent": {"provider": "openai", "model": "gpt-5-mini", "temperature": 0.7},
    "system_prompt": "Answer.\n```\nWith a tool.",
}
SUMMARY: dict[str, Any] = {
    "episodes": 3,
    "scored": 2,
    "broken": 1,
    "mean_reward": 0.75,
    "stop_reasons": {"broken": 1, "done": 2},
    "usage": {"prompt_tokens": 12345, "completion_tokens": 678, "cost": 0.1234},
}


def episode(number: int, environment: str = "reasoning_gym:chain_sum", **facts: Any) -> Episode:
    """One scored attempt, with the environment's own tools."""
    moment = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
    plain: dict[str, Any] = {
        "episode_id": f"run-{number:06d}",
        "stop_reason": "done",
        "reward": 1.0,
        "usage": Usage(prompt_tokens=31, completion_tokens=7, cost=0.25),
        "environment": environment,
        "task": {"seed": number, "dataset_config": {"min_terms": 2}},
        "seed": number,
        "group_id": f"group-{number}",
        "agent": {"provider": "openai", "model": "gpt-5-mini"},
        "messages": (
            Message(role="system", content="Answer with the tool."),
            Message(role="user", content="41"),
            tool_call_message("answer", '{"answer": "41"}', reasoning_content="40 + 1"),
            Message(role="tool", content='{"score": 1.0}', tool_call_id="call_1"),
        ),
        "tools": tuple(tool.to_openai() for tool in find_environment(environment).tools or ()),
        "done": True,
        "turns": 1,
        "tool_calls": 1,
        "timing": Timing(started_at=moment, ended_at=moment, model_s=0.5),
    }
    return Episode(**{**plain, **facts})


def tool_call_message(tool: str, arguments: str, **more: Any) -> Message:
    call = Call(id="call_1", function=Function(name=tool, arguments=arguments))
    return Message(role="assistant", tool_calls=(call,), **more)


def wordle_episode(number: int) -> Episode:
    """Another tool, another task, named rewards, arguments that are no JSON."""
    messages = (
        Message(role="user", content="Guess the word."),
        tool_call_message("guess", '{"word": "crane"', content="🟩 né \u2028 \x00"),
        Message(role="tool", content="null", tool_call_id="call_1"),
    )
    task = {"seed": str(number), "dataset_config": "hard"}
    return episode(
        number, "wordle", messages=messages, task=task, reward=0.5, rewards={"green": 0.5}
    )


def image_episode(number: int) -> Episode:
    """A content that is a list, beside contents that look like JSON."""
    picture = ImagePart(image_url=ImageUrl(url="data:image/png;base64,AAAA"))
    messages = (
        Message(role="user", content=(Text(text="42"), picture)),
        Message(role="assistant", content="42"),
        Message(role="user", content="[1, 2]"),
    )
    return episode(number, messages=messages, stop_reason="no_tool_call", reward=0.0)


def broken_episode(number: int) -> Episode:
    fault = EpisodeFault(kind="ConnectFailed", where="environment", message="Cannot connect.")
    nothing: dict[str, Any] = {
        "messages": (),
        "tools": (),
        "task": {},
        "timing": None,
        "seed": None,
    }
    return episode(number, stop_reason="broken", reward=None, error=fault, **nothing)


def token_episode(number: int) -> Episode:
    return episode(number, tokens=Tokens(ids=(1, 2), logprobs=(None, -0.5), mask=(0, 1)))


def long_episode(number: int) -> Episode:
    """More than a megabyte."""
    return episode(number, messages=(Message(role="user", content="long " * 250_000),))


def run_folder(folder: Path, *episodes: Episode) -> Path:
    """A run folder with these episodes in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "episodes.jsonl").write_bytes(b"".join(each.to_line() for each in episodes))
    (folder / "run.json").write_text(json.dumps({"settings": SETTINGS, "digest": "abc"}))
    (folder / "summary.json").write_text(json.dumps(SUMMARY))
    return folder
