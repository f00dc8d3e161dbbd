"""Attempts as figures, and small evaluations of the tests' own worlds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ludus.agents.agent import Agent
from ludus.agents.scripted import ScriptedAgent, ScriptedReply
from ludus.data.tool_schema import ToolCall
from ludus.evaluation import Candidate, Evaluation, evaluate
from ludus.evaluation.attempts import Attempt
from ludus.rollout import CollectConfig
from ludus.rollout.options import RolloutOptions

COUNTER = "world:Counter"
QUICK = RolloutOptions(max_attempts=1, retry_delay=0.001, reconnect_timeout=5.0)


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


def adding(number: object) -> ToolCall:
    return ToolCall(name="add", arguments={"number": number})


def scripted(label: str, *script: ScriptedReply) -> Candidate:
    return Candidate(label, lambda: ScriptedAgent(*script))


def playing(label: str, agent: Agent) -> Candidate:
    return Candidate(label, lambda: agent)


async def evaluated(out: Path, candidates: Sequence[Candidate], **settings: Any) -> Evaluation:
    """Candidates on `Counter`: the goal is 5 unless a task says otherwise."""
    episodes = settings.pop("episodes", 6)
    job = settings.pop("job", None) or CollectConfig(
        COUNTER, episodes, task={"goal": 5}, seed=999, group_size=settings.pop("group_size", 1)
    )
    return await evaluate(job, candidates, out, **{"options": QUICK, **settings})
