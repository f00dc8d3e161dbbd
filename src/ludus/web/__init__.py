"""The built pages of `frontend/`: HTML, scripts and styles as files of the package.

`make frontend` builds them; they are committed, so that an installation needs no Node.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


@cache
def list_files() -> tuple[str, ...]:
    """The names of the pages (`play.html`) and of their assets (`assets/play.js`)."""
    static = resources.files(__name__) / "static"
    pages = [file.name for file in static.iterdir() if file.name.endswith(".html")]
    assets = [f"assets/{file.name}" for file in (static / "assets").iterdir()]
    return tuple(sorted(pages + assets))


@cache
def _load_file(name: str) -> tuple[bytes, str]:
    """The content of a page or an asset, and its entity tag."""
    content = (resources.files(__name__) / "static" / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def file_response(request: Request, name: str, headers: dict[str, str]) -> Response:
    """A page or asset by name; 304 if the browser has it, 404 for an unknown name."""
    from starlette.responses import Response

    if name not in list_files():
        return Response("Not found.", 404, headers)
    content, etag = _load_file(name)
    tagged = {**headers, "ETag": etag}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=tagged)
    return Response(content, media_type=_MEDIA_TYPES[name.rpartition(".")[2]], headers=tagged)


def security_headers(*, frame_ancestors: str = "'none'") -> dict[str, str]:
    """The response headers of every page and asset.

    The content security policy is the second line of defence: pages show the text of environments
    and models as text, and even injected markup could neither run a script nor load anything from
    another host.
    """
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors {frame_ancestors}"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # File names have no hashes: browsers ask each time, and get 304 by the entity tag.
        "Cache-Control": "no-cache",
    }
