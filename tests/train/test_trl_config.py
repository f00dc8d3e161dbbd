"""The config that is passed to TRL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.train.trl_config import MIN_WARMUP_RUN_STEPS, build_trl_config, set_data_dependent_fields
from train.short_runs import train_config


@pytest.mark.parametrize(
    ("steps", "fields", "warmup_steps"),
    [
        (MIN_WARMUP_RUN_STEPS - 1, {}, 0),
        (MIN_WARMUP_RUN_STEPS, {}, 2),
        (200, {}, 6),
        (MIN_WARMUP_RUN_STEPS - 1, {"overrides": {"warmup_steps": "5"}}, 5),
    ],
)
def test_a_short_run_has_no_warm_up_unless_it_is_set(
    tmp_path: Path, steps: int, fields: dict[str, Any], warmup_steps: int
) -> None:
    config = train_config(**fields)
    trl_config = build_trl_config("sft", config, tmp_path)
    set_data_dependent_fields(
        trl_config, config, learning_rate=1e-3, max_length=64, steps=steps, has_test_rows=False
    )
    assert trl_config.get_warmup_steps(steps) == warmup_steps
