"""Import logs of Inspect AI: every sample of every epoch is an attempt.

The reward is that of the first scorer with a single value; the scores of all scorers are kept by
name. A sample that broke, timed out or was invalidated is unscored, even if Inspect scored it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ludus.curation.importers.base import FormatError, UnreadableRecord, as_object
from ludus.curation.importers.chat_messages import parse_messages, parse_tools
from ludus.curation.importers.episode_builder import build_episode
from ludus.curation.importers.inspect.inspect_chat import to_chat_messages
from ludus.curation.importers.inspect.inspect_log import (
    is_inspect_log,
    read_samples,
    resolve_attachments,
)
from ludus.curation.importers.inspect.inspect_outcome import (
    parse_fault,
    parse_reward,
    parse_stop_reason,
    parse_timing,
    parse_usage,
)
from ludus.data.episode import Episode, StopReason
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
    tools: dict[str, Any] = {}
    for event in replies:
        offered = event.get("tools")
        for tool in offered if isinstance(offered, list) else []:
            name = str(as_object(tool).get("name"))
            if name not in tools:
                keys = ("name", "description", "parameters")
                definition = {key: as_object(tool).get(key) for key in keys}
                tools[name] = resolve_attachments(definition, attachments)
    return list(tools.values())
