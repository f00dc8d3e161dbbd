"""The outcome of a verifiers rollout: stop reason, fault, usage and agent.

Saved results and traces have different names for the same fields; both are handled here. Nothing
here raises an error: fields that are missing or of another type are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ludus.curation.importers.base import as_count, as_number, as_object
from ludus.curation.importers.episode_builder import build_fault
from ludus.data.episode import Fault, StopReason, Usage
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


def parse_stop_reason(condition: Any, *, truncated: bool, timed_out: bool = False) -> StopReason:
    """Convert the name of the stop condition; environments may define their own.

    A model that stops calling tools ends the rollout regularly.
    """
    name = str(condition or "")
    if timed_out or name.endswith("_timeout"):
        return StopReason.DEADLINE
    return _STOP_BY_CONDITION.get(name) or (StopReason.MAX_TOKENS if truncated else StopReason.DONE)


def build_verifiers_fault(kind: str, message: str) -> Fault:
    """Build a fault. The kind tells whether it is an error of the model's provider."""
    by_model = any(word in kind for word in ("Model", "Provider", "Interception", "Tunnel"))
    return build_fault(kind, message, by_model=by_model)


def parse_usage(counts: Iterable[JsonObject]) -> Usage:
    """Sum up the token counts of a verifiers rollout.

    Traces count prompt tokens without cached ones.
    """
    total = Usage()
    for count in counts:
        cached = as_count(count, "cached_input_tokens")
        total += Usage(
            prompt_tokens=as_count(count, "prompt_tokens", "input_tokens") + cached,
            completion_tokens=as_count(count, "completion_tokens", "output_tokens"),
            cached_tokens=cached,
            reasoning_tokens=as_count(count, "reasoning_tokens"),
            cost=as_number(count.get("cost")),
        )
    return total


def parse_verifiers_agent(model: Any, sampling: Any, **more: Any) -> JsonObject:
    """Return model and sampling settings of a verifiers rollout, without those not set."""
    settings = {"model": model, **more}
    settings |= {
        name: value for name, value in as_object(sampling).items() if name in _SAMPLING_FIELDS
    }
    return {name: value for name, value in settings.items() if value is not None}
