"""Import `results.jsonl` and, since version 0.2, `traces.jsonl` of Prime Intellect's verifiers.

A line of results is a rollout with prompt, completion, reward and metrics; `metadata.json` next to
it describes the run. Broken rollouts have a reward of 0 there, and none here.

A trace stores the messages of a rollout once, as a tree. It branches where the harness rewrote the
history or started sub-agents. Each branch is a conversation as the model saw it, and becomes an
episode; the reward of the rollout is given to each of them. Results and traces have different names
for the same fields.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ludus.curation.importers.base import (
    FormatError,
    UnreadableRecord,
    as_count,
    as_number,
    as_numbers,
    as_object,
    build_episode,
    build_fault,
    build_timing,
    parse_number,
    read_jsonl,
    require_object,
)
from ludus.curation.importers.chat_messages import parse_messages, parse_tools, wrap_chat_content
from ludus.data.episode import Episode, Fault, StopReason, Timing, Usage
from ludus.data.json_files import read_text
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
                content = read_text(path.parent / name)
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
        return parse_rollout(line, run.get("env_id"))
    if "nodes" in line:
        return parse_trace(line, run.get("env_id"))
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


def parse_rollout(line: JsonObject, environment: str | None) -> Iterator[Episode]:
    """Parse a line of `traces.jsonl`: the traces of all agents of a rollout.

    An error of the environment breaks all of them, because scoring across agents did not run. If it
    occurred before there was any trace, it becomes an episode without messages.
    """
    name = as_object(line.get("env")).get("id") or environment
    error, timed_out = _parse_fault(line), bool(line.get("is_timeout"))
    traces = line.get("traces")
    if not isinstance(traces, list):
        raise FormatError("traces is not a list")
    for value in traces:
        yield from parse_trace(
            require_object(value, "a trace"), name, error=error, timed_out=timed_out
        )
    if not traces:
        if error is None and not timed_out:
            raise FormatError("it has neither a trace nor an error")
        task = as_object(line.get("task"))
        yield build_episode(
            episode_id=str(line.get("id") or ""),
            environment=_trace_environment(name, task),
            task=as_object(task.get("data")),
            group=_trace_group_key(task, "agent"),
            messages=(),
            reward=None,
            done=False,
            stop_reason=StopReason.DEADLINE,
            error=error,
        )


def parse_trace(
    record: JsonObject,
    environment: str | None,
    *,
    error: Fault | None = None,
    timed_out: bool = False,
) -> Iterator[Episode]:
    """Yield an episode for every leaf of the tree, and one without messages if there is no node."""
    nodes, task = _parse_nodes(record), as_object(record.get("task"))
    player = as_object(record.get("agent"))
    config = as_object(player.get("config")) or player
    role = str(player.get("name") or "agent")
    timed_out = timed_out or bool(record.get("is_timeout"))
    if error is None and not timed_out:
        error = _parse_fault(record)
        if error is None and record.get("ok") is False:
            # It was stopped while it ran or was scored.
            reason = record.get("stop_condition") or "no reason"
            error = build_verifiers_fault("Unfinished", f"Did not complete: {reason}")
    reward, parts = _parse_reward(record)
    branches = _find_branches(record, nodes)
    trace_id = str(record.get("id") or "")
    for at, (path, calls) in enumerate(branches):
        replies = [call.get("finish_reason") for call in calls if not call.get("error")]
        cut_off = replies[-1:] == ["length"]
        reason = parse_stop_reason(
            record.get("stop_condition"), truncated=cut_off, timed_out=timed_out
        )
        offered = nodes[path[0]].get("tools") if path else None
        yield build_episode(
            episode_id=f"{trace_id}-{at}" if trace_id and len(branches) > 1 else trace_id,
            environment=_trace_environment(environment, task),
            task=as_object(task.get("data")),
            group=_trace_group_key(task, role),
            agent=parse_verifiers_agent(config.get("model"), config.get("sampling"), role=role),
            messages=parse_messages([nodes[index].get("message") for index in path]),
            tools=parse_tools(offered or record.get("tools")),
            reward=None if reason.is_fault else reward,
            rewards=parts,
            done=reason is StopReason.DONE,
            stop_reason=reason,
            error=error,
            usage=parse_usage(as_object(call.get("usage")) for call in calls),
            timing=_parse_trace_timing(as_object(record.get("timing"))),
        )


def _parse_nodes(record: JsonObject) -> list[JsonObject]:
    values = record.get("nodes")
    if not isinstance(values, list):
        raise FormatError("nodes is not a list")
    nodes = [require_object(value, f"node {at}") for at, value in enumerate(values)]
    for at, node in enumerate(nodes):
        parent = node.get("parent")
        # Parents precede their children, so there are no cycles.
        if parent is not None and not (type(parent) is int and 0 <= parent < at):
            raise FormatError(f"node {at} has the parent {parent!r}, which is not a node before it")
    return nodes


def _find_branches(
    record: JsonObject, nodes: list[JsonObject]
) -> list[tuple[list[int], list[JsonObject]]]:
    """Return the path from the root to each leaf, with the model calls of that branch.

    A call before a fork is counted in the first branch only, and so is a failed call, which has no
    node. The call of a leaf always belongs to the leaf's branch. Without nodes there is one branch,
    with an empty path.
    """
    parents = {node.get("parent") for node in nodes}
    owner: dict[int, int] = {}
    branches: list[tuple[list[int], list[JsonObject]]] = []
    for leaf in range(len(nodes)):
        if leaf not in parents:
            path: list[int] = []
            at: int | None = leaf
            while at is not None:
                path.append(at)
                owner.setdefault(at, len(branches))
                at = nodes[at].get("parent")
            branches.append((path[::-1], []))
    branches = branches or [([], [])]
    calls = record.get("calls")
    for call in map(as_object, calls if isinstance(calls, list) else []):
        index = call.get("node")
        _, branch_calls = branches[owner.get(index, 0) if isinstance(index, int) else 0]
        branch_calls.append(call)
    return branches


def _parse_reward(record: JsonObject) -> tuple[float | None, dict[str, float]]:
    """Return the weighted sum of the rewards, and the rewards and metrics by name.

    If a reward is null it was not scored, and the sum is unknown. Before version 0.3 rewards were
    numbers that included their weights.
    """
    parts: dict[str, float | None] = {}
    for name, value in as_object(record.get("rewards")).items():
        if isinstance(value, dict):
            score, weight = (
                as_number(value.get("score")),
                as_number(value.get("weight", 1.0)),
            )
            parts[name] = None if score is None or weight is None else score * weight
        else:
            parts[name] = parse_number(value, f"reward {name!r}")
    known = {name: value for name, value in parts.items() if value is not None}
    unscored = not parts or len(known) < len(parts) or bool(record.get("dropped"))
    return (
        None if unscored else sum(known.values()),
        as_numbers(as_object(record.get("metrics"))) | known,
    )


def _parse_fault(record: JsonObject) -> Fault | None:
    """Return the last error, unless the rollout succeeded in a later attempt."""
    errors = record.get("errors")
    if record.get("ok") is True or not isinstance(errors, list) or not errors:
        return None
    last = as_object(errors[-1])
    return build_verifiers_fault(str(last.get("type") or "Error"), str(last.get("message") or ""))


def _trace_environment(name: str | None, task: JsonObject) -> str:
    """Return the environment of a trace: the one of the run, or the type of its task."""
    return str(name or task.get("type") or "verifiers")


def _trace_group_key(task: JsonObject, role: str) -> Any:
    """Return the key of the task, and the role: different roles do not form a group."""
    return [task.get("key") or task.get("hash") or task.get("data"), role]


def _parse_trace_timing(timing: JsonObject) -> Timing | None:
    """Parse the timing of a trace, which ends with its last span."""
    agent = as_object(timing.get("agent", timing.get("generation")))
    ends = [as_number(as_object(span).get("end")) or 0.0 for span in timing.values()]
    return build_timing(
        timing.get("start"),
        max(ends, default=0.0) or None,
        model=as_object(agent.get("model")).get("duration"),
        environment=as_object(agent.get("harness")).get("duration"),
    )


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
