"""Installed packages: the requirements of Ludus, and which of its extras are complete."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from packaging.requirements import Requirement

from ludus.cli.installation.findings import Finding
from ludus.data.run_folder import DISTRIBUTION

RELEVANT_PACKAGES = (
    *("torch", "transformers", "trl", "accelerate", "peft", "datasets", "vllm"),
    *("openenv", "reasoning-gym", "huggingface-hub"),
)
"""Packages whose versions decide what a run does; `ludus --version` prints them."""


def check_python() -> Iterator[Finding]:
    """The interpreter, and where Ludus was installed."""
    yield Finding("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    folder = Path(__file__).parents[2]
    yield Finding("Ludus", "ok", f"{version(DISTRIBUTION)}, {folder}")


def check_packages(required: Iterable[str] | None = None) -> Iterator[Finding]:
    """The packages that every command needs, and one finding for each extra.

    Args:
        required: requirements as in the metadata of a package, by default those of Ludus.
    """
    if required is None:
        required = distribution(DISTRIBUTION).requires or ()
    requirements = [Requirement(text) for text in required]
    problems = [
        problem
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        for problem in filter(None, [_problem(requirement)])
    ]
    if problems:
        reinstall = f"pip install --force-reinstall {DISTRIBUTION}"
        yield Finding("packages", "broken", "; ".join(problems), reinstall)
    else:
        yield Finding("packages", "ok", "all that every command needs")
    for extra in _extras(requirements):
        yield _check_extra(extra, requirements)


def _extras(requirements: Iterable[Requirement]) -> list[str]:
    """The extras that name packages of their own: `all` is only a list of others."""
    candidates = distribution(DISTRIBUTION).metadata.get_all("Provides-Extra") or []
    return [
        extra
        for extra in candidates
        if extra != "all" and any(_belongs(requirement, extra) for requirement in requirements)
    ]


def _belongs(requirement: Requirement, extra: str) -> bool:
    marker = requirement.marker
    return (
        requirement.name != DISTRIBUTION
        and marker is not None
        and marker.evaluate({"extra": extra})
        and not marker.evaluate({"extra": ""})
    )


def _check_extra(extra: str, requirements: Iterable[Requirement]) -> Finding:
    own = [requirement for requirement in requirements if _belongs(requirement, extra)]
    missing = [requirement.name for requirement in own if _installed(requirement.name) is None]
    install = f"pip install '{DISTRIBUTION}[{extra}]'"
    if len(missing) == len(own):
        return Finding(f"[{extra}]", "missing", "not installed", install)
    if missing:
        return Finding(f"[{extra}]", "missing", f"without {', '.join(missing)}", install)
    problems = [problem for requirement in own if (problem := _problem(requirement))]
    if problems:
        return Finding(f"[{extra}]", "broken", "; ".join(problems), install)
    shown = [name for name in RELEVANT_PACKAGES if name in {each.name for each in own}]
    versions = ", ".join(f"{name} {_installed(name)}" for name in shown)
    return Finding(f"[{extra}]", "ok", versions or "installed")


def _problem(requirement: Requirement) -> str | None:
    installed = _installed(requirement.name)
    if installed is None:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(installed, prereleases=True):
        return f"{requirement.name} {installed} is installed, {requirement.specifier} is needed"
    return None


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
