"""The outcome of an Inspect AI sample: score, stop reason, fault, usage and timing.

Nothing here raises an error: fields that are missing or of another type are ignored.
"""

from __future__ import annotations

import re
from datetime import datetime
from math import isfinite
from typing import Any

from ludus.curation.importers.base import as_count, as_number, as_object
from ludus.curation.importers.episode_builder import build_fault
from ludus.data.episode import Fault, StopReason, Timing, Usage
from ludus.data.tool_schema import JsonObject

_SCORE_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_SCORE_WORDS |= {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_STOP_BY_LIMIT = {
    "token": StopReason.MAX_TOKENS,
    "context": StopReason.MAX_TOKENS,
    "cost": StopReason.MAX_TOKENS,
    "message": StopReason.MAX_TURNS,
    "turn": StopReason.MAX_TURNS,
    "time": StopReason.DEADLINE,
    "working": StopReason.DEADLINE,
}
_STOP_BY_FINISH_REASON = {
    "max_tokens": StopReason.MAX_TOKENS,
    "model_length": StopReason.MAX_TOKENS,
    "content_filter": StopReason.REFUSED,
}
_EXCEPTION_REPR = re.compile(r"(\w+)\(")
_TRACEBACK_EXCEPTION = re.compile(
    r"^[\s|]*([\w.]+?(?:Error|Exception|Cancelled\w*))\b", re.MULTILINE
)


def parse_score(value: Any) -> float | None:
    """Parse a score, with the letters and words that Inspect converts; None if it is no number.

    In Inspect, NaN means unscored.
    """
    if isinstance(value, str):
        word = value.strip()
        if (known := _SCORE_WORDS.get(word, _SCORE_WORDS.get(word.lower()))) is not None:
            return known
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def parse_reward(sample: JsonObject) -> tuple[float | None, dict[str, float]]:
    """Return the reward, which is the first scorer with a single value, and all scores by name.

    If all scorers have several values, the reward is the unweighted mean of the first one's.
    """
    # The oldest logs have a single score without a name.
    unnamed = {"score": sample["score"]} if sample.get("score") is not None else {}
    scorers = as_object(sample.get("scores")) or unnamed
    values = {name: as_object(score).get("value") for name, score in scorers.items()}
    parts: list[dict[str, float]] = []
    for name, value in values.items():
        items = as_object(dict(enumerate(value)) if isinstance(value, list) else value)
        named = {f"{name}/{key}": item for key, item in items.items()} or {name: value}
        scores = {key: parse_score(item) for key, item in named.items()}
        parts.append({key: score for key, score in scores.items() if score is not None})
    known = {name: score for scorer in parts for name, score in scorer.items()}
    for name, value in values.items():
        if not isinstance(value, dict | list):
            return known.get(name), known
    first = list(parts[0].values()) if parts else []
    return (sum(first) / len(first) if first else None), known


def parse_stop_reason(sample: JsonObject) -> StopReason:
    """Return the stop reason: a limit of the sample, or the finish reason of the last reply."""
    limit = as_object(sample.get("limit")).get("type")
    if limit is not None:
        return _STOP_BY_LIMIT.get(str(limit), StopReason.DONE)
    choices = as_object(sample.get("output")).get("choices")
    last = (
        as_object(choices[0]).get("stop_reason") if isinstance(choices, list) and choices else None
    )
    return _STOP_BY_FINISH_REASON.get(str(last), StopReason.DONE)


def parse_fault(sample: JsonObject, replies: list[JsonObject]) -> Fault | None:
    """Return the error or the operator's intervention that ended the sample."""
    limit, error = as_object(sample.get("limit")), as_object(sample.get("error"))
    if not error and limit.get("type") == "operator":
        message = str(limit.get("reason") or "An operator ended the sample.")
        return build_fault("Operator", message, by_model=False)
    if not error:
        return None
    message = str(error.get("message") or "")
    classes = _TRACEBACK_EXCEPTION.findall(str(error.get("traceback") or ""))
    exception = _EXCEPTION_REPR.match(message)
    kind = exception[1] if exception else classes[-1].rpartition(".")[2] if classes else "Error"
    unanswered = bool(replies) and bool(replies[-1].get("error"))
    return build_fault(kind, message, by_model=unanswered)


def parse_usage(by_model: JsonObject, model: str) -> Usage:
    """Return the usage of the evaluated model, or of all models if it is not listed.

    Inspect's input tokens do not include those read from the cache or written to it.
    """
    total = Usage()
    for counts in map(as_object, [by_model[model]] if model in by_model else by_model.values()):
        cached = as_count(counts, "input_tokens_cache_read")
        written = as_count(counts, "input_tokens_cache_write")
        total += Usage(
            prompt_tokens=as_count(counts, "input_tokens") + cached + written,
            completion_tokens=as_count(counts, "output_tokens"),
            cached_tokens=cached,
            reasoning_tokens=as_count(counts, "reasoning_tokens"),
            cost=as_number(counts.get("total_cost")),
        )
    return total


def parse_timing(
    sample: JsonObject, replies: list[JsonObject], calls: list[JsonObject]
) -> Timing | None:
    started, over = (
        _parse_sample_time(sample.get("started_at")),
        _parse_sample_time(sample.get("completed_at")),
    )
    if started is None or over is None:
        return None
    model = sum(as_number(event.get("working_time")) or 0.0 for event in replies)
    tools = sum(as_number(event.get("working_time")) or 0.0 for event in calls)
    # A tool may call a model: that time is counted as the model's only.
    left = max(0.0, (over - started).total_seconds() - model)
    return Timing(started_at=started, ended_at=over, model_s=model, environment_s=min(tools, left))


def _parse_sample_time(value: Any) -> datetime | None:
    """Parse the time at which an Inspect sample began or ended; None if it has no time zone."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
