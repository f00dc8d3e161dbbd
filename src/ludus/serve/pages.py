"""The pages of a server: the play page at `/`, the API reference at `/docs`, and their assets.

They are the same for every environment and need no token: a page asks for it, and reads the rest
from `/interface` and over a separate WebSocket session.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.routing import Route

from ludus.data.tool_schema import JsonObject
from ludus.environment.spec import EnvSpec, task_schema
from ludus.protocol.types import calls_by_name
from ludus.web import file_response, list_files, security_headers

_PAGES = {"/": "play.html", "/web": "play.html", "/docs": "api.html"}
"""OpenEnv's servers have their page at `/web`."""


@cache
def page_files() -> dict[str, str]:
    """The files of pages and assets by URL path."""
    assets = {f"/{name}": name for name in list_files() if name.startswith("assets/")}
    return {**_PAGES, **assets}


def add_page_routes(app: FastAPI, env_spec: EnvSpec, *, allow_origins: Sequence[str]) -> None:
    """Add the pages; sites in `allow_origins` may show them in a frame."""
    ancestors = " ".join(("'self'", *(each for each in allow_origins if each != "null")))
    headers = security_headers(frame_ancestors=ancestors)

    async def page(request: Request) -> Response:
        return file_response(request, page_files()[request.scope["path"]], headers)

    app.router.routes += [Route(path, page, methods=["GET"]) for path in page_files()]

    @app.get("/interface")
    async def interface() -> JsonObject:
        """What the environment is, its tools, and the JSON schema of the arguments of a reset.

        The tools are as in MCP's `tools/list`, or null if they depend on the session.
        """
        tools = env_spec.tools
        return {
            "id": env_spec.id,
            "description": env_spec.description,
            "documentation": env_spec.metadata.readme_content or "",
            "tools": None if tools is None else [tool.model_dump(by_alias=True) for tool in tools],
            "calls_by_name": calls_by_name(env_spec.action_schema, tools or ()),
            "task_schema": task_schema(env_spec),
        }
