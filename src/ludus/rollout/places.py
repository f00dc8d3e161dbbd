"""Where the environments of a run are: in this process, or behind addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ludus.client.endpoint import Endpoint, connect
from ludus.client.remote import fetch_json
from ludus.client.socket import Socket
from ludus.data.tools import JsonObject
from ludus.environment.mix import Mix
from ludus.environment.registry import find, is_url
from ludus.errors import BadSetting, ConnectFailed, LudusError


@dataclass(frozen=True)
class Place:
    """One environment of a run."""

    name: str
    """What episodes call it."""
    endpoint: Endpoint
    variant_task: JsonObject = field(default_factory=dict)
    """Arguments of reset that ask for the variant."""


async def find_places(
    environments: Mix, *, base_url: str | None = None, token: str | None = None
) -> dict[str, Place]:
    """Every environment of a mix, by its spec. `base_url` is where to find a single one."""
    if base_url is not None and len(environments.specs) > 1:
        raise BadSetting("--base-url is the address of one environment; a mix has several.")
    if base_url is not None and not is_url(base_url):
        raise BadSetting(f"--base-url wants an address such as http://localhost:8000: {base_url}")
    for address in (base_url, *environments.specs):
        if address is not None and is_url(address) and "@" in urlsplit(address).netloc:
            raise BadSetting(
                "An address stands in files that are shared: leave user and password out of it, "
                "and use --token."
            )
    return {spec: await _place(spec, base_url, token) for spec in environments.specs}


async def _place(spec: str, base_url: str | None, token: str | None) -> Place:
    if is_url(spec):
        return Place(await _name_at(spec, token), connect(spec, token=token))
    if base_url is None:
        endpoint = connect(spec)
        return Place(spec, endpoint, _variant_task(spec))
    return Place(spec, connect(base_url, token=token), _variant_task(spec))


def _variant_task(spec: str) -> JsonObject:
    name, _, variant = spec.partition(":")
    if not variant:
        return {}
    try:
        # Only the class is needed: a server's variants may be ones that are not installed here.
        cls = find(name).cls
    except LudusError:
        return {}
    return dict(cls.variant_task(variant)) if hasattr(cls, "variant_task") else {}


async def _name_at(url: str, token: str | None) -> str:
    """What the server calls its environment; a server that does not say is called by its URL."""
    try:
        name = (await fetch_json(Socket(url, token=token), "/metadata")).get("name")
    except ConnectFailed:
        return url
    return name if isinstance(name, str) and name else url
