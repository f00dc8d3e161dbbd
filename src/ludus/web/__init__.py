"""The built pages of `frontend/`: HTML, scripts and styles as files of the package.

`make frontend` builds them; they are committed, so that an installation needs no Node.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file as it is sent to a browser."""

    content: bytes
    media_type: str

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


@cache
def list_files() -> tuple[str, ...]:
    """The names of the pages (`play.html`) and of their assets (`assets/play.js`)."""
    static = resources.files(__name__) / "static"
    pages = [file.name for file in static.iterdir() if file.name.endswith(".html")]
    assets = [f"assets/{file.name}" for file in (static / "assets").iterdir()]
    return tuple(sorted(pages + assets))


@cache
def load_file(name: str) -> WebFile | None:
    """A page or an asset by its name; None for any other name."""
    if name not in list_files():
        return None
    content = (resources.files(__name__) / "static" / name).read_bytes()
    return WebFile(content, _MEDIA_TYPES.get(name.rpartition(".")[2], "application/octet-stream"))


def security_headers(*, frame_ancestors: str = "'none'") -> dict[str, str]:
    """Response headers of every page and asset.

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
