"""Access control: checks the Host, Origin, token, content type and size of requests.

The Host and Origin checks protect a server without a token from web pages. A page of another site
can make the browser send requests to 127.0.0.1; the browser then names that site in `Origin`. With
DNS rebinding, a site can make its own name resolve to 127.0.0.1: to the browser that is the same
origin, but `Host` still holds the name. Clients that are not browsers send no Origin.

A page cannot set the headers of a WebSocket upgrade. It sends its token as a subprotocol instead,
which neither appears in logs, as a query would, nor is sent by itself, as a cookie would be.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ludus.protocol.loopback import is_loopback
from ludus.serve.config import ListenConfig
from ludus.serve.pages import page_files

SUBPROTOCOL = "ludus"
"""The subprotocol that the server selects, for clients that offer any."""
_TOKEN_SUBPROTOCOL = "ludus.token."
"""Offered beside `ludus`, followed by the token in URL-safe base64 without padding."""
FROM_WORKER_KEY = "ludus_from_worker"
"""Set in the state of a connection from another worker, which has checked the request already."""


def is_forwarded(scope: Scope) -> bool:
    """Whether another worker forwarded this request, and has checked it."""
    return FROM_WORKER_KEY in (scope.get("state") or {})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused."""

    status: HTTPStatus
    detail: str

    def to_response(self) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        return JSONResponse({"detail": self.detail}, self.status, headers=headers)

    def to_bytes(self) -> bytes:
        """The complete HTTP response to a refused access; the connection is closed after it."""
        response = self.to_response()
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}".encode()]
        lines += [name + b": " + value for name, value in response.raw_headers]
        return b"\r\n".join([*lines, b"connection: close", b"", bytes(response.body)])


class AccessPolicy:
    """Decides which requests are accepted, as the server's config says."""

    def __init__(self, config: ListenConfig) -> None:
        self._token = f"Bearer {config.token}".encode() if config.token else None
        self._limits_hosts = bool(config.allow_hosts)
        self._bound_to_loopback = is_loopback(config.host)
        self._hosts = {parse_hostname(host) for host in (config.host, *config.allow_hosts)}
        self._origins = {origin.lower() for origin in config.allow_origins}

    def check(self, scope: Scope) -> Refusal | None:
        """Why an HTTP request or upgrade is refused; None if it is accepted."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        refusal = None if is_forwarded(scope) else self._check_host_and_origin(scope, headers)
        if refusal is not None:
            return refusal
        has_token = self._token is None or secrets.compare_digest(
            read_authorization(headers), self._token
        )
        is_public = scope["path"] == "/health" or scope["path"] in page_files()
        if not has_token and not (is_public and scope["type"] == "http"):
            return Refusal(
                HTTPStatus.UNAUTHORIZED,
                "This server requires a token: send 'Authorization: Bearer TOKEN'.",
            )
        if scope["type"] == "websocket" or scope["method"] not in ("POST", "PUT", "PATCH"):
            return None
        # A page may post forms and plain text without a preflight.
        kind = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip()
        if not kind or kind.lower().endswith(("/json", "+json")):
            return None
        return Refusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The content type {kind[:100]!r} is not supported: send "
            "'Content-Type: application/json'.",
        )

    def _check_host_and_origin(
        self, scope: Scope, headers: Mapping[bytes, bytes]
    ) -> Refusal | None:
        hosts = {value.decode("latin-1") for name, value in scope["headers"] if name == b"host"}
        for host in hosts:
            if not self._is_allowed_host(parse_hostname(host), scope):
                return Refusal(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    f"This server does not accept the host {host[:100]!r}. To accept it, start the "
                    "server with `allow_hosts` or LUDUS_ALLOW_HOSTS.",
                )
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if "*" in self._origins or origin in self._origins:
            return None
        own_origin = {origin.partition("://")[2]} == {host.lower() for host in hosts}
        if origin and not own_origin:
            return Refusal(
                HTTPStatus.FORBIDDEN,
                f"This server does not accept the origin {origin[:100]!r}. "
                "To accept it, start the server with `allow_origins`.",
            )
        # A page of another site sends no Origin with the GET of an image or a script. Links to this
        # server are allowed.
        cross_site = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
        destination = headers.get(b"sec-fetch-dest")
        if destination == b"iframe" and self._origins and scope["path"] in page_files():
            return None  # The headers of the page say which sites may frame it.
        if not origin and cross_site and destination != b"document":
            return Refusal(HTTPStatus.FORBIDDEN, "This server accepts no cross-site requests.")
        return None

    def _is_allowed_host(self, host: str, scope: Scope) -> bool:
        # Many tutorials write 0.0.0.0 for this machine, and DNS rebinding cannot make a page have
        # this host.
        if is_loopback(host) or host in ("0.0.0.0", "::"):
            return True
        if host in self._hosts or "*" in self._hosts:
            return True
        # Under another ASGI server, only the connection tells to which address it is bound.
        server = scope.get("server")
        over_loopback = self._bound_to_loopback and (server is None or is_loopback(server[0]))
        if not over_loopback and not self._limits_hosts:
            return True
        return any(known[:2] == "*." and host.endswith(known[1:]) for known in self._hosts)


def read_authorization(headers: Mapping[bytes, bytes]) -> bytes:
    """Read the Authorization header, or build it from the token among the subprotocols."""
    if header := headers.get(b"authorization"):
        return header
    offered = headers.get(b"sec-websocket-protocol", b"").decode("latin-1").split(",")
    for name in map(str.strip, offered):
        if name.startswith(_TOKEN_SUBPROTOCOL):
            encoded = name.removeprefix(_TOKEN_SUBPROTOCOL)
            try:
                return b"Bearer " + base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
            except binascii.Error:
                break
    return b""


def select_subprotocol(headers: Mapping[bytes, bytes]) -> str | None:
    """Select Ludus's subprotocol if the browser offered it: the reply must name an offered one."""
    offered = headers.get(b"sec-websocket-protocol", b"").decode("latin-1").split(",")
    return SUBPROTOCOL if SUBPROTOCOL in map(str.strip, offered) else None


def parse_hostname(netloc: str) -> str:
    """The host name in a Host header, without the port."""
    netloc = netloc.strip().lower()
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0]
    return netloc.rstrip(".") if netloc.count(":") > 1 else netloc.partition(":")[0].rstrip(".")


class AccessMiddleware:
    """Applies the policy to every request, and limits the size of its body."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: AccessPolicy,
        max_body: int,
        to_response: Callable[[Refusal], Response] = Refusal.to_response,
    ) -> None:
        self._app, self._access, self._max_body = app, access, max_body
        self._to_response = to_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body:
                raise HTTPException(413, f"The body is larger than {self._max_body} bytes.")
            return message

        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif (refusal := self._access.check(scope)) is None:
            is_http = scope["type"] == "http"
            await self._app(scope, receive_limited if is_http else receive, send)
        elif scope["type"] == "http":
            await self._to_response(refusal)(scope, receive, send)
        else:
            # Upgrades get here only on other ASGI servers; see `ws_fast_path`.
            await receive()
            await send({"type": "websocket.close", "code": 1008})


def add_access_middleware(
    app: FastAPI,
    access: AccessPolicy,
    *,
    max_body: int,
    allow_origins: Sequence[str],
    session_header: str,
    to_response: Callable[[Refusal], Response] = Refusal.to_response,
) -> None:
    """Apply the policy to an app. Pages of allowed origins can read the session's header."""
    app.add_middleware(AccessMiddleware, access=access, max_body=max_body, to_response=to_response)
    if allow_origins:
        # Added last, so that it runs first: a preflight request has no token.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=allow_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[session_header],
        )
