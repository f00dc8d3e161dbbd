"""TRL's config: which fields can be overridden, and how a step is divided into batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import trl

from ludus.errors import ConfigError
from ludus.train.grpo.trl_grpo_config import (
    CPU_BATCH_SIZE,
    GENERATION_FIELDS,
    SAMPLING_FIELDS,
    build_trl_grpo_config,
    max_micro_batch_rows,
)
from train.grpo.toy_environments import small_config

VALUES = {"generation_kwargs": '{"min_new_tokens": 3}'}


@pytest.mark.parametrize("name", [*GENERATION_FIELDS, *SAMPLING_FIELDS])
def test_fields_of_trls_generation_are_rejected(name: str, tmp_path: Path) -> None:
    config = small_config(overrides={name: VALUES.get(name, "0")})
    with pytest.raises(ConfigError, match=name):
        build_trl_grpo_config(config, tmp_path)


def test_vllm_accepts_sampling_fields_only(tmp_path: Path) -> None:
    served = {"vllm_mode": "colocate"}
    config = build_trl_grpo_config(small_config(**served, overrides={"min_p": "0.1"}), tmp_path)
    assert config.min_p == 0.1
    with pytest.raises(ConfigError, match="cache_implementation"):
        build_trl_grpo_config(
            small_config(**served, overrides={"cache_implementation": "static"}), tmp_path
        )


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("chat_template_kwargs", "chat_template_kwargs"),
        ("max_completion_length", "max_episode_tokens"),
    ],
)
def test_managed_fields_name_the_argument_to_use(name: str, argument: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*`{argument}`"):
        build_trl_grpo_config(small_config(overrides={name: "1"}), tmp_path)


def test_the_completion_length_is_the_episode_budget(tmp_path: Path) -> None:
    config = build_trl_grpo_config(small_config(max_episode_tokens=99, max_tokens=33), tmp_path)
    assert config.max_completion_length == 99


def test_vllm_fields_are_rejected_without_vllm(tmp_path: Path) -> None:
    overrides = {"vllm_gpu_memory_utilization": "0.5"}
    with pytest.raises(ConfigError, match="`vllm_mode`"):
        build_trl_grpo_config(small_config(overrides=overrides), tmp_path)
    config = build_trl_grpo_config(
        small_config(vllm_mode="colocate", overrides=overrides), tmp_path
    )
    assert config.vllm_gpu_memory_utilization == 0.5


def test_tensor_parallel_vllm_is_rejected(tmp_path: Path) -> None:
    config = small_config(vllm_mode="colocate", overrides={"vllm_tensor_parallel_size": "2"})
    with pytest.raises(ConfigError, match="vllm_tensor_parallel_size"):
        build_trl_grpo_config(config, tmp_path)


def test_all_generation_fields_of_trl_are_known() -> None:
    """A field that TRL adds must be added to `GENERATION_FIELDS` or managed."""
    managed = {"use_vllm", "steps_per_generation", "generation_batch_size", "num_generations"}
    fields = {name for name in trl.GRPOConfig.__dataclass_fields__ if "generation" in name}
    for_evaluation = {"num_generations_eval", "generation_config", "generation_max_length"}
    assert fields - managed - for_evaluation - {*GENERATION_FIELDS, *SAMPLING_FIELDS} == set()


@pytest.mark.parametrize(("batch_size", "rows"), [(None, CPU_BATCH_SIZE), (3, 3)])
def test_a_step_is_one_batch_whose_parts_are_limited(
    batch_size: int | None, rows: int, tmp_path: Path
) -> None:
    config = small_config(groups=5, group_size=5, batch_size=batch_size)
    trl_config = build_trl_grpo_config(config, tmp_path)
    assert trl_config.per_device_train_batch_size == 25
    assert trl_config.gradient_accumulation_steps == trl_config.steps_per_generation == 1
    assert max_micro_batch_rows(config) == rows
