"""One episode with the other attempts at its task, and its advantages in a GRPO training."""

from __future__ import annotations

from pydantic import ValidationError
from pydantic_core import from_json

from ludus.data.episode import Episode
from ludus.data.stage_output import StageOutput
from ludus.data.tool_schema import JsonObject
from ludus.errors import RunError
from ludus.viewer.episode_index import EpisodeIndex
from ludus.viewer.episode_queries import EpisodeQueries

_MAX_ATTEMPTS = 64
_DEFAULT_GAE_LAMBDA = 1.0


def read_fields(index: EpisodeIndex, run: str, line: int) -> JsonObject:
    """The fields of an episode as they are stored."""
    try:
        fields = from_json(index.find_file(run).read_line(line))
    except ValueError as error:
        raise RunError(f"Line {line + 1} of {run} is not JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise RunError(f"Line {line + 1} of {run} is not an episode.")
    return fields


def describe_episode(
    entry: StageOutput, line: int, index: EpisodeIndex, queries: EpisodeQueries
) -> JsonObject:
    """An episode without its tokens, the attempts at its task, and its advantages."""
    fields = read_fields(index, entry.shown_path, line)
    has_tokens = fields.pop("tokens", None) is not None
    attempts = queries.find_attempts(str(fields.get("group_id")), entry.shown_path, _MAX_ATTEMPTS)
    return {
        "run": entry.shown_path,
        "line": line,
        "episode": fields,
        "has_tokens": has_tokens,
        "attempts": attempts,
        "advantages": _compute_advantages(entry, line, index, attempts),
    }


def _compute_advantages(
    entry: StageOutput, line: int, index: EpisodeIndex, attempts: list[JsonObject]
) -> list[float] | None:
    """The advantage of each turn within the episode's group, as GRPO computes it.

    None outside of a GRPO training, and for an unscored episode.
    """
    if entry.record.get("kind") != "grpo":
        return None
    from ludus.train.grpo.credit import TurnCredit, turn_advantages

    step = next((each["step"] for each in attempts if each["line"] == line), None)
    lines = [each["line"] for each in attempts if each["step"] == step]
    try:
        file = index.find_file(entry.shown_path)
        group = [Episode.from_line(file.read_line(each)) for each in lines]
    except ValidationError:
        return None
    by_turn = entry.settings.get("credit") == "turn"
    credit = TurnCredit(entry.settings.get("gae_lambda", _DEFAULT_GAE_LAMBDA))
    returns = [
        None if each.reward is None else credit.returns(each) if by_turn else (each.reward,)
        for each in group
    ]
    if line not in lines or returns[lines.index(line)] is None:
        return None
    at = lines.index(line)
    advantages = turn_advantages(returns, len(group))[at]
    return list(advantages if by_turn else advantages * max(1, group[at].turns))
