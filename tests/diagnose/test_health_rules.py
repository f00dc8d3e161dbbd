"""Rollbacks and a deviating decoder in the diagnosis of a run."""

from __future__ import annotations

from typing import Any

import pytest

from ludus.diagnose.diagnosis import diagnose


def entries(steps: int = 12, **fields: Any) -> list[dict[str, Any]]:
    return [{"step": step, "reward": 0.5 + 0.001 * step, **fields} for step in range(1, steps + 1)]


def verdict_names(log: list[dict[str, Any]]) -> dict[str, str]:
    return {verdict.name: verdict.finding for verdict in diagnose(log).verdicts}


def test_rollbacks_are_listed_with_their_steps() -> None:
    log = entries()
    log.insert(8, {"step": 8, "rollback_to": 5})
    log.insert(11, {"step": 10, "rollback_to": 5})
    finding = verdict_names(log)["rolled back"]
    assert "after step 8 to that of step 5, after step 10 to that of step 5" in finding
    assert "rolled back" not in verdict_names(entries())


@pytest.mark.parametrize(("mismatch", "reported"), [(0.01, False), (0.3, True)])
def test_a_decoder_that_deviates_is_reported(mismatch: float, reported: bool) -> None:
    assert ("decoder mismatch" in verdict_names(entries(mismatch=mismatch))) is reported
