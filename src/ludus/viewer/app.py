"""The web application of the viewer, and its server: the page, and JSON under `api/`.

Every path starts with a random token: other users of the machine, and pages of other sites, do not
know it. Host and Origin are checked as by `ludus serve`.
"""

from __future__ import annotations

import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ludus.data.stage_output import StageOutput
from ludus.errors import ConfigError, LudusError, NameFlags, RunError
from ludus.serve.access import AccessMiddleware, AccessPolicy
from ludus.serve.config import ServeConfig
from ludus.serve.listening import InterruptibleServer, bind_socket
from ludus.viewer.dataset_rows import forbid_downloads
from ludus.viewer.episode_queries import EpisodeFilter, describe_episode, read_fields
from ludus.viewer.library import Library
from ludus.viewer.overview import compare_entries, describe_entry
from ludus.web import file_response, security_headers

_MAX_BODY_BYTES = 4 << 20
_MAX_PAGE_ROWS = 500


def create_app(library: Library, token: str) -> ASGIApp:
    """Create the application. All routes are below `/TOKEN/`."""

    async def send_file(request: Request) -> Response:
        name = request.path_params["name"] or "view.html"
        return file_response(request, name, security_headers())

    async def answer(request: Request) -> Response:
        name, query = request.path_params["name"], request.query_params
        return await _respond(lambda: answer_query(library, name, query))

    routes = [
        Route("/api/{name}", answer),
        Route("/{name:path}", send_file),
    ]
    access = AccessPolicy(ServeConfig())
    return Starlette(
        routes=[Mount("/{token}", routes=routes)],
        middleware=[
            Middleware(AccessMiddleware, access=access, max_body=_MAX_BODY_BYTES),
            Middleware(TokenMiddleware, token=token),
        ],
    )


class TokenMiddleware:
    """Answers 404 to every path that does not start with the token."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given, slash, _ = scope["path"].removeprefix("/").partition("/")
            if not secrets.compare_digest(given.encode(), self._token) or not slash:
                response = Response(
                    "Not found. Open the address that `ludus view` printed.",
                    404,
                    security_headers(),
                )
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


async def _respond(compute: Callable[[], object]) -> Response:
    headers = {**security_headers(), "Cache-Control": "no-store"}
    try:
        body, status = to_json(await run_in_threadpool(compute), inf_nan_mode="null"), 200
    except LudusError as error:
        body, status = to_json({"detail": str(error)}), 400
    except OSError as error:  # As for a name that is too long for the file system.
        detail = f"{str(error.filename)[:100]} cannot be used: {error.strerror}."
        body, status = to_json({"detail": detail}), 400
    return Response(body, status, headers, media_type="application/json")


def _number(query: QueryParams, name: str, default: int | None = None) -> int:
    text = query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise ConfigError(f"`{name}` must be a number from 0, got {text!r}.")
    return int(text)


def _page(query: QueryParams) -> tuple[int, int]:
    return _number(query, "offset", 0), min(_number(query, "limit", 100), _MAX_PAGE_ROWS)


def answer_query(library: Library, name: str, query: QueryParams) -> object:
    """Answer `GET api/NAME`."""

    def find(parameter: str) -> StageOutput:
        return library.find(query.get(parameter, ""))

    match name:
        case "state":
            return library.describe()
        case "entry":
            return describe_entry(find("key"), library.index, library.queries, library.name_flags)
        case "compare":
            return compare_entries(find("first"), find("second"))
        case "episodes":
            wanted = EpisodeFilter(
                runs=tuple(query.getlist("run")),
                where=query.get("where", ""),
                search=query.get("search", ""),
                stop_reason=query.get("stop", ""),
                group_id=query.get("group", ""),
                sort=query.get("sort", "line"),
                descending=query.get("descending") == "true",
            )
            revision = _number(query, "revision") if "revision" in query else None
            return library.queries.page(wanted, *_page(query), revision)
        case "episode":
            line = _number(query, "line")
            return describe_episode(find("run"), line, library.index, library.queries)
        case "tokens":
            entry = find("run")
            fields = read_fields(library.index, entry.shown_path, _number(query, "line"))
            tokens, agent = fields.get("tokens"), fields.get("agent")
            if not isinstance(tokens, dict):
                raise RunError("This episode has no tokens: only local policies keep them.")
            model = query.get("model") or str(agent.get("model") if isinstance(agent, dict) else "")
            if not query.get("model") and (entry.path / "tokenizer.json").is_file():
                model = str(entry.path)
            texts = library.tokenizers.split_tokens(model, tokens["ids"])
            return {**tokens, "model": model, "texts": texts}
        case "rows":
            return library.rows.page(find("dataset"), query.get("split", "train"), *_page(query))
        case "row":
            split = query.get("split", "train")
            return library.rows.read(find("dataset"), split, _number(query, "number"))
    raise ConfigError(f"There is no api/{name[:100]}.")


HOST = "127.0.0.1"


def view(
    folders: Sequence[Path],
    *,
    port: int = 0,
    on_ready: Callable[[str], None] = lambda address: None,
    name_flags: NameFlags = lambda text, command: text,
) -> None:
    """Serve the viewer of `folders`; `on_ready` is called with its address.

    `name_flags` replaces arguments in advice by flags of a command.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"`port` must be between 0 and 65535, got {port}.")
    forbid_downloads()
    with (
        bind_socket(HOST, port) as bound,
        Library(folders, name_flags=name_flags) as library,
    ):
        server = build_viewer_server(library, bound, on_ready)
        server.run(sockets=[bound])
    if server.force_exit:
        signal.raise_signal(signal.SIGINT)


class ViewServer(InterruptibleServer):
    """A server of which the second Ctrl-C ends the process, also while a request hangs.

    Python waits at its end for the threads of requests, such as one that reads from a pipe.
    """

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def build_viewer_server(
    library: Library, bound: socket.socket, on_ready: Callable[[str], None]
) -> ViewServer:
    """Build the server, with a new token."""
    token = secrets.token_urlsafe(24)
    address = f"http://{HOST}:{bound.getsockname()[1]}/{token}/"
    config = uvicorn.Config(
        create_app(library, token),
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    return ViewServer(config, lambda: on_ready(address))
