"""Import `results.jsonl` and, since version 0.2, `traces.jsonl` of Prime Intellect's verifiers.

A line of results is a rollout with prompt, completion, reward and metrics; `metadata.json` next to
it describes the run. Broken rollouts have a reward of 0 there, and none here. Whether a line is a
result or a trace is decided by its fields; traces are parsed by `verifiers_trace`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.curation.importers.base import (
    FormatError,
    UnreadableRecord,
    as_number,
    as_numbers,
    as_object,
    parse_number,
    read_jsonl,
)
from ludus.curation.importers.chat_messages import (
    parse_messages,
    parse_tools,
    wrap_chat_content,
)
from ludus.curation.importers.episode_builder import build_episode, build_timing
from ludus.curation.importers.verifiers import verifiers_trace
from ludus.curation.importers.verifiers.verifiers_outcome import (
    build_verifiers_fault,
    parse_stop_reason,
    parse_usage,
    parse_verifiers_agent,
)
from ludus.data.episode import Episode, StopReason
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

_RESULT_FILES = ("results.jsonl", "traces.jsonl")
_METADATA_FILES = ("metadata.json", "config.toml")
_TASK_FIELDS = ("example_id", "task", "answer", "info")


class VerifiersImporter:
    """Imports the output of `vf-eval`, of all versions of verifiers."""

    def find_files(self, path: Path) -> list[Path]:
        """Return the file itself, or all results and traces below a folder."""
        if not path.is_dir():
            return [path]
        files = sorted(
            file for name in _RESULT_FILES for file in path.rglob(name) if file.is_file()
        )
        if not files:
            raise RunError(
                f"There is no {' or '.join(_RESULT_FILES)} in {path}. Name the output folder of "
                "`vf-eval`, or the file itself."
            )
        return files

    def unread_files(self, path: Path) -> list[Path]:
        if not path.is_dir():
            return []
        results = self.find_files(path)
        metadata = {file.parent / name for file in results for name in _METADATA_FILES}
        files = {file for file in path.rglob("*") if file.is_file()}
        return sorted(files - metadata - set(results))

    def read_episodes(self, path: Path) -> Iterator[Episode | UnreadableRecord]:
        run: JsonObject = {}
        for name in _METADATA_FILES:
            try:
                content = (path.parent / name).read_text(encoding="utf-8-sig")
                if name.endswith(".json"):
                    run |= as_object(from_json(content))
                else:
                    # Since version 0.2, only the configuration names the environment.
                    config = tomllib.loads(content)
                    environment = as_object(config.get("taskset")).get("id")
                    run |= {} if environment is None else {"env_id": environment}
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RecursionError) as error:
                yield UnreadableRecord(path.parent / name, None, f"metadata of the run: {error}")
        yield from read_jsonl(path, lambda line: _parse_verifiers_line(line, run))


def _parse_verifiers_line(line: JsonObject, run: JsonObject) -> Iterator[Episode]:
    if "traces" in line:
        return verifiers_trace.parse_rollout(line, run.get("env_id"))
    if "nodes" in line:
        return verifiers_trace.parse_trace(line, run.get("env_id"))
    if "completion" in line:
        return iter([_parse_result(line, run)])
    raise FormatError(
        "it has none of completion, nodes and traces, so it is neither a result nor a trace"
    )


def _parse_result(line: JsonObject, run: JsonObject) -> Episode:
    condition = line.get("stop_condition")
    reason = parse_stop_reason(condition, truncated=bool(line.get("is_truncated")))
    reward = parse_number(line.get("reward"), "reward")
    environment = str(run.get("env_id") or line.get("task") or "verifiers")
    messages = _parse_turns(line, "prompt", "user") + _parse_turns(line, "completion", "assistant")
    # The example is an index into the data set that the arguments select.
    example, arguments = line.get("example_id"), run.get("env_args") or {}
    group = {"example": example, "task": line.get("task"), "arguments": arguments}
    tools = line.get("tool_defs") or as_object(line.get("info")).get("oai_tools")
    # In early versions metrics are fields of the line, and the run lists their names.
    early_metrics = {name: line.get(name) for name in as_object(run.get("avg_metrics"))}
    # In early versions an error is the repr of the exception.
    error = as_object(line.get("error"))
    message = str(error.get("error_chain_repr") or error.get("error") or line.get("error"))
    kind = str(error.get("error") or message.partition("(")[0])
    timing = as_object(line.get("timing"))
    start, total = as_number(timing.get("start_time")), as_number(timing.get("total"))
    if total is None and (milliseconds := as_number(timing.get("total_ms"))) is not None:
        total = milliseconds / 1000
    return build_episode(
        environment=environment,
        task={name: line[name] for name in _TASK_FIELDS if line.get(name) is not None},
        group=None if example is None else group,
        agent=parse_verifiers_agent(run.get("model"), run.get("sampling_args")),
        messages=parse_messages(messages),
        tools=parse_tools(tools or run.get("tools")),
        reward=None if reason.is_fault else reward,
        rewards=as_numbers(as_object(line.get("metrics")) or early_metrics),
        done=reason is StopReason.DONE,
        stop_reason=reason,
        error=build_verifiers_fault(kind, message) if line.get("error") else None,
        usage=parse_usage([as_object(line.get("token_usage"))]),
        timing=build_timing(
            start,
            None if start is None or total is None else start + total,
            model=as_object(timing.get("model")).get("duration"),
            environment=as_object(timing.get("env")).get("duration"),
        ),
    )


def _parse_turns(line: JsonObject, name: str, role: str) -> list[Any]:
    """Return the prompt or the completion of a verifiers result as a list of messages.

    A string is the prompt or the completion of a text completion.
    """
    value = line.get(name)
    if not isinstance(value, str | list | None):
        raise FormatError(f"{name} is neither a string nor a list of messages")
    return [] if value is None else wrap_chat_content(value, role)
