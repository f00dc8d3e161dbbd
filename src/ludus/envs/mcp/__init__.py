"""Any MCP server as an environment (extra `mcp`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.envs import lazy_environment
from ludus.envs.mcp.tasks import Attempt, PastCall

if TYPE_CHECKING:
    from ludus.envs.mcp.environment import Mcp, McpHttp, McpHttps

__all__ = ["Attempt", "Mcp", "McpHttp", "McpHttps", "PastCall"]

__getattr__ = lazy_environment(
    __name__, "Mcp", "McpHttp", "McpHttps", extra="mcp", libraries=("mcp",)
)
