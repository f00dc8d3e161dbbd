"""Exact versions of installed packages and of everything that they need."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ludus.errors import ConfigError

_LINUX = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux"}
"""The markers of the machine on which the packages will be installed."""


def pin_requirements(requirements: Iterable[str], *, exclude: Iterable[str] = ()) -> list[str]:
    """Lines `name==version` for these packages and all that they need, in the installed versions.

    `exclude` are packages that are not listed, although what they need is. Raises ConfigError for a
    package that is not installed here.
    """
    excluded = {canonicalize_name(name) for name in exclude}
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    pending = [_parse_requirement(text) for text in requirements]
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            installed = _find_installed(name)
            # A local version, such as 2.9.1+cpu, is not on PyPI.
            versions[name] = installed.version.partition("+")[0]
            for needed in map(Requirement, installed.requires or ()):
                if needed.marker is None or needed.marker.evaluate({**_LINUX, "extra": extra}):
                    pending.append(needed)
    return [f"{name}=={versions[name]}" for name in sorted(versions) if name not in excluded]


def _parse_requirement(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise ConfigError(f"{text!r} is not the name of a package.") from None


def _find_installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise ConfigError(
            f"{name} is not installed here, so that its version cannot be pinned. "
            f"Install it: pip install {name}"
        ) from None
