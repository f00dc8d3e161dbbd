"""Uploading a folder to the Hugging Face Hub: a run as a data set, or a trained model.

`check_repo_id`, `check_login` and `open_repo` are for before the first episode or step: nobody
should wait for an hour and then learn that he may not upload. `push_folder` uploads. Nothing is
written into the folder, and no file is held in memory: a large one is streamed by the Hub's own
client. What a data set says about itself is `ludus.publish.run_card`'s business, and which files make
a model `ludus.publish.model_upload`'s.
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
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.data.schema import OPENENV_RESULTS_FILE
from ludus.errors import ConfigError, MissingExtra, PublishFailed
from ludus.publish.run_card import CARD_FILE, EPISODES_FILE, card_for_run

if TYPE_CHECKING:
    from huggingface_hub import HfApi

RUN_FILES = (EPISODES_FILE, OPENENV_RESULTS_FILE, "run.json", "summary.json")
REQUEST_TIMEOUT_S = 60.0
"""Seconds without a sign of life before a request is given up."""


@dataclass(frozen=True, slots=True)
class RepoKind:
    """What a repository on the Hub holds."""

    repo_type: str
    noun: str
    example: str


DATASET = RepoKind("dataset", "data set", "ada/wordle-rollouts")
MODEL = RepoKind("model", "model", "ada/wordle-player")

_NAME_PATTERN = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPO_ID_PATTERN = re.compile(rf"{_NAME_PATTERN}/{_NAME_PATTERN}")
_MAX_REPO_ID_LENGTH = 96


def check_repo_id(repo_id: str, kind: RepoKind = DATASET) -> None:
    """Whether the Hub can have something of this name."""
    fits = _REPO_ID_PATTERN.fullmatch(repo_id) and len(repo_id) <= _MAX_REPO_ID_LENGTH
    if not fits or "--" in repo_id or ".." in repo_id or repo_id.endswith(".git"):
        raise ConfigError(
            f"{repo_id!r} cannot be the name of a {kind.noun} on the Hub. "
            f"Give USER/NAME, such as {kind.example!r}."
        )


def check_login() -> None:
    """Whether there is a token to upload with. Asks nobody; `open_repo` asks the Hub."""
    with _hub_api():
        from huggingface_hub import constants, get_token

        try:
            token = get_token()
        except Exception as error:
            raise ConfigError(f"There is no token for the Hub: {_describe_error(error)}.") from None
    if not token:
        raise ConfigError("Uploading needs a login: run `hf auth login`, or set HF_TOKEN.")
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
    """The repository's address; it is created if it does not exist.

    Only the Hub knows whether the token is good and may write there, so ask before a run.
    """
    try:
        with _hub_api(endpoint, timeout) as api:
            return _create_repo(api, repo_id, kind, private=private)
    except MissingExtra:
        raise
    except Exception as error:
        raise ConfigError(
            f"Nothing can be uploaded to {repo_id}: {_describe_error(error)}."
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
    """Upload the folder's `files` and a card as one commit, and return the repository's address.

    Files that are not there are left out. Those on the Hub that it `replaces` and that are none of
    `files` go away: half of an old model would be loaded beside the new one. `retry` is the
    command that an error names to go on with, `command` the one by which a data set's card says
    that it is made; `card` is another one.
    """
    try:
        with _hub_api(endpoint, timeout) as api:
            url = _create_repo(api, repo_id, kind, private=private)
            found = [name for name in files if name != CARD_FILE and (folder / name).is_file()]
            if not found:
                raise PublishFailed(f"there is no {' or '.join(files)} in the folder")
            text = card_for_run(folder, repo_id, command=command) if card is None else card
            there = api.list_repo_files(repo_id, repo_type=kind.repo_type) if delete_if else ()
            old = [name for name in there if delete_if and delete_if(name) and name not in found]
            _commit(api, folder, repo_id, kind, found, old, text, message)
            return url
    except MissingExtra:
        raise
    except Exception as error:
        again = f" Go on with: {retry_command}" if retry_command else ""
        raise PublishFailed(
            f"The upload to {repo_id} failed: {_describe_error(error)}. Everything is in {folder}.{again}"
        ) from None


def _create_repo(api: HfApi, repo_id: str, kind: RepoKind, *, private: bool) -> str:
    # Not private=False: whether a new repository is public is the namespace's to say.
    url = api.create_repo(repo_id, repo_type=kind.repo_type, private=private or None, exist_ok=True)
    if private and not api.repo_info(repo_id, repo_type=kind.repo_type).private:
        raise PublishFailed(f"{url} exists and is public: make it private there first")
    return str(url)


def _commit(
    api: HfApi,
    folder: Path,
    repo_id: str,
    kind: RepoKind,
    files: Sequence[str],
    old: Sequence[str],
    card: str,
    message: str | None,
) -> None:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    api.create_commit(
        repo_id,
        [
            CommitOperationAdd(CARD_FILE, card.encode()),
            *(CommitOperationAdd(name, folder / name) for name in files),
            *(CommitOperationDelete(name) for name in old),
        ],
        commit_message=message or f"Episodes of {folder.name}",
        repo_type=kind.repo_type,
    )


@contextmanager
def _hub_api(endpoint: str | None = None, timeout: float = REQUEST_TIMEOUT_S) -> Iterator[HfApi]:
    """The Hub's API: quiet, and with a client that does not wait for ever."""
    try:
        from huggingface_hub import HfApi, get_session
    except ImportError:
        raise MissingExtra.of("hub", "Uploading") from None
    # Through importlib, because what this module offers is made up at run time, unseen by mypy.
    bars = importlib.import_module("huggingface_hub.utils")
    client, log = get_session(), logging.getLogger("huggingface_hub")
    patience, level, shown = client.timeout, log.level, not bars.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client.timeout = timeout
        log.setLevel(logging.CRITICAL)
        bars.disable_progress_bars()
        try:
            yield HfApi(endpoint=endpoint, library_name="ludus")
        finally:
            client.timeout = patience
            log.setLevel(level)
            if shown:
                bars.enable_progress_bars()


def _describe_error(error: BaseException) -> str:
    """What went wrong, for a person: no traceback, no request id, no token."""
    if isinstance(error, PublishFailed):
        return str(error)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    response = getattr(error, "response", None)
    if response is not None:
        return _describe_response(response.status_code, getattr(error, "server_message", None))
    if "TimeoutException" in kinds:
        return "the Hub did not answer in time"
    if "TransportError" in kinds:
        return f"the Hub cannot be reached ({_redacted_line(error)})"
    deeper = f" ({_describe_error(error.__cause__)})" if error.__cause__ is not None else ""
    return _redacted_line(error) + deeper


def _describe_response(status: int, said: str | None) -> str:
    words = f": {_redacted_line(said)}" if said else ""
    if status == 401:
        return "the Hub does not accept the token (HTTP 401); `hf auth login`, or set HF_TOKEN"
    if status == 403:
        return f"the token may not write there (HTTP 403){words}"
    return f"the Hub answered HTTP {status}{words}"


def _redacted_line(said: object) -> str:
    text = " ".join(str(said).split()).rstrip(".") or type(said).__name__
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if token := os.environ.get(name):
            text = text.replace(token, "***")
    return re.sub(r"\b(hf_|api_org_|Bearer )\w{8,}", "***", text)[:300]
