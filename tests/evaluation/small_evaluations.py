"""Attempts, candidates, and evaluations of a few episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ludus.agents.agent import Agent
from ludus.agents.scripted import ScriptedAgent, ScriptedReply
from ludus.data.tool_schema import ToolCall
from ludus.evaluation import Candidate, EvalConfig, Evaluation, evaluate
from ludus.evaluation.metrics import Attempt
from ludus.rollout.progress import ProgressCallback, ignore_progress

COUNTER = "world:Counter"


def quick_config(**fields: Any) -> EvalConfig:
    """A config that wastes no time on retries."""
    quick = {"max_attempts": 1, "retry_delay": 0.001, "reconnect_timeout": 5.0}
    return EvalConfig(**{**quick, **fields})


def attempt(place: int, reward: float | None = 1.0, **more: Any) -> Attempt:
    facts: dict[str, Any] = {
        "environment": "game",
        "task": f"task {place}",
        "prompt": f"Question {place}?",
        "broken": False,
        "format_compliant": True,
        "reply_tokens": None,
    }
    return Attempt(plan_index=place, reward=reward, **{**facts, **more})


def add_call(number: object) -> ToolCall:
    return ToolCall(name="add", arguments={"number": number})


def scripted_candidate(label: str, *script: ScriptedReply) -> Candidate:
    return Candidate(label, ScriptedAgent(*script))


def candidate_with(label: str, agent: Agent) -> Candidate:
    return Candidate(label, agent)


async def evaluate_counter(
    out: Path,
    candidates: Sequence[Candidate],
    *,
    progress: ProgressCallback = ignore_progress,
    command: str | None = None,
    **fields: Any,
) -> Evaluation:
    """Six episodes of each candidate on `Counter`, with the goal 5, unless `fields` differ."""
    config = quick_config(**{"num_episodes": 6, "task": {"goal": 5}, **fields})
    return await evaluate(COUNTER, candidates, out, config, progress=progress, command=command)
