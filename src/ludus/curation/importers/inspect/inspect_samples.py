"""Logs of Inspect AI: every sample, in every epoch, is an attempt.

The reward is what the first scorer says that gives one number; letters stand for numbers as they
do in Inspect. What all scorers say is kept as the named parts. A sample that broke, ran out of time
or was declared invalid is unscored, although Inspect may have scored it as it stood.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ludus.curation.importers.base import FormatError, UnreadableRecord, first_error
from ludus.curation.importers.chat_messages import parse_messages, parse_tools
from ludus.curation.importers.episode_builder import build_episode
from ludus.curation.importers.inspect.inspect_chat import resolve_attachments, to_chat_messages
from ludus.curation.importers.inspect.inspect_log import read_samples
from ludus.curation.importers.inspect.inspect_outcome import (
    as_object,
    parse_fault,
    parse_reward,
    parse_stop_reason,
    parse_timing,
    parse_usage,
)
from ludus.data.episode import Episode, StopReason
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

# Beside its logs Inspect writes other JSON, which does not begin with a date.
_JSON_LOG = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}[:-]\d{2}[:-]\d{2}.*\.json")
# Headers and bodies of one's own may hold a key: only these are taken over.
_SAMPLING_FIELDS = frozenset(
    {"temperature", "top_p", "top_k", "max_tokens", "seed", "stop_seqs", "frequency_penalty"}
    | {"presence_penalty", "reasoning_effort", "reasoning_tokens"}
)


def find_files(path: Path) -> list[Path]:
    """The log that is named, or every log in a folder and the folders in it."""
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if _is_log(file) and file.is_file())
    if not found:
        raise RunError(
            f"There is no log of Inspect AI in {path}: no .eval, and no .json whose name begins "
            "with a date. Name the folder that `inspect eval` wrote to, or the log itself."
        )
    return found


def unread_files(path: Path) -> list[Path]:
    """The files of a folder that are not read."""
    if not path.is_dir():
        return []
    return sorted(file for file in path.rglob("*") if file.is_file() and not _is_log(file))


def read_episodes(path: Path) -> Iterator[Episode | UnreadableRecord]:
    for found in read_samples(path):
        if isinstance(found, UnreadableRecord):
            yield found
            continue
        header, sample = found
        try:
            yield _parse_episode(header, sample)
        except ValidationError as error:
            yield UnreadableRecord(path, None, f"{_describe_sample(sample)}: {first_error(error)}")
        except FormatError as error:
            yield UnreadableRecord(path, None, f"{_describe_sample(sample)}: {error}")


def _is_log(file: Path) -> bool:
    return file.suffix == ".eval" or _JSON_LOG.fullmatch(file.name) is not None


def _describe_sample(sample: JsonObject) -> str:
    return f"sample {sample.get('id')!r}, epoch {sample.get('epoch')!r}"


def _parse_episode(header: JsonObject, sample: JsonObject) -> Episode:
    run, kept = as_object(header.get("eval")), as_object(sample.get("attachments"))
    model = str(run.get("model") or "")
    replies = _filter_events(sample, "model")
    # A grader is a model too; its calls are not the player's.
    own = [event for event in replies if event.get("model") == model] or replies
    reason, error = parse_stop_reason(sample), parse_fault(sample, replies)
    reward, parts = parse_reward(sample)
    broken = reason.is_fault or bool(sample.get("invalidation"))
    return build_episode(
        episode_id=str(sample.get("uuid") or ""),
        environment=str(run.get("task_registry_name") or run.get("task") or "inspect"),
        task=_task_fields(sample, kept),
        group=_group_key(sample, kept),
        agent=_agent_fields(model, as_object(as_object(header.get("plan")).get("config"))),
        messages=parse_messages(to_chat_messages(sample.get("messages"), kept)),
        tools=parse_tools(_offered_tools(own, kept)),
        reward=None if broken else reward,
        rewards=parts,
        done=reason is StopReason.DONE,
        stop_reason=reason,
        error=error,
        usage=parse_usage(as_object(sample.get("model_usage")), model),
        timing=parse_timing(sample, own, _filter_events(sample, "tool")),
    )


def _filter_events(sample: JsonObject, kind: str) -> list[JsonObject]:
    events = sample.get("events")
    return [
        event
        for event in (events if isinstance(events, list) else [])
        if isinstance(event, dict) and event.get("event") == kind
    ]


def _task_fields(sample: JsonObject, attachments: JsonObject) -> JsonObject:
    """What was to be done, and by what it is judged. The question itself is in the messages."""
    named = ("id", "target", "choices", "metadata")
    task = {name: sample.get(name) for name in named if sample.get(name) not in (None, {})}
    return {name: resolve_attachments(value, attachments) for name, value in task.items()}


def _group_key(sample: JsonObject, attachments: JsonObject) -> Any:
    """The id is often no more than a place in a data set, so the question is asked for as well."""
    asked = sample.get("input")
    if isinstance(asked, list):
        # Without the ids of the messages, which are new in every run.
        said = parse_messages(to_chat_messages(asked, attachments), "input")
        asked = [message.model_dump(mode="json") for message in said]
    return {"id": sample.get("id"), "input": asked, "target": sample.get("target")}


def _agent_fields(model: str, config: JsonObject) -> JsonObject:
    provider, _, name = model.partition("/") if "/" in model else ("", "", model)
    told = {"provider": provider or None, "model": name or None}
    told |= {key: value for key, value in config.items() if key in _SAMPLING_FIELDS}
    return {key: value for key, value in told.items() if value is not None}


def _offered_tools(replies: list[JsonObject], attachments: JsonObject) -> list[Any]:
    """Every tool that the model was offered in any of its turns, as it was offered first."""
    tools: dict[str, Any] = {}
    for event in replies:
        offered = event.get("tools")
        for tool in offered if isinstance(offered, list) else []:
            name = str(as_object(tool).get("name"))
            if name not in tools:
                told = ("name", "description", "parameters")
                tools[name] = resolve_attachments(
                    {key: as_object(tool).get(key) for key in told}, attachments
                )
    return list(tools.values())
