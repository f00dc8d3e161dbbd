"""Verdicts on episodes that a limit ended: too few tokens, a full context, too few turns.

Pure rules. Each gives a verdict, or None where it does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ludus.data.episode import StopReason
from ludus.train.diagnosis.course import Course, mean
from ludus.train.diagnosis.figures import share
from ludus.train.diagnosis.played import Played
from ludus.train.diagnosis.verdict import Case, Verdict, problem

CUT = 0.2
"""The share of episodes at a limit: one in five is no accident, and is scored for its length."""
MOST = 0.5
"""The share of cut-off episodes from which on rewards tell more of the limit than of the model."""
ROOM_FOR_A_CALL = 128
"""Tokens below which no limit is advised."""
_RAMBLING = "unless the model rambles: then a warm start teaches it to end"
_NO_ROOM = (
    "use fewer --max-turns, tasks that show less (--task), or a model that reads more: with more "
    "tokens they would not go on"
)


class _Limit(NamedTuple):
    """A limit that cut episodes off, and the option that sets it."""

    words: str
    option: str
    tokens: int | None


def cut_off(course: Course, episodes: Played) -> Verdict | None:
    """Replies that are not complete cannot be judged, so this comes before all else."""
    part = mean(course.end, "cut_off")
    if part is None or part < CUT:
        return None
    limit, advice = _blamed(episodes, part)
    return problem(
        "cut off",
        finding=f"{share(part)} of episodes at the end of the run were cut off by {limit}"
        f"{_lengths(episodes.lengths)}",
        advice=advice,
    )


def mostly_cut_off(course: Course) -> bool:
    return (mean(course.end, "cut_off") or 0.0) >= MOST


def _blamed(episodes: Played, part: float) -> tuple[str, str]:
    """The limit that cut off most episodes, and what to do about it."""
    by_episode = episodes.stops.get(StopReason.MAX_TOKENS, 0) - episodes.full - episodes.reply_cuts
    if episodes.full > max(by_episode, episodes.reply_cuts):
        return "the end of the model's context", _NO_ROOM
    if episodes.reply_cuts > by_episode:
        limit = _Limit("a reply", "--max-tokens", episodes.limits.reply)
    else:
        limit = _Limit("an episode", "--max-episode-tokens", episodes.limits.episode)
    if limit.tokens is None:
        return f"the token limit of {limit.words}", f"raise {limit.option}, {_RAMBLING}"
    more = max(ROOM_FOR_A_CALL, limit.tokens * (4 if part >= MOST else 2))
    return (
        f"the limit of {limit.tokens:,} tokens {limit.words}",
        f"raise it to {limit.option} {more}, {_RAMBLING}",
    )


def _lengths(lengths: Sequence[int]) -> str:
    """How long those episodes were that are complete."""
    if not lengths:
        return ""
    middle, long = lengths[len(lengths) // 2], lengths[int(0.95 * (len(lengths) - 1))]
    return f"; complete ones had {middle:,} tokens at the median, {long:,} at the 95th percentile"


def out_of_turns(case: Case) -> Verdict | None:
    part = case.ends("out_of_turns")
    if part is None or part < CUT:
        return None
    return problem(
        "out of turns",
        finding=f"{share(part)} of episodes at the end of the run used all of their turns",
        advice=f"raise --max-turns, {_RAMBLING}",
    )
