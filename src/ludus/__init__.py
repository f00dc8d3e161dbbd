"""Ludus turns an environment into a better language-model agent.

This module exports the public API. Names are imported on first use: `import ludus` is cheap.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# OpenMP reads it when torch is loaded: on a CPU, threads that wait for one another sleep. Otherwise
# they spin, and beside other work they burn the time that the thread they wait for needs. Intel's
# and LLVM's OpenMP, and MKL on any of them, read it as well.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_HOMES = {
    "Action": "ludus.protocol.types",
    "Candidate": "ludus.evaluation.candidates",
    "CollectConfig": "ludus.rollout.config",
    "CurateConfig": "ludus.curation.config",
    "EnvClient": "ludus.client.env_client",
    "Environment": "ludus.environment.base",
    "Episode": "ludus.data.episode",
    "EvalConfig": "ludus.evaluation.config",
    "GRPOConfig": "ludus.train.grpo.grpo_config",
    "Image": "ludus.data.messages",
    "Judge": "ludus.scoring.judge",
    "Lora": "ludus.train.config",
    "LudusError": "ludus.errors",
    "Observation": "ludus.protocol.types",
    "RescoreConfig": "ludus.scoring.config",
    "Rubric": "ludus.environment.rubric",
    "RubricPart": "ludus.environment.rubric",
    "Session": "ludus.client.session",
    "State": "ludus.protocol.types",
    "Text": "ludus.data.messages",
    "ToolCall": "ludus.data.tool_schema",
    "ToolEnvironment": "ludus.environment.tool_environment",
    "ToolError": "ludus.errors",
    "TrainConfig": "ludus.train.config",
    "TutorConfig": "ludus.tutoring.config",
    "agent": "ludus.policy.agent_factory:agent_from_spec",
    "collect": "ludus.rollout.collect",
    "collect_sync": "ludus.rollout.collect",
    "connect": "ludus.client.endpoint",
    "curate": "ludus.curation.pipeline",
    "dpo": "ludus.train.offline",
    "episodes": "ludus.data.episode_reader",
    "evaluate": "ludus.evaluation.pipeline",
    "evaluate_sync": "ludus.evaluation.pipeline",
    "grpo": "ludus.train.grpo.pipeline",
    "mix": "ludus.environment.mixture",
    "progress": "ludus.cli.display.run_display",
    "report": "ludus.reporting.pipeline",
    "rescore": "ludus.scoring.rescore",
    "rescore_sync": "ludus.scoring.rescore",
    "sft": "ludus.train.offline",
    "tool": "ludus.environment.tools",
    "training_progress": "ludus.cli.display.train_display",
    "tutor": "ludus.tutoring.pipeline",
}
"""The module of each public name, with the name it has there if that differs."""

if TYPE_CHECKING:
    from ludus.cli.display.run_display import progress
    from ludus.cli.display.train_display import training_progress
    from ludus.client.endpoint import connect
    from ludus.client.env_client import EnvClient
    from ludus.client.session import Session
    from ludus.curation.config import CurateConfig
    from ludus.curation.pipeline import curate
    from ludus.data.episode import Episode
    from ludus.data.episode_reader import episodes
    from ludus.data.messages import Image, Text
    from ludus.data.tool_schema import ToolCall
    from ludus.environment.base import Environment
    from ludus.environment.mixture import mix
    from ludus.environment.rubric import Rubric, RubricPart
    from ludus.environment.tool_environment import ToolEnvironment
    from ludus.environment.tools import tool
    from ludus.errors import LudusError, ToolError
    from ludus.evaluation.candidates import Candidate
    from ludus.evaluation.config import EvalConfig
    from ludus.evaluation.pipeline import evaluate, evaluate_sync
    from ludus.policy.agent_factory import agent_from_spec as agent
    from ludus.protocol.types import Action, Observation, State
    from ludus.reporting.pipeline import report
    from ludus.rollout.collect import collect, collect_sync
    from ludus.rollout.config import CollectConfig
    from ludus.scoring.config import RescoreConfig
    from ludus.scoring.judge import Judge
    from ludus.scoring.rescore import rescore, rescore_sync
    from ludus.train.config import Lora, TrainConfig
    from ludus.train.grpo.grpo_config import GRPOConfig
    from ludus.train.grpo.pipeline import grpo
    from ludus.train.offline import dpo, sft
    from ludus.tutoring.config import TutorConfig
    from ludus.tutoring.pipeline import tutor

__all__ = [
    "Action",
    "Candidate",
    "CollectConfig",
    "CurateConfig",
    "EnvClient",
    "Environment",
    "Episode",
    "EvalConfig",
    "GRPOConfig",
    "Image",
    "Judge",
    "Lora",
    "LudusError",
    "Observation",
    "RescoreConfig",
    "Rubric",
    "RubricPart",
    "Session",
    "State",
    "Text",
    "ToolCall",
    "ToolEnvironment",
    "ToolError",
    "TrainConfig",
    "TutorConfig",
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
    "report",
    "rescore",
    "rescore_sync",
    "sft",
    "tool",
    "training_progress",
    "tutor",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ludus' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
