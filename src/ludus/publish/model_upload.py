"""Upload of a trained model: selects the files of its folder that belong to the model.

These are the files that `from_pretrained` reads and the records of the training. Checkpoints and
all other files are not uploaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from ludus.errors import PublishFailed
from ludus.publish.hub_upload import MODEL, push_folder
from ludus.publish.run_card import CARD_FILE

WEIGHTS_PATTERN = "*.safetensors"
_MODEL_FILE_PATTERNS = (
    WEIGHTS_PATTERN,
    "*.json",
    "*.jinja",
    "*.model",
    "merges.txt",
    "vocab.txt",
    "log.jsonl",
    "loss.png",
    "reward.png",
)
_LOADED_FILE_PATTERNS = (
    WEIGHTS_PATTERN,
    "*.safetensors.index.json",
    "config.json",
    "*_config.json",
    "*.jinja",
    "*.model",
    "tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "vocab.*",
)
"""Files that `from_pretrained` reads: files of an older model must not stay beside a new one."""
_MODEL_SUBFOLDERS = ("adapter", "additional_chat_templates")
"""Folders that belong to a model: the adapter that was merged into it, more chat templates."""


def push_model(folder: Path, repo_id: str, *, card: str, **options: Any) -> str:
    """Upload the model in this folder with its card as one commit, and return its URL.

    `options` are passed to `push_folder`.
    """
    check_model_folder(folder)
    files = sorted(model_files(folder))
    options.setdefault("message", f"The model in {folder.name}")
    return push_folder(
        folder, repo_id, MODEL, files=files, delete_if=_is_loaded_file, card=card, **options
    )


def check_model_folder(folder: Path) -> None:
    """Raise PublishFailed unless the folder has the weights of a model."""
    if not any(folder.glob(WEIGHTS_PATTERN)):
        raise PublishFailed(
            f"There is no model to upload in {folder}: no {WEIGHTS_PATTERN} is in it."
        )


def model_files(folder: Path) -> Iterator[str]:
    """Yield the names of the model's files, without its card."""
    for parent in (folder, *(folder / name for name in _MODEL_SUBFOLDERS)):
        for pattern in _MODEL_FILE_PATTERNS:
            for file in parent.glob(pattern):
                if file.is_file() and not file.name.startswith(".") and file.name != CARD_FILE:
                    yield file.relative_to(folder).as_posix()


def _is_loaded_file(name: str) -> bool:
    """Whether a file in the repository would be loaded as a part of the model."""
    path = PurePosixPath(name)
    is_in_folder = path.parent.name in ("", *_MODEL_SUBFOLDERS) and len(path.parts) <= 2
    return is_in_folder and any(path.match(pattern) for pattern in _LOADED_FILE_PATTERNS)
