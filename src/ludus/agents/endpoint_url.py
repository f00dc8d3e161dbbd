"""Where a model's API is: the address that a user gives, made sure of before anything is sent."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from ludus.errors import ConfigError
from ludus.protocol.loopback import is_loopback

_ADVICE = "Give one like http://localhost:8000/v1."


def base_url(endpoint: str) -> str:
    """The address under which the API's routes lie.

    An endpoint without a path gets `/v1`, which is where nearly all servers have them. One with
    credentials, a query or a fragment is refused, and not repeated: it may hold a secret.
    """
    endpoint = endpoint.strip()
    parts = _split_url(endpoint)
    if parts.username is not None or parts.password is not None or "@" in parts.netloc:
        raise ConfigError(f"An endpoint holds no credentials; a key has its own setting. {_ADVICE}")
    if parts.query or parts.fragment or endpoint[-1] in "?#":
        raise ConfigError(f"An endpoint has no query (?) and no fragment (#). {_ADVICE}")
    path = parts.path.rstrip("/") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"


def _split_url(endpoint: str) -> SplitResult:
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        parts, host = SplitResult("", "", "", "", ""), None
    odd = not endpoint.isprintable() or " " in endpoint
    if parts.scheme not in ("http", "https") or not host or odd:
        shown = "" if any(mark in endpoint for mark in "@?#") else f" {endpoint!r}"
        raise ConfigError(
            f"The endpoint{shown} is no address of the form http(s)://HOST. {_ADVICE}"
        )
    return parts


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for this address; never one for this machine itself.

    Asked once: aiohttp's own `trust_env` looks it up anew, in a thread, for every request.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or host in ("0.0.0.0", "::") or proxy_bypass(parts.netloc):
        return None
    proxy = getproxies().get(parts.scheme)
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy
