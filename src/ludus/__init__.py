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
    "Environment": "ludus.environment.base",
    "Image": "ludus.data.content",
    "LudusError": "ludus.errors",
    "Observation": "ludus.protocol.types",
    "Session": "ludus.client.session",
    "State": "ludus.protocol.types",
    "Text": "ludus.data.content",
    "ToolCall": "ludus.data.tools",
    "ToolEnvironment": "ludus.environment.tool_environment",
    "ToolError": "ludus.errors",
    "connect": "ludus.client.endpoint",
    "tool": "ludus.environment.tools",
}

if TYPE_CHECKING:
    from ludus.client.endpoint import connect
    from ludus.client.env_client import EnvClient
    from ludus.client.session import Session
    from ludus.data.content import Image, Text
    from ludus.data.tools import ToolCall
    from ludus.environment.base import Environment
    from ludus.environment.tool_environment import ToolEnvironment
    from ludus.environment.tools import tool
    from ludus.errors import LudusError, ToolError
    from ludus.protocol.types import Action, Observation, State

__all__ = [
    "Action",
    "EnvClient",
    "Environment",
    "Image",
    "LudusError",
    "Observation",
    "Session",
    "State",
    "Text",
    "ToolCall",
    "ToolEnvironment",
    "ToolError",
    "connect",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ludus' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
