"""Any MCP server as an environment (extra `mcp`).

The names are loaded on first use, so that a missing extra is reported by name.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from ludus.errors import MissingExtra

if TYPE_CHECKING:
    from ludus.envs.mcp.environment import Mcp, McpHttp, McpHttps
    from ludus.envs.mcp.scoring import Attempt, PastCall

__all__ = ["Attempt", "Mcp", "McpHttp", "McpHttps", "PastCall"]

_HOMES = {"Attempt": "scoring", "PastCall": "scoring"}
"""The modules of the names; the others are in `environment`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec("mcp") is None:
        raise MissingExtra.of("mcp", "Playing the tools of an MCP server")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'environment')}"), name)
