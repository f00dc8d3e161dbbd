"""`ludus doctor`: check the installation, and say how to complete it."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.requirements import Requirement

from ludus.cli import common
from ludus.cli.display.console import print_table, print_text
from ludus.cli.flags import command
from ludus.data.run_folder import DISTRIBUTION
from ludus.errors import LudusError

if TYPE_CHECKING:
    from ludus.data.tool_schema import JsonObject

RELEVANT_PACKAGES = (
    *("torch", "transformers", "trl", "accelerate", "peft", "datasets", "vllm"),
    *("openenv", "reasoning-gym", "huggingface-hub"),
)
"""Packages whose versions decide what a run does; `ludus --version` prints them."""
PROBE_TIMEOUT_S = 120
"""Importing PyTorch from a slow disk takes long."""
_TORCH_PROBE = """
import json, torch
gpus = [
    (torch.cuda.get_device_name(index), torch.cuda.get_device_properties(index).total_memory)
    for index in range(torch.cuda.device_count())
] if torch.cuda.is_available() else []
mps = torch.backends.mps.is_available()
print(json.dumps({"version": torch.__version__, "gpus": gpus, "mps": mps}))
"""
_STYLES = {"ok": "green", "missing": "dim", "warning": "yellow", "broken": "bold red"}
Status = Literal["ok", "missing", "warning", "broken"]
"""`missing`: optional and not installed. `broken`: required, or installed and unusable."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    subject: str
    status: Status
    detail: str
    advice: str = ""
    """What to do about it: a command, or one sentence."""


@command
def doctor_command(*, as_json: common.JsonObject = False) -> None:
    """Check the installation: packages, extras, GPU, programs, keys.

    Ends with exit code 1 if something that is needed is broken. Optional parts that are not
    installed are listed with the command that installs them.

    Example: ludus doctor
    """
    from rich.text import Text

    from ludus.cli.display.status import PhaseStatus, terminal_status
    from ludus.rollout.progress import PhaseProgress

    with terminal_status() as status:
        status.show(PhaseStatus(PhaseProgress("checking the installation")))
        findings = [
            Finding("Python", "ok", f"{platform.python_version()}, {sys.executable}"),
            Finding("Ludus", "ok", f"{version(DISTRIBUTION)}, {Path(__file__).parents[2]}"),
            *check_packages(distribution(DISTRIBUTION).requires or ()),
            *check_torch(),
            *check_programs(),
            *check_accounts(),
        ]
    broken = any(finding.status == "broken" for finding in findings)
    if as_json:
        report = {"ok": not broken, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2))
    else:
        rows = (
            (each.subject, Text(each.status, style=_STYLES[each.status]), each.detail)
            for each in findings
        )
        print_table(("subject", "status", "details"), rows)
        for finding in findings:
            if finding.advice:
                print_text(f"{finding.subject:<17} {finding.advice}")
    if broken:
        raise SystemExit(1)


def check_packages(required: Iterable[str]) -> Iterator[Finding]:
    """Check the packages that every command needs, and those of each extra.

    `required` are requirements as in the metadata of a package.
    """

    def belongs_to(extra: str, requirement: Requirement) -> bool:
        return requirement.marker is None or requirement.marker.evaluate({"extra": extra})

    requirements = [Requirement(text) for text in required]
    for extra in ("", *(distribution(DISTRIBUTION).metadata.get_all("Provides-Extra") or [])):
        own = [each for each in requirements if belongs_to(extra, each)]
        if extra:  # An extra may name others alone, as `all` does.
            own = [each for each in own if each.name != DISTRIBUTION and not belongs_to("", each)]
        if not own or extra == "all":
            continue
        subject = f"[{extra}]" if extra else "packages"
        advice = f"pip install --force-reinstall {DISTRIBUTION}"
        if extra:
            advice = f"pip install '{DISTRIBUTION}[{extra}]'"
        installed = {each.name: _installed(each.name) for each in own}
        problems = [problem for each in own if (problem := _problem(each))]
        if extra and not any(installed.values()):
            yield Finding(subject, "missing", "not installed", advice)
        elif problems:
            is_missing = extra and None in installed.values()
            yield Finding(
                subject, "missing" if is_missing else "broken", "; ".join(problems), advice
            )
        else:
            names = [name for name in RELEVANT_PACKAGES if name in installed]
            versions = ", ".join(f"{name} {installed[name]}" for name in names)
            yield Finding(subject, "ok", versions or "installed")


def _problem(requirement: Requirement) -> str:
    installed = _installed(requirement.name)
    if installed is None:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(installed, prereleases=True):
        return f"{requirement.name} {installed} is installed, {requirement.specifier} is needed"
    return ""


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_torch(python: str = sys.executable) -> Iterator[Finding]:
    """Check PyTorch by importing it in a subprocess: a broken one may end the interpreter."""
    if find_spec("torch") is None:
        yield Finding("GPU", "missing", "PyTorch is not installed")
        return
    try:
        probe = subprocess.run(
            [python, "-c", _TORCH_PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        yield Finding("PyTorch", "warning", f"not imported within {PROBE_TIMEOUT_S} s")
        return
    if probe.returncode != 0:
        lines = probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"]
        reinstall = "pip install --force-reinstall torch"
        yield Finding("PyTorch", "broken", f"cannot be imported: {lines[-1]}", reinstall)
        return
    facts: JsonObject = json.loads(probe.stdout.splitlines()[-1])
    yield Finding("PyTorch", "ok", facts["version"])
    if gpus := facts["gpus"]:
        shown = ", ".join(f"{name} ({size / 2**30:.0f} GiB)" for name, size in gpus)
        yield Finding("GPU", "ok", shown)
    elif facts["mps"]:
        yield Finding("GPU", "ok", "Apple (mps)")
    elif shutil.which("nvidia-smi"):
        problem = "there is an NVIDIA driver, but PyTorch finds no GPU"
        advice = "Install a build of PyTorch for CUDA, and check that `nvidia-smi` lists the GPU."
        yield Finding("GPU", "warning", problem, advice)
    else:
        yield Finding("GPU", "missing", "none; models run on the CPU")


def check_programs() -> Iterator[Finding]:
    """Check programs outside Python, each with the environment that needs it."""
    from ludus.client.container import find_container_engine
    from ludus.envs.browsergym.worker import find_chromium

    try:
        yield Finding("Chromium", "ok", find_chromium())
    except LudusError as error:
        # With the extra installed, a browser is expected.
        status: Status = "missing" if find_spec("browsergym") is None else "warning"
        yield Finding("Chromium", status, "needed by browsergym", str(error))
    yield _check_bubblewrap()
    try:
        yield Finding("container engine", "ok", find_container_engine())
    except LudusError as error:
        yield Finding("container engine", "missing", "needed by docker:IMAGE", str(error))


def _check_bubblewrap() -> Finding:
    from ludus.envs.python.sandbox import ADVICE, find_bubblewrap

    try:
        program = find_bubblewrap()
    except LudusError:
        advice = f"Install it: apt install bubblewrap. {ADVICE}"
        return Finding("bubblewrap", "missing", "needed by the python environment", advice)
    sandbox = [program, "--unshare-all", "--ro-bind", "/", "/", sys.executable, "-c", ""]
    try:
        result = subprocess.run(sandbox, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        reason = f"it takes longer than {PROBE_TIMEOUT_S} s"
    else:
        if result.returncode == 0:
            return Finding("bubblewrap", "ok", program)
        reason = (result.stderr.strip().splitlines() or ["it fails"])[-1]
    return Finding("bubblewrap", "warning", f"cannot make a sandbox: {reason}", ADVICE)


def check_accounts() -> Iterator[Finding]:
    """Check that keys and logins are there, without showing them."""
    from ludus.agents.api_keys import API_PROVIDERS, find_api_key

    for provider in API_PROVIDERS:
        try:
            key = find_api_key(provider)
        except LudusError as error:
            detail = f"needed by --agent {provider}:MODEL"
            yield Finding(f"{provider} key", "missing", detail, str(error))
        else:
            assert key is not None
            yield Finding(f"{provider} key", "ok", f"in {key.source}")
    if find_spec("huggingface_hub") is not None:
        from huggingface_hub import get_token

        if get_token():
            yield Finding("Hub login", "ok", "a token is there")
        else:
            yield Finding("Hub login", "missing", "needed to upload", "hf auth login")
