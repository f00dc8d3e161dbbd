"""How an attempt of verifiers ended, what it cost and when it was played.

Its two forms, saved results and traces, name the same things differently; both are read here, and
nothing here raises: what is missing or of another kind is as good as unsaid.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from ludus.data.episode import Fault, StopReason, Timing, Usage
from ludus.data.tool_schema import JsonObject

_STOP_BY_CONDITION = {
    "max_turns": StopReason.MAX_TURNS,
    "max_turns_reached": StopReason.MAX_TURNS,
    "max_total_completion_tokens_reached": StopReason.MAX_TOKENS,
    "prompt_too_long": StopReason.MAX_TOKENS,
    "max_input_tokens": StopReason.MAX_TOKENS,
    "max_output_tokens": StopReason.MAX_TOKENS,
    "max_total_tokens": StopReason.MAX_TOKENS,
    "compaction_failed": StopReason.MAX_TOKENS,
    "timeout_reached": StopReason.DEADLINE,
}
# Headers and bodies of one's own may hold a key: only these are taken over.
_SAMPLING_FIELDS = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_tokens", "reasoning_effort", "seed"}
    | {"max_completion_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty"}
)


def as_object(value: Any) -> JsonObject:
    """An object that may be missing."""
    return value if isinstance(value, dict) else {}


def finite_number(value: Any) -> float | None:
    """A finite number, or None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


def finite_numbers(values: JsonObject) -> dict[str, float]:
    """The numbers among named values: metrics may also be null or words."""
    found = {name: finite_number(value) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def parse_stop_reason(condition: Any, *, truncated: bool, timed_out: bool = False) -> StopReason:
    """`condition` is the name of the rule that stopped it; an environment may have its own.

    A model that stops calling tools ends the attempt by the rules, as an answer does.
    """
    name = str(condition or "")
    if timed_out or name.endswith("_timeout"):
        return StopReason.DEADLINE
    return _STOP_BY_CONDITION.get(name) or (StopReason.MAX_TOKENS if truncated else StopReason.DONE)


def build_fault(kind: str, message: str) -> Fault:
    """An error, on the side that its kind tells: those of the model's provider are few."""
    model = any(word in kind for word in ("Model", "Provider", "Interception", "Tunnel"))
    return Fault(kind=kind, where="model" if model else "environment", message=message)


def sum_usage(counts: Iterable[JsonObject]) -> Usage:
    """The sum of what was counted. Prompt tokens are without those from the cache in a trace."""
    total = Usage()
    for count in counts:
        cached = _int_field(count, "cached_input_tokens")
        total += Usage(
            prompt_tokens=_int_field(count, "prompt_tokens", "input_tokens") + cached,
            completion_tokens=_int_field(count, "completion_tokens", "output_tokens"),
            cached_tokens=cached,
            reasoning_tokens=_int_field(count, "reasoning_tokens"),
            cost=finite_number(count.get("cost")),
        )
    return total


def build_timing(
    start: Any, end: Any, *, model: Any = None, environment: Any = None
) -> Timing | None:
    """From seconds since 1970; None where they are not known."""
    started, over = finite_number(start), finite_number(end)
    if started is None or over is None:
        return None
    try:
        moments = datetime.fromtimestamp(started, UTC), datetime.fromtimestamp(over, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return Timing(
        started_at=moments[0],
        ended_at=moments[1],
        model_s=finite_number(model) or 0.0,
        environment_s=finite_number(environment) or 0.0,
    )


def agent_fields(model: Any, sampling: Any, **more: Any) -> JsonObject:
    """The model and how it was sampled."""
    told = {"model": model, **more}
    told |= {name: value for name, value in as_object(sampling).items() if name in _SAMPLING_FIELDS}
    return {name: value for name, value in told.items() if value is not None}


def _int_field(counts: JsonObject, *names: str) -> int:
    return int(next((found for name in names if (found := finite_number(counts.get(name)))), 0))
