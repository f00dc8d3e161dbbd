"""Read `results.jsonl` and, of newer versions, `traces.jsonl` of Prime Intellect's verifiers.

A line of results is a rollout with prompt, completion, reward and metrics; `metadata.json` next to
it describes the run. Broken rollouts have a reward of 0 there, and none here.

A trace stores the messages of a rollout once, as a tree. It branches if the harness rewrote the
history or started sub-agents. Each branch is a conversation as the model saw it, and becomes an
episode; the reward of the rollout is given to each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic_core import from_json

from ludus.curation.formats.base import (
    FormatError,
    UnreadableRecord,
    as_numbers,
    as_object,
    build_episode,
    build_fault,
    parse_number,
    read_jsonl,
    require_object,
)
from ludus.curation.formats.chat_messages import parse_messages, parse_tools, wrap_content
from ludus.data.episode import Episode, Fault, StopReason, Usage
from ludus.data.json_files import read_text
from ludus.data.tool_schema import JsonObject

_TASK_FIELDS = ("example_id", "task", "answer", "info")
_STOP_BY_CONDITION = {
    "max_turns": StopReason.MAX_TURNS,
    "max_turns_reached": StopReason.MAX_TURNS,
    "prompt_too_long": StopReason.MAX_TOKENS,
    "max_total_completion_tokens_reached": StopReason.MAX_TOKENS,
    "max_input_tokens": StopReason.MAX_TOKENS,
    "max_output_tokens": StopReason.MAX_TOKENS,
    "max_total_tokens": StopReason.MAX_TOKENS,
    "timeout_reached": StopReason.DEADLINE,
}
# Only these: other settings, such as custom headers, may contain API keys.
_SAMPLING_FIELDS = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "max_tokens", "reasoning_effort", "seed"}
    | {"max_completion_tokens", "frequency_penalty", "presence_penalty", "repetition_penalty"}
)


def read_verifiers(path: Path) -> Iterator[Episode | UnreadableRecord]:
    metadata, run = path.with_name("metadata.json"), JsonObject()
    try:
        run = as_object(from_json(read_text(metadata)))
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        yield UnreadableRecord(metadata, None, f"metadata of the run: {error}")
    yield from read_jsonl(path, lambda line: _parse_line(line, run))


def _parse_line(line: JsonObject, run: JsonObject) -> Iterator[Episode]:
    if "traces" in line:
        return _parse_rollout(line)
    if "completion" in line:
        return iter([_parse_result(line, run)])
    raise FormatError("it has neither completion nor traces, so it is neither a result nor a trace")


def _parse_result(line: JsonObject, run: JsonObject) -> Episode:
    reason = _parse_stop_reason(line.get("stop_condition"), truncated=line.get("is_truncated"))
    reward = parse_number(line.get("reward"), "reward")
    messages: list[object] = []
    for name, role in (("prompt", "user"), ("completion", "assistant")):
        if line.get(name) is not None:
            messages += wrap_content(line[name], role)
    # The example is an index into the data set that the arguments select.
    example, arguments = line.get("example_id"), run.get("env_args") or {}
    error = as_object(line.get("error"))
    # In early versions an error is the repr of the exception.
    message = str(error.get("error_chain_repr") or error.get("error") or line.get("error"))
    kind = str(error.get("error") or message.partition("(")[0])
    return build_episode(
        environment=str(run.get("env_id") or line.get("task") or "verifiers"),
        task={name: line[name] for name in _TASK_FIELDS if line.get(name) is not None},
        group=None if example is None else [example, line.get("task"), arguments],
        agent=_parse_agent(run.get("model"), run.get("sampling_args")),
        messages=parse_messages(messages),
        tools=parse_tools(line.get("tool_defs") or run.get("tools")),
        reward=None if reason.is_fault else reward,
        rewards=as_numbers(as_object(line.get("metrics"))),
        done=reason is StopReason.DONE,
        stop_reason=reason,
        error=_build_fault(kind, message) if line.get("error") else None,
        usage=_sum_usage([as_object(line.get("token_usage"))]),
    )


def _parse_rollout(line: JsonObject) -> Iterator[Episode]:
    """Parse a line of `traces.jsonl`: the traces of all agents of a rollout.

    An error of the environment breaks all of them, because scoring across agents did not run.
    """
    traces = line.get("traces")
    if not isinstance(traces, list) or not traces:
        raise FormatError(f"it has no trace: {line.get('errors') or 'traces is not a list'}")
    error = _parse_fault(line)
    for value in traces:
        trace = require_object(value, "a trace")
        yield from _parse_trace(trace, as_object(line.get("env")).get("id"), error)


def _parse_trace(record: JsonObject, environment: object, error: Fault | None) -> Iterator[Episode]:
    """Yield an episode for every leaf of the tree. Usage is counted in the first of them."""
    nodes = record.get("nodes")
    if not isinstance(nodes, list):
        raise FormatError("nodes is not a list")
    task, agent = as_object(record.get("task")), as_object(record.get("agent"))
    role, config = str(agent.get("name") or "agent"), as_object(agent.get("config"))
    calls = record.get("calls")
    calls = [as_object(call) for call in calls] if isinstance(calls, list) else []
    reason = _parse_stop_reason(
        record.get("stop_condition"),
        truncated=bool(calls) and calls[-1].get("finish_reason") == "length",
        timed_out=record.get("is_timeout"),
    )
    error = error or _parse_fault(record)
    if error is None and record.get("ok") is False and not record.get("is_timeout"):
        error = _build_fault("Unfinished", f"Did not complete: {record.get('stop_condition')}")
    rewards: dict[str, float] = {}
    parts = as_object(record.get("rewards"))
    for name, part in parts.items():
        score = parse_number(as_object(part).get("score"), f"reward {name!r}")
        if score is not None:
            rewards[name] = score * float(part.get("weight", 1.0))
    is_scored = parts and len(rewards) == len(parts) and not record.get("dropped")
    branches = list(_iter_branches(nodes)) or [[]]
    trace_id = str(record.get("id") or "")
    for at, branch in enumerate(branches):
        yield build_episode(
            episode_id=f"{trace_id}-{at}" if trace_id and len(branches) > 1 else trace_id,
            environment=str(environment or task.get("type") or "verifiers"),
            task=as_object(task.get("data")),
            # Different roles do not form a group.
            group=[task.get("key") or task.get("hash") or task.get("data"), role],
            agent=_parse_agent(config.get("model"), config.get("sampling")) | {"role": role},
            messages=parse_messages([node.get("message") for node in branch]),
            tools=parse_tools((branch[0].get("tools") if branch else None) or record.get("tools")),
            reward=sum(rewards.values()) if is_scored and not reason.is_fault else None,
            rewards=as_numbers(as_object(record.get("metrics"))) | rewards,
            done=reason is StopReason.DONE,
            stop_reason=reason,
            error=error,
            usage=_sum_usage(as_object(call.get("usage")) for call in calls) if at == 0 else None,
        )


def _iter_branches(values: list[object]) -> Iterator[list[JsonObject]]:
    """Yield the path from the root to each leaf."""
    nodes = [require_object(value, f"node {at}") for at, value in enumerate(values)]
    paths: list[list[JsonObject]] = []
    for at, node in enumerate(nodes):
        parent = node.get("parent")
        # Parents precede their children, so there are no cycles.
        if parent is not None and not (type(parent) is int and 0 <= parent < at):
            raise FormatError(f"node {at} has the parent {parent!r}, which is not a node before it")
        paths.append([node] if parent is None else [*paths[parent], node])
    parents = {node.get("parent") for node in nodes}
    return (path for at, path in enumerate(paths) if at not in parents)


def _parse_fault(record: JsonObject) -> Fault | None:
    """Return the last error, unless the rollout succeeded in a later attempt."""
    errors = record.get("errors")
    if record.get("ok") is True or not isinstance(errors, list) or not errors:
        return None
    last = as_object(errors[-1])
    return _build_fault(str(last.get("type") or "Error"), str(last.get("message") or ""))


def _build_fault(kind: str, message: str) -> Fault:
    """Build a fault. The kind tells whether it is an error of the model's provider."""
    return build_fault(kind, message, by_model=any(word in kind for word in ("Model", "Provider")))


def _parse_stop_reason(
    condition: object, *, truncated: object, timed_out: object = False
) -> StopReason:
    """Convert the name of the stop condition; environments may define others.

    A model that stops calling tools ends the rollout regularly.
    """
    name = str(condition or "")
    if timed_out or name.endswith("_timeout"):
        return StopReason.DEADLINE
    return _STOP_BY_CONDITION.get(name) or (StopReason.MAX_TOKENS if truncated else StopReason.DONE)


def _sum_usage(counts: Iterable[JsonObject]) -> Usage:
    """Sum up token counts. Traces count prompt tokens without cached ones."""
    total = Usage()
    for count in counts:
        cached = int(count.get("cached_input_tokens") or 0)
        prompt = count.get("prompt_tokens") or count.get("input_tokens") or 0
        completion = count.get("completion_tokens") or count.get("output_tokens") or 0
        total += Usage(
            prompt_tokens=int(prompt) + cached,
            completion_tokens=int(completion),
            cached_tokens=cached,
            reasoning_tokens=count.get("reasoning_tokens") or 0,
            cost=count.get("cost"),
        )
    return total


def _parse_agent(model: object, sampling: object) -> JsonObject:
    """Return model and sampling settings, without those not set."""
    settings = {"model": model}
    settings |= {k: v for k, v in as_object(sampling).items() if k in _SAMPLING_FIELDS}
    return {name: value for name, value in settings.items() if value is not None}
