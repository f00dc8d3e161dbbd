"""Serve an environment over OpenEnv's protocol: FastAPI app, sessions, MCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ludus.errors import MissingExtra

if TYPE_CHECKING:
    from ludus.serve.openenv_app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    if name != "create_app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from ludus.serve.openenv_app import create_app
    except ModuleNotFoundError as error:
        raise MissingExtra.of("serve", "Serving") from error
    return create_app
