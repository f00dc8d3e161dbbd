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
    "EnvClient": "ludus.client.env_client",
    "Episode": "ludus.data.episode",
    "Environment": "ludus.environment.base",
    "Image": "ludus.data.content",
    "Job": "ludus.rollout.job",
    "LudusError": "ludus.errors",
    "Observation": "ludus.protocol.types",
    "Session": "ludus.client.session",
    "State": "ludus.protocol.types",
    "Text": "ludus.data.content",
    "ToolCall": "ludus.data.tools",
    "ToolEnvironment": "ludus.environment.tool_environment",
    "ToolError": "ludus.errors",
    "collect": "ludus.rollout.start",
    "connect": "ludus.client.endpoint",
    "episodes": "ludus.data.lines",
    "mix": "ludus.environment.mix",
    "tool": "ludus.environment.tools",
}

if TYPE_CHECKING:
    from ludus.client.endpoint import connect
    from ludus.client.env_client import EnvClient
    from ludus.client.session import Session
    from ludus.data.content import Image, Text
    from ludus.data.episode import Episode
    from ludus.data.lines import episodes
    from ludus.data.tools import ToolCall
    from ludus.environment.base import Environment
    from ludus.environment.mix import mix
    from ludus.environment.tool_environment import ToolEnvironment
    from ludus.environment.tools import tool
    from ludus.errors import LudusError, ToolError
    from ludus.protocol.types import Action, Observation, State
    from ludus.rollout.job import Job
    from ludus.rollout.start import collect

__all__ = [
    "Action",
    "EnvClient",
    "Environment",
    "Episode",
    "Image",
    "Job",
    "LudusError",
    "Observation",
    "Session",
    "State",
    "Text",
    "ToolCall",
    "ToolEnvironment",
    "ToolError",
    "collect",
    "connect",
    "episodes",
    "mix",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ludus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
