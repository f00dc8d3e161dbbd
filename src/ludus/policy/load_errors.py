"""Why a model cannot be loaded, in one line of the page that its loader writes."""

from __future__ import annotations

_NEEDS_CODE = "trust_remote_code"


def describe_load_error(
    name: str, part: str, error: BaseException, *, hub_unreachable: bool = False
) -> str:
    """`what` is the part that was being read; `unreached`, that only the Hub's cache was asked."""
    if _NEEDS_CODE in str(error):
        return f"{name} brings code of its own for its {part}, which Ludus does not run."
    if _caused_by(error, "GatedRepoError"):
        return f"{name} is gated on the Hub. Ask for access on its page, then `hf auth login`."
    if _caused_by(error, "OutOfMemoryError"):
        return f"The {part} of {name} do not fit into the device's memory: {_first_line(error)}"
    if hub_unreachable:
        return (
            f"There is no folder {name} here, the Hub cannot be reached, and {name} is not in its "
            "cache. Name a folder, or try again when the Hub can be reached."
        )
    return f"The {part} of {name} cannot be read: {_first_line(error)}"


def _caused_by(error: BaseException | None, kind: str) -> bool:
    while error is not None:
        if kind in {base.__name__ for base in type(error).__mro__}:
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
