"""URLs of model APIs: validation, and the proxy to use."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from ludus.errors import ConfigError
from ludus.protocol.loopback import is_loopback

_EXAMPLE = "Example: http://localhost:8000/v1."


def base_url(endpoint: str) -> str:
    """The URL under which the API's routes are.

    An endpoint without a path gets `/v1`, as nearly all servers have it. One with credentials, a
    query or a fragment is refused, and not shown in the error: it may hold a secret.
    """
    endpoint = endpoint.strip()
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = SplitResult("", "", "", "", ""), None
    unprintable = not endpoint.isprintable() or " " in endpoint
    if parts.scheme not in ("http", "https") or not host or unprintable:
        shown = "" if any(mark in endpoint for mark in "@?#") else f" {endpoint!r}"
        raise ConfigError(f"The endpoint{shown} is not a URL like http(s)://HOST. {_EXAMPLE}")
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise ConfigError(
            f"An endpoint must not hold credentials; set the API key instead. {_EXAMPLE}"
        )
    if parts.query or parts.fragment or endpoint[-1] in "?#":
        raise ConfigError(f"An endpoint must not have a query (?) or a fragment (#). {_EXAMPLE}")
    path = parts.path.rstrip("/") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


def endpoint_proxy(endpoint: str) -> str | None:
    """The proxy that environment variables name for an API's URL; None for this machine itself.

    Called once per session: aiohttp's `trust_env` looks it up for every request, in a thread.
    """
    parts = urlsplit(endpoint)
    host = parts.hostname or ""
    if is_loopback(host) or host in ("0.0.0.0", "::") or proxy_bypass(parts.netloc):
        return None
    proxy = getproxies().get(parts.scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy
