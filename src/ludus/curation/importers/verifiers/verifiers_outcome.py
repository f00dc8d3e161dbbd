"""The outcome of a verifiers rollout: stop reason, fault, usage, timing and agent.

Saved results and traces have different names for the same fields; both are handled here. Nothing
here raises an error: fields that are missing or of another type are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from ludus.curation.importers.base import as_object
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
# Only these: other settings, such as custom headers, may contain API keys.
_SAMPLING_FIELDS = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_tokens", "reasoning_effort", "seed"}
    | {"max_completion_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty"}
)


def finite_number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if isfinite(value) else None
    except OverflowError:
        return None


def finite_numbers(values: JsonObject) -> dict[str, float]:
    """Return the finite numbers among named values: metrics may also be null or text."""
    numbers = {name: finite_number(value) for name, value in values.items()}
    return {name: number for name, number in numbers.items() if number is not None}


def parse_stop_reason(condition: Any, *, truncated: bool, timed_out: bool = False) -> StopReason:
    """Convert the name of the stop condition; environments may define their own.

    A model that stops calling tools ends the rollout regularly.
    """
    name = str(condition or "")
    if timed_out or name.endswith("_timeout"):
        return StopReason.DEADLINE
    return _STOP_BY_CONDITION.get(name) or (StopReason.MAX_TOKENS if truncated else StopReason.DONE)


def build_fault(kind: str, message: str) -> Fault:
    """Build a fault. The kind tells whether it is an error of the model's provider."""
    model = any(word in kind for word in ("Model", "Provider", "Interception", "Tunnel"))
    return Fault(kind=kind, where="model" if model else "environment", message=message)


def sum_usage(counts: Iterable[JsonObject]) -> Usage:
    """Sum up token counts. Traces count prompt tokens without cached ones."""
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
    """Build the timing from Unix times; None if they are unknown."""
    start_s, end_s = finite_number(start), finite_number(end)
    if start_s is None or end_s is None:
        return None
    try:
        started_at = datetime.fromtimestamp(start_s, UTC)
        ended_at = datetime.fromtimestamp(end_s, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return Timing(
        started_at=started_at,
        ended_at=ended_at,
        model_s=finite_number(model) or 0.0,
        environment_s=finite_number(environment) or 0.0,
    )


def agent_fields(model: Any, sampling: Any, **more: Any) -> JsonObject:
    """Return model and sampling settings, without those that are not set."""
    settings = {"model": model, **more}
    settings |= {
        name: value for name, value in as_object(sampling).items() if name in _SAMPLING_FIELDS
    }
    return {name: value for name, value in settings.items() if value is not None}


def _int_field(counts: JsonObject, *names: str) -> int:
    return int(next((count for name in names if (count := finite_number(counts.get(name)))), 0))
