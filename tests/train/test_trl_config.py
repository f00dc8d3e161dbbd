"""The config that is passed to TRL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ludus.train.config import Lora, TrainConfig
from ludus.train.trl_config import (
    MIN_WARMUP_RUN_STEPS,
    build_trl_config,
    resolve_learning_rate,
    set_data_dependent_fields,
    trl_config_json,
)
from train.short_runs import train_config

SMALL, LARGE = 135_000_000, 7_000_000_000


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


def test_the_learning_rate_depends_on_method_model_size_and_adapter() -> None:
    rate = resolve_learning_rate
    assert rate(TrainConfig(), "sft", SMALL) > rate(TrainConfig(), "sft", LARGE)
    assert rate(TrainConfig(lora=Lora()), "sft", LARGE) == rate(TrainConfig(), "sft", SMALL)
    assert rate(TrainConfig(), "dpo", SMALL) < rate(TrainConfig(), "sft", LARGE)
    assert rate(TrainConfig(learning_rate=0.5), "dpo", LARGE) == 0.5


def test_the_learning_rate_of_small_models_grows_with_the_number_of_groups() -> None:
    rate = resolve_learning_rate
    few, many = (rate(TrainConfig(), "grpo", SMALL, groups=groups) for groups in (4, 64))
    assert many == pytest.approx(4 * few)
    assert rate(TrainConfig(), "grpo", SMALL) == pytest.approx(2 * few)
    assert rate(TrainConfig(), "grpo", LARGE, groups=4) == rate(
        TrainConfig(), "grpo", LARGE, groups=64
    )
    adapted = TrainConfig(lora=Lora())
    assert rate(adapted, "grpo", LARGE, groups=64) > rate(adapted, "grpo", LARGE, groups=4)
    assert rate(TrainConfig(learning_rate=0.5), "grpo", SMALL, groups=64) == 0.5


def test_the_config_is_complete_without_secrets_and_local_paths(tmp_path: Path) -> None:
    from trl import SFTConfig

    folder = tmp_path / "checkpoints"
    config = SFTConfig(output_dir=str(folder), hub_token="hf_secret", use_cpu=True, bf16=False)
    fields = trl_config_json(config)
    assert fields["learning_rate"] == config.learning_rate
    assert fields["lr_scheduler_type"] == "linear" and len(fields) > 100
    text = json.dumps(fields, allow_nan=False)
    assert "hf_secret" not in text and str(tmp_path) not in text and "hub_token" not in fields
