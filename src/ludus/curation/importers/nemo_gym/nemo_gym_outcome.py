"""The outcome of a NeMo Gym rollout: reward, stop reason and fault.

Gym also writes a reward of 0 if the infrastructure failed. The failure is in other fields, which
differ between agents.
"""

from __future__ import annotations

from typing import Any

from ludus.curation.importers.base import as_object, parse_number, require_object
from ludus.curation.importers.episode_builder import build_fault
from ludus.data.episode import Fault, StopReason
from ludus.data.tool_schema import JsonObject

_REASON_FIELDS = (
    "_ng_failure_message",
    "_ng_failure_judge_error",
    "failure_reason",
    "error_message",
    "infrastructure_error",
    "error",
)
_MODEL_STAGES = ("agent", "model")


def parse_reward(line: JsonObject) -> float | None:
    """Return the reward; None if Gym masks the attempt out of scores and training."""
    reward = parse_number(line.get("reward"), "reward")
    return None if _is_masked(line) else reward


def parse_reward_components(line: JsonObject) -> dict[str, float]:
    """Return the `reward_components`, and numbers whose name ends with `_reward`."""
    named = {key: value for key, value in line.items() if is_gym_reward_field(key, value)}
    parts = {**named, **require_object(line.get("reward_components") or {}, "reward_components")}
    rewards = {key: parse_number(value, key) for key, value in parts.items()}
    return {key: value for key, value in rewards.items() if value is not None}


def is_gym_reward_field(name: str, value: Any) -> bool:
    """Whether a field of a NeMo Gym rollout is a part of its reward."""
    return name.endswith("_reward") and isinstance(value, int | float)


def parse_fault(line: JsonObject, response: JsonObject) -> Fault | None:
    """Return the fault that ended the rollout, if there is one.

    A line with an error and a reward other than 0 was scored nevertheless; one with an error and a
    reward of 0 probably was not.
    """
    failure_class = line.get("_ng_failure_class")
    reason = next((line[name] for name in _REASON_FIELDS if line.get(name)), None)
    stage = line.get("_ng_failure_stage", line.get("error_stage"))
    by_model = stage in _MODEL_STAGES
    if failure_class:
        return build_fault(failure_class, reason or failure_class, by_model=by_model)
    error = response.get("error")
    if error or response.get("status") in ("failed", "cancelled"):
        code = error.get("code") if isinstance(error, dict) else None
        message = error.get("message") if isinstance(error, dict) else error
        status = response.get("status") or "failed"
        return build_fault(code or status, message or reason or status, by_model=True)
    kind = line.get("failure_kind") or line.get("error_class")
    if _is_masked(line) and (kind or reason):
        return build_fault(kind or "masked", reason or kind, by_model=by_model)
    exception = line.get("exception_type")
    unscored = line.get("error") or line.get("infrastructure_error")
    unscored = unscored or (exception and (line.get("exception_message") or exception))
    if unscored and not line.get("reward"):
        return build_fault(kind or exception or "error", unscored, by_model=by_model)
    return None


def parse_stop(line: JsonObject, response: JsonObject) -> tuple[StopReason, bool]:
    """Return the stop reason, and whether the environment ended the episode."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    output = response.get("output")
    last = as_object(output[-1]) if isinstance(output, list) and output else {}
    parts = last.get("content")
    is_refusal = isinstance(parts, list) and any(
        as_object(part).get("type") == "refusal" for part in parts
    )
    if reason == "content_filter" or is_refusal:
        return StopReason.REFUSED, False
    if reason or response.get("status") == "incomplete":
        return StopReason.MAX_TOKENS, False
    if line.get("finished_naturally") is False or line.get("truncated") is True:
        return StopReason.MAX_TURNS, False
    return StopReason.DONE, True


def _is_masked(line: JsonObject) -> bool:
    """Whether the attempt is masked; some agents write that into `instance_config`."""
    nested = as_object(line.get("instance_config")).get("mask_sample")
    return bool(line.get("mask_sample") or nested)
