"""Import logs of Inspect AI: every sample of every epoch is an attempt.

The reward comes from the first scorer with a single value; the scores of all scorers are kept by
name. A sample that broke, timed out or was invalidated is unscored, even if Inspect scored it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ludus.curation.importers.base import (
    FormatError,
    UnreadableRecord,
    as_count,
    as_number,
    as_object,
    build_episode,
    build_fault,
    require_object,
)
from ludus.curation.importers.chat_messages import parse_messages, parse_tools
from ludus.curation.importers.inspect_log import is_inspect_log, read_samples, resolve_attachments
from ludus.data.episode import Episode, Fault, StopReason, Timing, Usage
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

# Only these: other settings, such as custom headers, may contain API keys.
_SAMPLING_FIELDS = frozenset(
    {"temperature", "top_p", "top_k", "max_tokens", "seed", "stop_seqs", "frequency_penalty"}
    | {"presence_penalty", "reasoning_effort", "reasoning_tokens"}
)


class InspectImporter:
    """Imports the logs of Inspect AI, `.eval` or `.json`."""

    def find_files(self, path: Path) -> list[Path]:
        """Return the log itself, or all logs below a folder."""
        if not path.is_dir():
            return [path]
        files = sorted(file for file in path.rglob("*") if is_inspect_log(file) and file.is_file())
        if not files:
            raise RunError(
                f"There is no Inspect AI log in {path}: no .eval, and no .json whose name begins "
                "with a date. Name the log folder of `inspect eval`, or the log itself."
            )
        return files

    def unread_files(self, path: Path) -> list[Path]:
        if not path.is_dir():
            return []
        return sorted(
            file for file in path.rglob("*") if file.is_file() and not is_inspect_log(file)
        )

    def read_episodes(self, path: Path) -> Iterator[Episode | UnreadableRecord]:
        for record in read_samples(path):
            if isinstance(record, UnreadableRecord):
                yield record
                continue
            header, sample = record
            try:
                yield _parse_inspect_sample(header, sample)
            except (ValidationError, FormatError) as error:
                name = f"sample {sample.get('id')!r}, epoch {sample.get('epoch')!r}"
                yield UnreadableRecord.from_error(path, None, error, record=name)


def _parse_inspect_sample(header: JsonObject, sample: JsonObject) -> Episode:
    run, attachments = as_object(header.get("eval")), as_object(sample.get("attachments"))
    model = str(run.get("model") or "")
    replies = _filter_events(sample, "model")
    # Without the replies of grader models.
    own_replies = [event for event in replies if event.get("model") == model] or replies
    reason, error = parse_stop_reason(sample), parse_fault(sample, replies)
    reward, parts = parse_reward(sample)
    broken = reason.is_fault or bool(sample.get("invalidation"))
    prompt = sample.get("input")
    if isinstance(prompt, list):
        # Without the ids of messages, which are new in every run.
        messages = parse_messages(to_chat_messages(prompt, attachments), "input")
        prompt = [message.model_dump(mode="json") for message in messages]
    provider, _, name = model.partition("/") if "/" in model else ("", "", model)
    settings = as_object(as_object(header.get("plan")).get("config"))
    agent = {"provider": provider or None, "model": name or None}
    agent |= {key: value for key, value in settings.items() if key in _SAMPLING_FIELDS}
    return build_episode(
        episode_id=str(sample.get("uuid") or ""),
        environment=str(run.get("task_registry_name") or run.get("task") or "inspect"),
        # Without the input, which is in the messages.
        task={
            name: resolve_attachments(sample[name], attachments)
            for name in ("id", "target", "choices", "metadata")
            if sample.get(name) not in (None, {})
        },
        # The id is often only an index in a data set.
        group={"id": sample.get("id"), "input": prompt, "target": sample.get("target")},
        agent={key: value for key, value in agent.items() if value is not None},
        messages=parse_messages(to_chat_messages(sample.get("messages"), attachments)),
        tools=parse_tools(_offered_tools(own_replies, attachments)),
        reward=None if broken else reward,
        rewards=parts,
        done=reason is StopReason.DONE,
        stop_reason=reason,
        error=error,
        usage=parse_usage(as_object(sample.get("model_usage")), model),
        timing=parse_timing(sample, own_replies, _filter_events(sample, "tool")),
    )


def _filter_events(sample: JsonObject, kind: str) -> list[JsonObject]:
    events = sample.get("events")
    return [
        event
        for event in (events if isinstance(events, list) else [])
        if isinstance(event, dict) and event.get("event") == kind
    ]


def _offered_tools(replies: list[JsonObject], attachments: JsonObject) -> list[Any]:
    """Return all tools that were offered in any turn, as they were offered first."""
    tools: JsonObject = {}
    for event in replies:
        offered = event.get("tools")
        for tool in offered if isinstance(offered, list) else []:
            name = str(as_object(tool).get("name"))
            if name not in tools:
                keys = ("name", "description", "parameters")
                definition = {key: as_object(tool).get(key) for key in keys}
                tools[name] = resolve_attachments(definition, attachments)
    return list(tools.values())


def to_chat_messages(values: Any, attachments: JsonObject) -> list[JsonObject]:
    if not isinstance(values, list):
        raise FormatError("messages is not a list")
    return [
        _convert_message(resolve_attachments(require_object(value, f"message {at}"), attachments))
        for at, value in enumerate(values)
    ]


def _convert_message(value: JsonObject) -> JsonObject:
    """Convert a message, without Inspect's ids, sources and notes."""
    content, reasoning = value.get("content"), value.get("reasoning")
    if isinstance(content, list):
        texts = [
            # Redacted reasoning is encrypted; only its summary is readable.
            part.get("summary" if part.get("redacted") else "reasoning")
            for part in content
            if isinstance(part, dict) and part.get("type") == "reasoning"
        ]
        reasoning = "\n\n".join(str(text) for text in texts if text) or reasoning
        content = list(_convert_inspect_parts(content)) or ""
    message = {"role": value.get("role"), "content": content, "reasoning_content": reasoning}
    if value.get("role") == "tool":
        error = value.get("error")
        if isinstance(error, dict):
            # A failed tool has no result; this is what the model was shown.
            message["content"] = f"Error: {error.get('message')}"
        message |= {"tool_call_id": value.get("tool_call_id"), "name": value.get("function")}
    calls = value.get("tool_calls")
    if isinstance(calls, list):
        # Of malformed arguments, Inspect keeps only the parse error.
        calls = [
            {**call, "arguments": str(call["parse_error"])}
            if isinstance(call, dict) and call.get("parse_error")
            else call
            for call in calls
        ]
    return {**message, "tool_calls": calls}


def _convert_inspect_parts(parts: list[Any]) -> Iterator[Any]:
    """Yield the parts of a message of an Inspect log that belong to the content of a chat."""
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "tool_use":
            # A built-in tool of the provider, which is not among the tools of the sample.
            call = f"[{part.get('name')} {part.get('arguments')}]"
            texts = [call, part.get("result"), part.get("error")]
            yield {"type": "text", "text": "\n".join(str(text) for text in texts if text)}
        elif kind not in ("reasoning", "data"):
            yield part


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
