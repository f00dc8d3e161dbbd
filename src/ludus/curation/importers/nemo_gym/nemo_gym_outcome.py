"""How a rollout of NeMo Gym ended: its reward and its parts, or why it has none.

Gym writes a reward of 0 also where the infrastructure failed. It says that in other fields, and
different agents in different ones.
"""

from __future__ import annotations

from typing import Any

from ludus.curation.importers.base import parse_number, require_object
from ludus.curation.importers.chat_messages import dump_json
from ludus.data.episode import Fault, StopReason, Usage
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
    """None where Gym leaves the attempt out of scores and training."""
    reward = parse_number(line.get("reward"), "reward")
    return None if _is_masked(line) else reward


def parse_reward_components(line: JsonObject) -> dict[str, float]:
    """The parts of the reward: those that are said to be, and numbers that are called a reward."""
    named = {key: value for key, value in line.items() if is_reward_component(key, value)}
    parts = {**named, **require_object(line.get("reward_components") or {}, "reward_components")}
    read = {key: parse_number(value, key) for key, value in parts.items()}
    return {key: value for key, value in read.items() if value is not None}


def is_reward_component(name: str, value: Any) -> bool:
    return name.endswith("_reward") and isinstance(value, int | float)


def parse_fault(line: JsonObject, response: JsonObject) -> Fault | None:
    """What broke it, if anything but the model did.

    A line with an error and a reward was measured all the same; one with an error and a reward of
    0 may well not have been, and then it is nobody's score.
    """
    failed, reason = line.get("_ng_failure_class"), _failure_reason(line)
    where = line.get("_ng_failure_stage", line.get("error_stage"))
    by_model = where in _MODEL_STAGES
    if failed:
        return _build_fault(failed, reason or failed, by_model=by_model)
    wrong = response.get("error")
    if wrong or response.get("status") in ("failed", "cancelled"):
        code = wrong.get("code") if isinstance(wrong, dict) else None
        said = wrong.get("message") if isinstance(wrong, dict) else wrong
        status = response.get("status") or "failed"
        return _build_fault(code or status, said or reason or status, by_model=True)
    kind = line.get("failure_kind") or line.get("error_class")
    if _is_masked(line) and (kind or reason):
        return _build_fault(kind or "masked", reason or kind, by_model=by_model)
    unmeasured = line.get("error") or line.get("infrastructure_error")
    if unmeasured and not line.get("reward"):
        return _build_fault(kind or "error", unmeasured, by_model=by_model)
    return None


def parse_stop(line: JsonObject, response: JsonObject) -> tuple[StopReason, bool]:
    """Why it ended, and whether the environment ended it."""
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    if reason == "content_filter" or _is_refusal(response.get("output")):
        return StopReason.REFUSED, False
    if reason or response.get("status") == "incomplete":
        return StopReason.MAX_TOKENS, False
    if line.get("finished_naturally") is False or line.get("truncated") is True:
        return StopReason.MAX_TURNS, False
    return StopReason.DONE, True


def parse_usage(value: Any) -> Usage:
    usage = value if isinstance(value, dict) else {}
    read, written = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    return Usage(
        prompt_tokens=usage.get("input_tokens") or 0,
        completion_tokens=usage.get("output_tokens") or 0,
        cached_tokens=(read or {}).get("cached_tokens") or 0,
        reasoning_tokens=(written or {}).get("reasoning_tokens") or 0,
    )


def _is_masked(line: JsonObject) -> bool:
    """Some agents say it one level down."""
    config = line.get("instance_config")
    nested = config.get("mask_sample") if isinstance(config, dict) else None
    return bool(line.get("mask_sample") or nested)


def _failure_reason(line: JsonObject) -> Any:
    return next((line[name] for name in _REASON_FIELDS if line.get(name)), None)


def _build_fault(kind: Any, message: Any, *, by_model: bool) -> Fault:
    text = message if isinstance(message, str) else dump_json(message)
    return Fault(kind=str(kind), where="model" if by_model else "environment", message=text)


def _is_refusal(output: Any) -> bool:
    """Whether the last thing that was said is a refusal."""
    last = output[-1] if isinstance(output, list) and output else None
    parts = last.get("content") if isinstance(last, dict) else None
    return isinstance(parts, list) and any(
        isinstance(part, dict) and part.get("type") == "refusal" for part in parts
    )
