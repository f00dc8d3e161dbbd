"""Errors of loading a model: missing packages, and one-line messages for what loaders raise."""

from __future__ import annotations

import importlib
import warnings

from ludus.errors import MissingExtra

_REMOTE_CODE = "trust_remote_code"


def require_transformers(purpose: str, *modules: str) -> None:
    """Raise `MissingExtra` unless transformers and these modules can be imported."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for module in ("transformers", *modules):
                importlib.import_module(module)
    except ImportError:
        raise MissingExtra.of("train", purpose) from None


def describe_load_error(
    name: str, part: str, error: BaseException, *, hub_unreachable: bool = False
) -> str:
    """Say why the `part` of a model (its weights, tokenizer, ...) could not be loaded."""
    message = next(iter(str(error).splitlines()), "") or type(error).__name__
    if _REMOTE_CODE in str(error):
        return f"{name} ships custom code for its {part}, which Ludus does not run."
    if _is_caused_by(error, "GatedRepoError"):
        return f"{name} is gated on the Hub. Ask for access on its page, then `hf auth login`."
    if _is_caused_by(error, "OutOfMemoryError"):
        return f"The {part} of {name} do not fit into the device's memory: {message}"
    if hub_unreachable:
        return (
            f"There is no folder {name} here, the Hub cannot be reached, and {name} is not in its "
            "cache. Name a folder, or try again when the Hub can be reached."
        )
    return f"The {part} of {name} cannot be read: {message}"


def _is_caused_by(error: BaseException | None, class_name: str) -> bool:
    """Compare by name: the class may belong to a package that is not installed."""
    while error is not None:
        if class_name in {base.__name__ for base in type(error).__mro__}:
            return True
        error = error.__cause__ or error.__context__
    return False
