"""A student's tokenizer, from a folder or from the Hub.

Only the tokenizer is loaded, never the weights: what a row looks like to a model can be seen
without having the model. What its template does with a row is `ludus.policy.templates`' business.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.errors import BadSetting, MissingExtra

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PATIENCE = 10.0
"""Seconds that the Hub has to say whether it knows a model."""

_TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
_NEEDS_CODE = "trust_remote_code"


def load_tokenizer(student: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model in a folder, or of one on the Hub (`org/name`).

    A folder that exists is never looked for on the Hub. A model that is on the Hub and in the
    cache can be used while the Hub cannot be reached. Code that comes with a model is not run.
    """
    _require()
    with _quiet():
        tokenizer = _of_folder(student) if _is_folder(student) else _of_hub(student)
    if not tokenizer.chat_template:
        raise BadSetting(
            f"{student} has no chat template, so it cannot be shown a conversation. "
            "Name a chat model (most are called instruct or chat)."
        )
    if not tokenizer.is_fast:
        raise BadSetting(
            f"{student} has only a slow tokenizer, which cannot tell whose words a token is. "
            "Name a model that has a tokenizer.json."
        )
    # How long rows are is said by us, once, and not by a warning among the results.
    tokenizer.deprecation_warnings[_TOO_LONG] = True
    return tokenizer


def _require() -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("transformers")
    except ImportError:
        raise MissingExtra.of("train", "Reading a student's tokenizer") from None


def _is_folder(student: str) -> bool:
    """Whether a folder is meant. One that looks like a path and is none is a mistake."""
    path = Path(student).expanduser()
    if path.is_dir() and student:
        return True
    if path.is_file():
        raise BadSetting(f"{student} is a file. Name the model's folder, or a model on the Hub.")
    if student.startswith((".", "/", "~")) or not student or student.count("/") > 1:
        raise BadSetting(
            f"There is no folder {student or repr(student)}. Name a model's folder, or org/name."
        )
    return False


def _of_folder(student: str) -> PreTrainedTokenizerBase:
    path = Path(student).expanduser()
    if not any(path.glob("tokenizer*")):
        raise BadSetting(
            f"{student} holds no tokenizer, so it is no model. Name a folder with a tokenizer.json."
        )
    return _loaded(student, str(path), local_files_only=True)


def _of_hub(student: str) -> PreTrainedTokenizerBase:
    """Asked once whether it is there: the loader itself would try for most of a minute."""
    from huggingface_hub import HfApi

    cached = False
    try:
        HfApi(library_name="ludus").model_info(student, timeout=PATIENCE)
    except Exception as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if "HFValidationError" in kinds:
            raise BadSetting(
                f"{student!r} is neither a folder nor a name on the Hub. Write a folder, or "
                "org/name."
            ) from None
        if "RepositoryNotFoundError" in kinds:
            raise BadSetting(
                f"There is no folder {student} here, and no model of that name on the Hub that "
                "may be read. Check the name; a private one needs `hf auth login`."
            ) from None
        cached = True
    return _loaded(student, student, local_files_only=cached)


def _loaded(student: str, source: str, *, local_files_only: bool) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            source, local_files_only=local_files_only, trust_remote_code=False
        )
    except Exception as error:
        raise BadSetting(_why(student, error, local_files_only)) from None


def _why(student: str, error: Exception, local_files_only: bool) -> str:
    """One line of the page that the loader writes."""
    if _NEEDS_CODE in str(error):
        return f"{student} brings code of its own for its tokenizer, which Ludus does not run."
    if _caused_by(error, "GatedRepoError"):
        return f"{student} is gated on the Hub. Ask for access on its page, then `hf auth login`."
    if not _is_folder(student) and local_files_only:
        return (
            f"There is no folder {student} here, the Hub cannot be reached, and {student} is not "
            "in its cache. Name a folder, or try again when the Hub can be reached."
        )
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    return f"The tokenizer of {student} cannot be read: {first}"


def _caused_by(error: BaseException | None, kind: str) -> bool:
    while error is not None:
        if kind in {base.__name__ for base in type(error).__mro__}:
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the loaders' warnings and bars; afterwards they may speak as before."""
    said: Any = importlib.import_module("transformers.utils.logging")
    bars: Any = importlib.import_module("huggingface_hub.utils")
    hub = logging.getLogger("huggingface_hub")
    before, level, shown = said.get_verbosity(), hub.level, not bars.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said.set_verbosity(logging.CRITICAL)
        hub.setLevel(logging.CRITICAL)
        bars.disable_progress_bars()
        try:
            yield
        finally:
            said.set_verbosity(before)
            hub.setLevel(level)
            if shown:
                bars.enable_progress_bars()
