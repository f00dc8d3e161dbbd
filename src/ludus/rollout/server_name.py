"""Whether a server serves what was asked for, and what its episodes are called."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ludus.client.remote import fetch_any
from ludus.client.socket import Socket
from ludus.environment.registry import registered
from ludus.errors import BadSetting, ConnectFailed

_SUFFIXES = ("env", "environment", "server")


async def names_at(url: str, token: str | None = None) -> list[str]:
    """What a server calls its environment, its own name first; empty where it does not say.

    OpenEnv's servers have two names, that of the class and one that the author chose:
    `ReasoningGymEnvironment` and `reasoning_gym_env`.
    """
    socket = Socket(url, token=token)
    names: list[str] = []
    for path in ("/metadata", "/list_environments"):
        try:
            reply = await fetch_any(socket, path)
        except ConnectFailed:
            continue
        found = reply.get("name") if isinstance(reply, dict) else reply
        found = found if isinstance(found, list) else [found]
        names += [name for name in found if isinstance(name, str) and name and name not in names]
    return names


def name_to_record(
    spec: str,
    base_url: str,
    served: Sequence[str],
    *,
    has_variants: bool,
    warn: Callable[[str], None],
) -> str:
    """What episodes that are played on a server under this spec are called.

    Another environment that this machine knows is refused. A name that is unknown here may be
    another name of the same environment: episodes then bear that name. `has_variants` says that a
    reset can ask the server for the spec's variant.
    """
    if not served:
        return spec
    same = next((name for name in served if _keys(name) & _keys(spec)), None)
    if same is None:
        known = {_key(name) for name in registered()}
        if other := next((name for name in served if _keys(name) & known), None):
            raise _refusal(base_url, other, spec)
        warn(
            f"{base_url} serves {served[0]!r}, not {spec!r}: "
            f"the episodes are recorded as {served[0]!r}."
        )
        return served[0]
    asked, offered = spec.partition(":")[2], same.partition(":")[2]
    if asked and offered and asked != offered and not has_variants:
        raise _refusal(base_url, same, spec)
    return same if offered and not asked else spec


def _refusal(base_url: str, name: str, spec: str) -> BadSetting:
    return BadSetting(
        f"{base_url} serves {name!r}, not {spec!r}. "
        f"Ask for {name!r}, or give the address of a server of {spec!r}."
    )


def _keys(name: str) -> set[str]:
    """What a name may be known by: `name` of `name:variant`, `Class` of `package.module:Class`."""
    base, _, rest = name.partition(":")
    return {_key(base), _key(rest)} if rest[:1].isupper() else {_key(base)}


def _key(name: str) -> str:
    """The words of a name: `somebody/reasoning-gym`, `ReasoningGymEnvironment` -> reasoninggym."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.rpartition("/")[2])
    words = re.findall("[a-z0-9]+", spaced.lower())
    while len(words) > 1 and words[-1] in _SUFFIXES:
        words.pop()
    return "".join(words)
