"""What verifiers of Prime Intellect writes: `results.jsonl`, and since 0.2 `traces.jsonl`.

A line of results is an attempt: prompt, completion, reward, and the metrics both together and one
by one; the run is described in `metadata.json` beside it. A broken attempt has a reward of 0 there,
and here none. Traces are `verifiers_trace`'s business. What a line is, is seen from the line.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.curation.importers.base import FormatError, UnreadableRecord, parse_number, read_jsonl
from ludus.curation.importers.chat_messages import parse_messages, parse_tools
from ludus.curation.importers.episode_builder import build_episode
from ludus.curation.importers.verifiers import verifiers_trace
from ludus.curation.importers.verifiers.verifiers_outcome import (
    agent_fields,
    as_object,
    build_fault,
    build_timing,
    finite_number,
    finite_numbers,
    parse_stop_reason,
    sum_usage,
)
from ludus.data.episode import Episode, Fault, StopReason, Timing
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError

_RESULT_FILES = ("results.jsonl", "traces.jsonl")
_METADATA_FILES = ("metadata.json", "config.toml")
_TASK_FIELDS = ("example_id", "task", "answer", "info")


def find_files(path: Path) -> list[Path]:
    """The file that is named, or every result and trace in a folder and the folders in it."""
    if not path.is_dir():
        return [path]
    found = sorted(file for name in _RESULT_FILES for file in path.rglob(name) if file.is_file())
    if not found:
        raise RunError(
            f"There is no {' or '.join(_RESULT_FILES)} in {path}. Name the folder that `vf-eval` wrote "
            "to, or the file itself."
        )
    return found


def unread_files(path: Path) -> list[Path]:
    """The files of a folder that are not read: logs, settings, what an attempt left behind."""
    if not path.is_dir():
        return []
    results = find_files(path)
    read_too = {file.parent / name for file in results for name in _METADATA_FILES}
    left = (file for file in path.rglob("*") if file.is_file())
    return sorted(set(left) - read_too - set(results))


def read_episodes(path: Path) -> Iterator[Episode | UnreadableRecord]:
    run: JsonObject = {}
    for name in _METADATA_FILES:
        try:
            content = (path.parent / name).read_bytes()
            run |= (
                _parse_config_toml(content)
                if name.endswith(".toml")
                else as_object(from_json(content))
            )
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            yield UnreadableRecord(path.parent / name, None, f"the run's description: {error}")
    yield from read_jsonl(path, lambda line: _parse_line(line, run))


def _parse_config_toml(content: bytes) -> JsonObject:
    """The settings of a run of 0.2, which alone say which environment it was."""
    name = as_object(tomllib.loads(content.decode()).get("taskset")).get("id")
    return {} if name is None else {"env_id": name}


def _parse_line(line: JsonObject, run: JsonObject) -> Iterator[Episode]:
    if "traces" in line:
        return verifiers_trace.parse_rollout(line, run.get("env_id"))
    if "nodes" in line:
        return verifiers_trace.parse_trace(line, run.get("env_id"))
    if "completion" in line:
        return iter([_parse_result(line, run)])
    raise FormatError(
        "it has no completion, as results have, and no nodes or traces, as traces have"
    )


def _parse_result(line: JsonObject, run: JsonObject) -> Episode:
    condition = line.get("stop_condition")
    reason = parse_stop_reason(condition, truncated=bool(line.get("is_truncated")))
    reward = parse_number(line.get("reward"), "reward")
    environment = str(run.get("env_id") or line.get("task") or "verifiers")
    said = _as_messages(line, "prompt", "user") + _as_messages(line, "completion", "assistant")
    return build_episode(
        environment=environment,
        task={name: line[name] for name in _TASK_FIELDS if line.get(name) is not None},
        group=_group_key(line, run),
        agent=agent_fields(run.get("model"), run.get("sampling_args")),
        messages=parse_messages(said),
        tools=parse_tools(_raw_tools(line, run)),
        reward=None if reason.is_fault else reward,
        rewards=finite_numbers(_raw_metrics(line, run)),
        done=reason is StopReason.DONE,
        stop_reason=reason,
        error=_parse_fault(line.get("error")),
        usage=sum_usage([as_object(line.get("token_usage"))]),
        timing=_parse_timing(as_object(line.get("timing"))),
    )


def _as_messages(line: JsonObject, name: str, speaker: str) -> list[Any]:
    """Messages; plain words where the model was asked to go on with a text."""
    value = line.get(name)
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": speaker, "content": value}]
    if not isinstance(value, list):
        raise FormatError(f"{name} is neither a text nor a list of messages")
    return value


def _group_key(line: JsonObject, run: JsonObject) -> Any:
    """An example is a place in a data set, and which one that is the arguments say."""
    example = line.get("example_id")
    if example is None:
        return None
    return {"example": example, "task": line.get("task"), "arguments": run.get("env_args") or {}}


def _raw_tools(line: JsonObject, run: JsonObject) -> Any:
    info = as_object(line.get("info"))
    return line.get("tool_defs") or info.get("oai_tools") or run.get("tools")


def _raw_metrics(line: JsonObject, run: JsonObject) -> JsonObject:
    """In early versions they stand among the other fields; the run says which they are."""
    named = as_object(line.get("metrics"))
    return named or {name: line.get(name) for name in as_object(run.get("avg_metrics"))}


def _parse_fault(value: Any) -> Fault | None:
    """In early versions a string: the exception as Python shows it."""
    if not value:
        return None
    told = as_object(value)
    message = str(told.get("error_chain_repr") or told.get("error") or value)
    return build_fault(str(told.get("error") or message.partition("(")[0]), message)


def _parse_timing(told: JsonObject) -> Timing | None:
    start, total = finite_number(told.get("start_time")), finite_number(told.get("total"))
    if total is None and (milliseconds := finite_number(told.get("total_ms"))) is not None:
        total = milliseconds / 1000
    return build_timing(
        start,
        None if start is None or total is None else start + total,
        model=as_object(told.get("model")).get("duration"),
        environment=as_object(told.get("env")).get("duration"),
    )
