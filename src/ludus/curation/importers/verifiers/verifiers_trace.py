"""Parse traces of verifiers, which store the messages of a rollout once, as a tree.

The tree branches where the harness rewrote the history or started sub-agents. Each branch is a
conversation as the model saw it, and becomes an episode; the reward of the rollout is given to each
of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ludus.curation.importers.base import (
    FormatError,
    as_number,
    as_numbers,
    as_object,
    parse_number,
    require_object,
)
from ludus.curation.importers.chat_messages import parse_messages, parse_tools
from ludus.curation.importers.episode_builder import build_episode, build_timing
from ludus.curation.importers.verifiers.verifiers_outcome import (
    build_verifiers_fault,
    parse_stop_reason,
    parse_usage,
    parse_verifiers_agent,
)
from ludus.data.episode import Episode, Fault, StopReason, Timing
from ludus.data.tool_schema import JsonObject


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
