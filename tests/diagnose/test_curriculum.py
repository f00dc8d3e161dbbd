"""The diagnosis of a run with a curriculum: its buckets, and verdicts that do not use rewards."""

from __future__ import annotations

from typing import Any

from diagnose.runs import Sample, ramp
from ludus.data.training_log import BucketMetrics, bucket_log_fields
from ludus.diagnose.diagnosis import Diagnosis, diagnose


def diagnose_with(*buckets: dict[str, tuple[float, float]], sample: Sample) -> Diagnosis:
    """A run whose steps drew these buckets (groups and success rate), one dict per equal part."""
    log, episodes = sample.read()
    entries: list[dict[str, Any]] = []
    for at, line in enumerate(log):
        drawn = buckets[at * len(buckets) // len(log)]
        metrics = [
            bucket_log_fields(name, BucketMetrics(*values)) for name, values in drawn.items()
        ]
        entries.append(dict(line) | {key: one[key] for one in metrics for key in one})
    return diagnose(entries, episodes)


def names(diagnosis: Diagnosis) -> list[str]:
    return [verdict.name for verdict in diagnosis.verdicts]


FALLING = Sample({"wordle": ramp((0.0, 0.9), (1.0, 0.4))}, steps=40)


def test_buckets_have_groups_and_success_rates() -> None:
    diagnosis = diagnose_with(
        {"level=1": (8, 0.2)}, {"level=1": (2, 0.9), "level=2": (6, 0.4)}, sample=FALLING
    )
    first, second = diagnosis.curriculum
    assert (first.label, first.groups) == ("level=1", 200)
    assert (first.first_success, first.last_success) == (0.2, 0.9)
    assert (second.first_success, second.last_success) == (0.4, 0.4)
    # The reward fell because tasks became harder.
    assert names(diagnosis) == ["learned"] and "level=1" in diagnosis.verdicts[0].finding
    assert "getting worse" in names(diagnose(*FALLING.read()))


def test_a_run_without_a_curriculum_has_no_buckets() -> None:
    assert diagnose(*FALLING.read()).curriculum == ()
