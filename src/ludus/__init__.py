"""Ludus turns an environment into a better language-model agent.

The names that an author or a user needs first. They are loaded when they are used, so that
`import ludus` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Action": "ludus.protocol.types",
    "Candidate": "ludus.evaluation.candidates",
    "CollectConfig": "ludus.rollout.config",
    "CurateConfig": "ludus.curation.config",
    "EnvClient": "ludus.client.env_client",
    "Episode": "ludus.data.episode",
    "Environment": "ludus.environment.base",
    "Image": "ludus.data.content",
    "LudusError": "ludus.errors",
    "Observation": "ludus.protocol.types",
    "Session": "ludus.client.session",
    "State": "ludus.protocol.types",
    "Text": "ludus.data.content",
    "ToolCall": "ludus.data.tool_schema",
    "ToolEnvironment": "ludus.environment.tool_environment",
    "ToolError": "ludus.errors",
    "agent": "ludus.policy.agent_factory:agent_from_spec",
    "collect": "ludus.rollout.collect",
    "collect_sync": "ludus.rollout.collect",
    "connect": "ludus.client.endpoint",
    "dpo": "ludus.train.offline",
    "episodes": "ludus.data.episode_reader",
    "evaluate_sync": "ludus.evaluation.pipeline",
    "grpo": "ludus.train.grpo.pipeline",
    "mix": "ludus.environment.mixture",
    "progress": "ludus.cli.display.collect_display",
    "sft": "ludus.train.offline",
    "training_progress": "ludus.cli.display.train_display",
    "tool": "ludus.environment.tools",
}

if TYPE_CHECKING:
    from ludus.cli.display.collect_display import progress
    from ludus.cli.display.train_display import training_progress
    from ludus.client.endpoint import connect
    from ludus.client.env_client import EnvClient
    from ludus.client.session import Session
    from ludus.curation import CurateConfig, curate
    from ludus.data.content import Image, Text
    from ludus.data.episode import Episode
    from ludus.data.episode_reader import episodes
    from ludus.data.tool_schema import ToolCall
    from ludus.environment.base import Environment
    from ludus.environment.mixture import mix
    from ludus.environment.tool_environment import ToolEnvironment
    from ludus.environment.tools import tool
    from ludus.errors import LudusError, ToolError
    from ludus.evaluation import Candidate, evaluate
    from ludus.evaluation.pipeline import evaluate_sync
    from ludus.policy.agent_factory import agent_from_spec as agent
    from ludus.protocol.types import Action, Observation, State
    from ludus.rollout.collect import collect, collect_sync
    from ludus.rollout.config import CollectConfig
    from ludus.train.grpo.pipeline import grpo
    from ludus.train.offline import dpo, sft

__all__ = [
    "Action",
    "Candidate",
    "CollectConfig",
    "CurateConfig",
    "EnvClient",
    "Environment",
    "Episode",
    "Image",
    "LudusError",
    "Observation",
    "Session",
    "State",
    "Text",
    "ToolCall",
    "ToolEnvironment",
    "ToolError",
    "agent",
    "collect",
    "collect_sync",
    "connect",
    "curate",
    "dpo",
    "episodes",
    "evaluate",
    "evaluate_sync",
    "grpo",
    "mix",
    "progress",
    "sft",
    "tool",
    "training_progress",
]


_STAGES = ("curate", "evaluate")
"""Packages that are called like the stage function they hold: see `ludus.data.stage_module`."""


def __getattr__(name: str) -> Any:
    if name in _STAGES:
        return importlib.import_module(f"ludus.{name}")
    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)
    raise AttributeError(f"module 'ludus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_STAGES])
