"""Upload of a folder to the Hugging Face Hub: a data set, a model, or the Space of an environment.

Call `check_upload_target`, `check_login` and `open_repo` before a long run, so that a missing
permission is found at once; `push_folder` uploads at the end. Nothing is written into the folder,
and large files are streamed.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ludus.data.hub import OPENENV_RESULTS_FILE
from ludus.data.run_folder import RUN_FILE, SUMMARY_FILE
from ludus.errors import ConfigError, MissingCredentials, MissingExtra, PublishFailed
from ludus.publish.run_card import CARD_FILE, EPISODES_FILE, card_for_run

if TYPE_CHECKING:
    from huggingface_hub import HfApi

RUN_FILES = (EPISODES_FILE, OPENENV_RESULTS_FILE, RUN_FILE, SUMMARY_FILE)
REQUEST_TIMEOUT_S = 60.0
"""Seconds without data after which a request fails."""


@dataclass(frozen=True, slots=True)
class RepoKind:
    """A type of repository on the Hub."""

    repo_type: str
    noun: str
    example: str
    space_sdk: str | None = None


DATASET = RepoKind("dataset", "data set", "ada/wordle-rollouts")
MODEL = RepoKind("model", "model", "ada/wordle-player")
SPACE = RepoKind("space", "Space", "ada/wordle", space_sdk="docker")

_NAME_PATTERN = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO_ID_PATTERN = re.compile(rf"{_NAME_PATTERN}/{_NAME_PATTERN}")
_MAX_REPO_ID_LENGTH = 96
WEIGHTS_PATTERN = "*.safetensors"
_MODEL_FILE_PATTERNS = (
    *(WEIGHTS_PATTERN, "*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt"),
    *("log.jsonl", "loss.png", "reward.png"),
)
_LOADED_FILE_PATTERNS = (
    *(WEIGHTS_PATTERN, "*.safetensors.index.json", "config.json", "*_config.json", "*.jinja"),
    *("*.model", "tokenizer.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"),
    "vocab.*",
)
"""Files that `from_pretrained` reads: files of an older model must not stay beside a new one."""
_MODEL_SUBFOLDERS = ("adapter", "additional_chat_templates")
"""Folders that belong to a model: the adapter that was merged into it, more chat templates."""


def check_upload_target(repo_id: str, kind: RepoKind = DATASET) -> None:
    """Raise ConfigError unless this can be the repository of an upload."""
    is_valid = _REPO_ID_PATTERN.fullmatch(repo_id) and len(repo_id) <= _MAX_REPO_ID_LENGTH
    if not is_valid or "--" in repo_id or ".." in repo_id or repo_id.endswith(".git"):
        raise ConfigError(
            f"{repo_id!r} cannot be the name of a {kind.noun} on the Hub. "
            f"Give USER/NAME, such as {kind.example!r}."
        )


def check_login() -> None:
    """Raise ConfigError without a token. Works offline; `open_repo` asks the Hub."""
    with _hub_api():
        from huggingface_hub import constants, get_token

        try:
            token = get_token()
        except Exception as error:
            raise ConfigError(f"Cannot read the Hub token: {_describe_hub_error(error)}.") from None
    if not token:
        raise MissingCredentials("Uploading needs a login: run `hf auth login`, or set HF_TOKEN.")
    if constants.HF_HUB_OFFLINE:
        raise ConfigError("HF_HUB_OFFLINE is set, so nothing can be uploaded. Unset it.")


def open_repo(
    repo_id: str,
    kind: RepoKind = DATASET,
    *,
    private: bool = False,
    endpoint: str | None = None,
    timeout: float = REQUEST_TIMEOUT_S,
) -> str:
    """Create the repository if it does not exist, and return its URL.

    Call it before a run: only the Hub knows whether the token is valid and may write there.
    """
    try:
        with _hub_api(endpoint, timeout) as api:
            return _create_repo(api, repo_id, kind, private=private)
    except MissingExtra:
        raise
    except Exception as error:
        raise ConfigError(
            f"Nothing can be uploaded to {repo_id}: {_describe_hub_error(error)}."
        ) from None


def push_folder(
    folder: Path,
    repo_id: str,
    kind: RepoKind = DATASET,
    *,
    private: bool = False,
    message: str | None = None,
    files: Sequence[str] = RUN_FILES,
    delete_if: Callable[[str], bool] | None = None,
    card: str | None = None,
    retry_command: str | None = None,
    command: str | None = None,
    endpoint: str | None = None,
    timeout: float = REQUEST_TIMEOUT_S,
) -> str:
    """Upload `files` of the folder and a card as one commit, and return the repository's URL.

    The Hub keeps the large files that have arrived: the same call after an interruption sends only
    the rest.

    Files that the folder does not have are skipped. `delete_if` selects files on the Hub to delete
    if they are not among `files`, such as shards of an older model, which would be loaded together
    with the new ones. `card` is the README.md, empty for none; by default the card of a run, which
    names `command` to reproduce it. An error message suggests `retry_command`.
    """
    try:
        with _hub_api(endpoint, timeout) as api:
            from huggingface_hub import CommitOperationAdd, CommitOperationDelete

            url = _create_repo(api, repo_id, kind, private=private)
            names = [name for name in files if name != CARD_FILE and (folder / name).is_file()]
            if not names:
                raise PublishFailed(f"there is no {' or '.join(files)} in the folder")
            operations: list[CommitOperationAdd | CommitOperationDelete] = [
                CommitOperationAdd(name, folder / name) for name in names
            ]
            if delete_if is not None:
                remote = api.list_repo_files(repo_id, repo_type=kind.repo_type)
                stale = [name for name in remote if delete_if(name) and name not in names]
                operations += [CommitOperationDelete(name) for name in stale]
            if card is None:
                card = card_for_run(folder, repo_id, command=command)
            if card:
                operations.insert(0, CommitOperationAdd(CARD_FILE, card.encode()))
            api.create_commit(
                repo_id,
                operations,
                commit_message=message or f"Episodes of {folder.name}",
                repo_type=kind.repo_type,
            )
            return url
    except MissingExtra:
        raise
    except Exception as error:
        again = f" Go on with: {retry_command}" if retry_command else ""
        reason = _describe_hub_error(error)
        raise PublishFailed(
            f"The upload to {repo_id} failed: {reason}. Everything is in {folder}.{again}"
        ) from None


def push_model(
    folder: Path,
    repo_id: str,
    *,
    card: str,
    private: bool = False,
    retry_command: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Upload the model in this folder with its card as one commit, and return its URL.

    These are the files that `from_pretrained` reads and the records of the training. Checkpoints
    and all other files are not uploaded.
    """

    def is_loaded(name: str) -> bool:
        path = PurePosixPath(name)
        is_in_folder = path.parent.name in ("", *_MODEL_SUBFOLDERS) and len(path.parts) <= 2
        return is_in_folder and any(path.match(pattern) for pattern in _LOADED_FILE_PATTERNS)

    check_model_folder(folder)
    return push_folder(
        folder,
        repo_id,
        MODEL,
        private=private,
        message=f"The model in {folder.name}",
        files=sorted(model_files(folder)),
        delete_if=is_loaded,
        card=card,
        retry_command=retry_command,
        endpoint=endpoint,
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


def _create_repo(api: HfApi, repo_id: str, kind: RepoKind, *, private: bool) -> str:
    # None instead of False: the namespace decides whether a new repository is public.
    url = api.create_repo(
        repo_id,
        repo_type=kind.repo_type,
        private=private or None,
        exist_ok=True,
        space_sdk=kind.space_sdk,
    )
    if private and not api.repo_info(repo_id, repo_type=kind.repo_type).private:
        raise PublishFailed(f"{url} exists and is public: make it private there first")
    return str(url)


@contextmanager
def _hub_api(endpoint: str | None = None, timeout: float = REQUEST_TIMEOUT_S) -> Iterator[HfApi]:
    """Yield the Hub's API with a request timeout, and without progress bars, logs and warnings."""
    try:
        from huggingface_hub import HfApi, get_session
    except ImportError:
        raise MissingExtra.of("hub", "Uploading") from None
    # By importlib, because mypy cannot see the attributes, which the module defines at run time.
    bars = importlib.import_module("huggingface_hub.utils")
    client, logger = get_session(), logging.getLogger("huggingface_hub")
    old_timeout, old_level = client.timeout, logger.level
    had_bars = not bars.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client.timeout = timeout
        logger.setLevel(logging.CRITICAL)
        bars.disable_progress_bars()
        try:
            yield HfApi(endpoint=endpoint, library_name="ludus")
        finally:
            client.timeout = old_timeout
            logger.setLevel(old_level)
            if had_bars:
                bars.enable_progress_bars()


def _describe_hub_error(error: BaseException) -> str:
    """Return the reason in one line, without a traceback, a request id or a token."""
    if isinstance(error, PublishFailed):
        return str(error)
    response = getattr(error, "response", None)
    if response is not None:
        status, message = response.status_code, getattr(error, "server_message", None)
        details = f": {_redact_hub_message(message)}" if message else ""
        if status == 401:
            return "the Hub does not accept the token (HTTP 401); `hf auth login`, or set HF_TOKEN"
        if status == 403:
            return f"the token may not write there (HTTP 403){details}"
        return f"the Hub answered HTTP {status}{details}"
    # By name: the HTTP client of huggingface_hub is not a direct dependency.
    class_names = {cls.__name__ for cls in type(error).__mro__}
    if "TimeoutException" in class_names:
        return "the Hub did not answer in time"
    if "TransportError" in class_names:
        return f"the Hub cannot be reached ({_redact_hub_message(error)})"
    cause = f" ({_describe_hub_error(error.__cause__)})" if error.__cause__ is not None else ""
    return _redact_hub_message(error) + cause


def _redact_hub_message(message: object) -> str:
    """A message of the Hub in one line, without tokens."""
    text = " ".join(str(message).split()).rstrip(".") or type(message).__name__
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(name):
            text = text.replace(token, "***")
    return re.sub(r"\b(hf_|api_org_|Bearer )\w{8,}", "***", text)[:300]
