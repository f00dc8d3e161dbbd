"""Zero-variance groups."""

from __future__ import annotations

import pytest

from ludus.data.interval_estimates import is_zero_variance


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((1.0, 1.0, 1.0), True),
        ((0.1 + 0.2, 0.3), True),
        ((1.0, 0.0), False),
        ((1.0, None, 1.0), True),
        ((1.0, None, 0.5), False),
        ((1.0, None), True),
        ((None, None), True),
        ((1e9, 1e9 + 1), True),
        ((1e-3, 2e-3), False),
    ],
)
def test_zero_variance_ignores_unscored_attempts_and_rounding(
    rewards: tuple[float | None, ...], expected: bool
) -> None:
    assert is_zero_variance(rewards) is expected
