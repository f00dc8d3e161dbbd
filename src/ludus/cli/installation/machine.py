"""The machine: GPU, programs that environments run, folders and their disks, keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ludus.cli.installation.findings import Finding, Status
from ludus.errors import LudusError

PROBE_TIMEOUT_S = 120
"""Importing PyTorch from a slow disk takes long."""
LOW_DISK_GB = 5
_TORCH_PROBE = """
import json, torch
gpus = [
    (torch.cuda.get_device_name(index), torch.cuda.get_device_properties(index).total_memory)
    for index in range(torch.cuda.device_count())
] if torch.cuda.is_available() else []
mps = torch.backends.mps.is_available()
print(json.dumps({"version": torch.__version__, "gpus": gpus, "mps": mps}))
"""


def check_torch(python: str = sys.executable) -> Iterator[Finding]:
    """Import PyTorch in a process of its own, because a broken one may end the interpreter."""
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
    facts = json.loads(probe.stdout.splitlines()[-1])
    yield Finding("PyTorch", "ok", facts["version"])
    yield _describe_gpus(facts)


def _describe_gpus(facts: dict[str, object]) -> Finding:
    gpus = facts["gpus"]
    assert isinstance(gpus, list)
    if gpus:
        shown = ", ".join(f"{name} ({size / 2**30:.0f} GiB)" for name, size in gpus)
        return Finding("GPU", "ok", shown)
    if facts["mps"]:
        return Finding("GPU", "ok", "Apple (mps)")
    if shutil.which("nvidia-smi"):
        return Finding(
            "GPU",
            "warning",
            "there is an NVIDIA driver, but PyTorch finds no GPU",
            "Install a build of PyTorch for CUDA, and check that `nvidia-smi` lists the GPU.",
        )
    return Finding("GPU", "missing", "none; models run on the CPU")


def check_programs() -> Iterator[Finding]:
    """Programs outside Python, each with the environment that needs it."""
    yield _check_chromium()
    yield _check_bubblewrap()
    from ludus.client.container import find_engine

    try:
        yield _check_engine(find_engine())
    except LudusError as error:
        yield Finding("container engine", "missing", "needed by docker:IMAGE", str(error))


def _check_engine(engine: str) -> Finding:
    """Whether the engine runs: the client alone can be installed, too."""
    try:
        done = subprocess.run([engine, "info"], capture_output=True, timeout=PROBE_TIMEOUT_S)
        is_running = done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        is_running = False
    if is_running:
        return Finding("container engine", "ok", engine)
    advice = f"Start it: `{engine} info` fails."
    return Finding("container engine", "missing", f"{engine} is installed, and not running", advice)


def _check_chromium() -> Finding:
    from ludus.envs.browsergym.worker import find_chromium

    try:
        return Finding("Chromium", "ok", find_chromium())
    except LudusError as error:
        # With the extra installed, a browser is expected.
        status: Status = "missing" if find_spec("browsergym") is None else "warning"
        return Finding("Chromium", status, "needed by browsergym", str(error))


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
        return Finding("bubblewrap", "warning", f"cannot make a sandbox: {reason}", ADVICE)
    if result.returncode == 0:
        return Finding("bubblewrap", "ok", program)
    reason = (result.stderr.strip().splitlines() or ["it fails"])[-1]
    return Finding("bubblewrap", "warning", f"cannot make a sandbox: {reason}", ADVICE)


def check_folders() -> Iterator[Finding]:
    """The current folder and the caches: whether they can be written, and the free space."""
    yield _check_folder("this folder", Path.cwd())
    if find_spec("platformdirs") is not None or os.environ.get("LUDUS_CACHE"):
        from ludus.policy.smollm2 import CACHE_ENV_VAR, cache_dir

        yield _check_folder("Ludus cache", cache_dir(), CACHE_ENV_VAR)
    if find_spec("huggingface_hub") is not None:
        from huggingface_hub import constants

        yield _check_folder("Hub cache", Path(constants.HF_HOME), "HF_HOME")


def _check_folder(subject: str, folder: Path, variable: str | None = None) -> Finding:
    """A folder that does not exist is judged by the nearest one above it, where it will be made."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        advice = f"Set {variable} to a folder that you can write." if variable else ""
        status: Status = "warning" if variable is None else "broken"
        return Finding(subject, status, f"{folder} cannot be written", advice)
    free = shutil.disk_usage(existing).free / 1e9
    detail = f"{folder}, {free:.0f} GB free"
    if free < LOW_DISK_GB:
        return Finding(subject, "warning", detail, "Models and checkpoints take gigabytes.")
    return Finding(subject, "ok", detail)


def check_accounts() -> Iterator[Finding]:
    """Keys and logins; whether they are there, never what they are."""
    from ludus.agents.api_keys import API_PROVIDERS, find_key

    for provider in API_PROVIDERS:
        try:
            key = find_key(provider)
        except LudusError as error:
            subject = f"{provider} key"
            yield Finding(subject, "missing", f"needed by --agent {provider}:MODEL", str(error))
        else:
            assert key is not None
            yield Finding(f"{provider} key", "ok", f"in {key.source}")
    if find_spec("huggingface_hub") is not None:
        from huggingface_hub import get_token

        if get_token():
            yield Finding("Hub login", "ok", "a token is there")
        else:
            advice = "hf auth login"
            yield Finding("Hub login", "missing", "needed to upload", advice)


def check_environments() -> Iterator[Finding]:
    """The registered environments: those that load, and errors of those that do not."""
    from ludus.environment.registry import find_environment, registered_environments
    from ludus.errors import MissingExtra

    loaded, failed = [], []
    for name in registered_environments():
        try:
            find_environment(name)
        except MissingExtra:
            continue
        except LudusError as error:
            failed.append(Finding(f"environment {name}", "broken", str(error)))
        else:
            loaded.append(name)
    yield Finding("environments", "ok", ", ".join(loaded))
    yield from failed
