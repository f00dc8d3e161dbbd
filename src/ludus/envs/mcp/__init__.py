"""Any MCP server as an environment (extra `mcp`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.envs.lazy_names import lazy_names

if TYPE_CHECKING:
    from ludus.envs.mcp.environment import Mcp, McpHttp, McpHttps
    from ludus.envs.mcp.tasks import Attempt, PastCall

__all__ = ["Attempt", "Mcp", "McpHttp", "McpHttps", "PastCall"]

__getattr__ = lazy_names(
    __name__,
    {
        "Attempt": "tasks",
        "Mcp": "environment",
        "McpHttp": "environment",
        "McpHttps": "environment",
        "PastCall": "tasks",
    },
    extra="mcp",
    libraries=("mcp",),
)
