"""Rules about a curriculum: solved, out of reach, and success that rose within buckets.

The reward of a run with a curriculum says little, because its tasks change: success rates of the
same bucket can be compared. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from ludus.diagnose.curriculum_stats import BucketStats
from ludus.diagnose.number_format import format_share
from ludus.diagnose.verdict import Verdict, good, note, problem

SOLVED_SUCCESS = 0.8
"""Success rate above which little is left to learn from a bucket."""
HOPELESS_SUCCESS = 0.05
"""Success rate below which hardly any group contains a success."""
MIN_SUCCESS_RISE = 0.2
"""Smallest rise of a bucket's success rate that counts: rates are those of few attempts."""
_MAX_BUCKETS_NAMED = 3


def check_curriculum(buckets: Sequence[BucketStats]) -> list[Verdict]:
    """Verdicts on a run with a curriculum, the most important first."""
    rates = [each.last_success for each in buckets if each.last_success is not None]
    if not rates:
        return []
    verdicts = []
    if min(rates) > SOLVED_SUCCESS:
        verdicts.append(
            note(
                "curriculum solved",
                finding=f"more than {format_share(SOLVED_SUCCESS)} of attempts succeed in all "
                f"{len(rates)} buckets that were drawn",
                advice="extend `curriculum` by harder values",
            )
        )
    if max(rates) < HOPELESS_SUCCESS:
        verdicts.append(
            problem(
                "curriculum out of reach",
                finding=f"at most {format_share(max(rates))} of attempts succeed in any of "
                f"{len(rates)} buckets",
                advice="extend `curriculum` by easier values, or warm-start the model with "
                "`ludus train sft`",
            )
        )
    risen = [each for each in buckets if _rise(each) >= MIN_SUCCESS_RISE]
    if risen:
        largest = sorted(risen, key=_rise, reverse=True)[:_MAX_BUCKETS_NAMED]
        named = "; ".join(
            f"{each.label} {format_share(each.first_success or 0.0)} -> "
            f"{format_share(each.last_success or 0.0)}"
            for each in largest
        )
        verdicts.append(
            good(
                "learned",
                finding=f"the success rate rose in {len(risen)} of {len(rates)} buckets: {named}",
                advice="measure it on held-out tasks with `ludus eval`",
            )
        )
    return verdicts


def _rise(bucket: BucketStats) -> float:
    if bucket.first_success is None or bucket.last_success is None:
        return 0.0
    return bucket.last_success - bucket.first_success
