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

from ludus.curate.importers import verifiers_trace
from ludus.curate.importers.chat import messages_of, tools_of
from ludus.curate.importers.making import episode_of
from ludus.curate.importers.reading import Malformed, Unreadable, a_number, each_line
from ludus.curate.importers.verifiers_outcome import (
    agent,
    ended,
    fault,
    fields,
    number,
    numbers,
    timing,
    usage,
)
from ludus.data.episode import Episode, Fault, StopReason, Timing
from ludus.data.tools import JsonObject
from ludus.errors import RunError

_WRITTEN = ("results.jsonl", "traces.jsonl")
_DESCRIPTIONS = ("metadata.json", "config.toml")
_TASK = ("example_id", "task", "answer", "info")


def files(path: Path) -> list[Path]:
    """The file that is named, or every result and trace in a folder and the folders in it."""
    if not path.is_dir():
        return [path]
    found = sorted(file for name in _WRITTEN for file in path.rglob(name) if file.is_file())
    if not found:
        raise RunError(
            f"There is no {' or '.join(_WRITTEN)} in {path}. Name the folder that `vf-eval` wrote "
            "to, or the file itself."
        )
    return found


def others(path: Path) -> list[Path]:
    """The files of a folder that are not read: logs, settings, what an attempt left behind."""
    if not path.is_dir():
        return []
    results = files(path)
    read_too = {file.parent / name for file in results for name in _DESCRIPTIONS}
    left = (file for file in path.rglob("*") if file.is_file())
    return sorted(set(left) - read_too - set(results))


def read(path: Path) -> Iterator[Episode | Unreadable]:
    run: JsonObject = {}
    for name in _DESCRIPTIONS:
        try:
            content = (path.parent / name).read_bytes()
            run |= _toml(content) if name.endswith(".toml") else fields(from_json(content))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            yield Unreadable(path.parent / name, None, f"the run's description: {error}")
    yield from each_line(path, lambda line: _episodes(line, run))


def _toml(content: bytes) -> JsonObject:
    """The settings of a run of 0.2, which alone say which environment it was."""
    name = fields(tomllib.loads(content.decode()).get("taskset")).get("id")
    return {} if name is None else {"env_id": name}


def _episodes(line: JsonObject, run: JsonObject) -> Iterator[Episode]:
    if "traces" in line:
        return verifiers_trace.rollout(line, run.get("env_id"))
    if "nodes" in line:
        return verifiers_trace.trace(line, run.get("env_id"))
    if "completion" in line:
        return iter([_result(line, run)])
    raise Malformed("it has no completion, as results have, and no nodes or traces, as traces have")


def _result(line: JsonObject, run: JsonObject) -> Episode:
    condition = line.get("stop_condition")
    reason = ended(condition, truncated=bool(line.get("is_truncated")))
    reward = a_number(line.get("reward"), "reward")
    environment = str(run.get("env_id") or line.get("task") or "verifiers")
    said = _said(line, "prompt", "user") + _said(line, "completion", "assistant")
    return episode_of(
        environment=environment,
        task={name: line[name] for name in _TASK if line.get(name) is not None},
        group=_group(line, run),
        agent=agent(run.get("model"), run.get("sampling_args")),
        messages=messages_of(said),
        tools=tools_of(_tools(line, run)),
        reward=None if reason.is_fault else reward,
        rewards=numbers(_metrics(line, run)),
        done=reason is StopReason.DONE,
        stop_reason=reason,
        error=_error(line.get("error")),
        usage=usage([fields(line.get("token_usage"))]),
        timing=_timing(fields(line.get("timing"))),
    )


def _said(line: JsonObject, name: str, speaker: str) -> list[Any]:
    """Messages; plain words where the model was asked to go on with a text."""
    value = line.get(name)
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": speaker, "content": value}]
    if not isinstance(value, list):
        raise Malformed(f"{name} is neither a text nor a list of messages")
    return value


def _group(line: JsonObject, run: JsonObject) -> Any:
    """An example is a place in a data set, and which one that is the arguments say."""
    example = line.get("example_id")
    if example is None:
        return None
    return {"example": example, "task": line.get("task"), "arguments": run.get("env_args") or {}}


def _tools(line: JsonObject, run: JsonObject) -> Any:
    info = fields(line.get("info"))
    return line.get("tool_defs") or info.get("oai_tools") or run.get("tools")


def _metrics(line: JsonObject, run: JsonObject) -> JsonObject:
    """In early versions they stand among the other fields; the run says which they are."""
    named = fields(line.get("metrics"))
    return named or {name: line.get(name) for name in fields(run.get("avg_metrics"))}


def _error(value: Any) -> Fault | None:
    """In early versions a string: the exception as Python shows it."""
    if not value:
        return None
    told = fields(value)
    message = str(told.get("error_chain_repr") or told.get("error") or value)
    return fault(str(told.get("error") or message.partition("(")[0]), message)


def _timing(told: JsonObject) -> Timing | None:
    start, total = number(told.get("start_time")), number(told.get("total"))
    if total is None and (milliseconds := number(told.get("total_ms"))) is not None:
        total = milliseconds / 1000
    return timing(
        start,
        None if start is None or total is None else start + total,
        model=fields(told.get("model")).get("duration"),
        environment=fields(told.get("env")).get("duration"),
    )
