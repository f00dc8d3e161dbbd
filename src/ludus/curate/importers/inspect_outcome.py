"""How a sample of Inspect AI ended: its score, its limit or error, its cost and its time.

Nothing here raises: what is missing or of another kind is as good as unsaid.
"""

from __future__ import annotations

import re
from datetime import datetime
from math import isfinite
from typing import Any

from ludus.data.episode import Fault, StopReason, Timing, Usage
from ludus.data.tools import JsonObject

_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
_WORDS |= {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_LIMITS = {
    "token": StopReason.MAX_TOKENS,
    "context": StopReason.MAX_TOKENS,
    "cost": StopReason.MAX_TOKENS,
    "message": StopReason.MAX_TURNS,
    "turn": StopReason.MAX_TURNS,
    "time": StopReason.DEADLINE,
    "working": StopReason.DEADLINE,
}
_REPLIES = {
    "max_tokens": StopReason.MAX_TOKENS,
    "model_length": StopReason.MAX_TOKENS,
    "content_filter": StopReason.REFUSED,
}
_SHOWN = re.compile(r"(\w+)\(")
_TRACED = re.compile(r"^[\s|]*([\w.]+?(?:Error|Exception|Cancelled\w*))\b", re.MULTILINE)


def fields(value: Any) -> JsonObject:
    """An object that may be missing."""
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """A score as a number: letters as Inspect reads them. NaN is its sign for unscored.

    Any other word stands for no number; such a score is left out.
    """
    if isinstance(value, str):
        word = value.strip()
        if (known := _WORDS.get(word, _WORDS.get(word.lower()))) is not None:
            return known
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if isfinite(found) else None


def reward_of(sample: JsonObject) -> tuple[float | None, dict[str, float]]:
    """The first scorer that gives one value has the say; the others are named parts.

    A scorer with several values has a part for each. Where there are only such scorers, the mean
    of the first one's values is the reward: nothing says how they weigh.
    """
    values = {name: fields(score).get("value") for name, score in _scores(sample).items()}
    parts = {name: _parts(name, value) for name, value in values.items()}
    known = {name: value for found in parts.values() for name, value in found.items()}
    for name, value in values.items():
        if not isinstance(value, dict | list):
            return known.get(name), known
    first = list(next(iter(parts.values()), {}).values())
    return (sum(first) / len(first) if first else None), known


def ended(sample: JsonObject) -> StopReason:
    """A limit of the sample's own, or the model's last reply; otherwise the task was through."""
    limit = fields(sample.get("limit")).get("type")
    if limit is not None:
        return _LIMITS.get(str(limit), StopReason.DONE)
    choices = fields(sample.get("output")).get("choices")
    last = fields(choices[0]).get("stop_reason") if isinstance(choices, list) and choices else None
    return _REPLIES.get(str(last), StopReason.DONE)


def fault_of(sample: JsonObject, replies: list[JsonObject]) -> Fault | None:
    """The error that ended it, or the hand that did: neither is the model's doing."""
    limit, error = fields(sample.get("limit")), fields(sample.get("error"))
    if not error and limit.get("type") == "operator":
        why = str(limit.get("reason") or "An operator ended the sample.")
        return Fault(kind="Operator", where="environment", message=why)
    if not error:
        return None
    message = str(error.get("message") or "")
    traced = _TRACED.findall(str(error.get("traceback") or ""))
    shown = _SHOWN.match(message)
    kind = shown[1] if shown else traced[-1].rpartition(".")[2] if traced else "Error"
    unanswered = bool(replies) and bool(replies[-1].get("error"))
    return Fault(kind=kind, where="model" if unanswered else "environment", message=message)


def usage_of(by_model: JsonObject, model: str) -> Usage:
    """What the model that was evaluated used; where it is not named, what all models used.

    In Inspect the input is without what was read from the cache or written to it.
    """
    total = Usage()
    for counts in [by_model[model]] if model in by_model else by_model.values():
        cached = _count(counts, "input_tokens_cache_read")
        written = _count(counts, "input_tokens_cache_write")
        total += Usage(
            prompt_tokens=_count(counts, "input_tokens") + cached + written,
            completion_tokens=_count(counts, "output_tokens"),
            cached_tokens=cached,
            reasoning_tokens=_count(counts, "reasoning_tokens"),
            cost=_measured(fields(counts), "total_cost"),
        )
    return total


def timing_of(
    sample: JsonObject, replies: list[JsonObject], calls: list[JsonObject]
) -> Timing | None:
    started, over = _moment(sample.get("started_at")), _moment(sample.get("completed_at"))
    if started is None or over is None:
        return None
    model = sum(_measured(event, "working_time") or 0.0 for event in replies)
    tools = sum(_measured(event, "working_time") or 0.0 for event in calls)
    # A tool may ask a model in its turn: that time is the model's, and is not counted twice.
    left = max(0.0, (over - started).total_seconds() - model)
    return Timing(started_at=started, ended_at=over, model_s=model, environment_s=min(tools, left))


def _scores(sample: JsonObject) -> JsonObject:
    """By the names of their scorers. The oldest logs have a single one, without a name."""
    single = {"score": sample["score"]} if sample.get("score") is not None else {}
    return fields(sample.get("scores")) or single


def _parts(name: str, value: Any) -> dict[str, float]:
    if isinstance(value, list):
        value = dict(enumerate(value))
    several = fields(value)
    named = {f"{name}/{key}": item for key, item in several.items()} if several else {name: value}
    found = {key: number(item) for key, item in named.items()}
    return {key: item for key, item in found.items() if item is not None}


def _count(counts: Any, name: str) -> int:
    return int(_measured(fields(counts), name) or 0)


def _measured(record: JsonObject, name: str) -> float | None:
    value = record.get(name)
    return number(value) if isinstance(value, int | float) else None


def _moment(value: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
