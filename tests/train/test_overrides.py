"""Overrides of fields of TRL's configs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.train.config import Method
from ludus.train.grpo.trl_grpo_config import build_trl_grpo_config
from ludus.train.trl_config import (
    MANAGED_FIELDS,
    NON_DECISIVE_FIELDS,
    build_trl_config,
    parse_overrides,
)
from train.grpo.toy_environments import small_config
from train.short_runs import train_config


def sft_config(method: Method = "sft", /, **overrides: str) -> Any:
    return build_trl_config(method, train_config(overrides=overrides), Path("out"))


def grpo_config(overrides: dict[str, str], **fields: Any) -> Any:
    return build_trl_grpo_config(small_config(overrides=overrides, **fields), Path("out"))


def test_a_string_is_parsed_by_the_type_of_its_field() -> None:
    built = sft_config(
        weight_decay="0.1", logging_steps="7", lr_scheduler_type="linear", optim="sgd",
        dataloader_drop_last="yes", lr_scheduler_kwargs='{"x": 1}', loss_type="dft",
    )  # fmt: skip
    assert (built.weight_decay, built.logging_steps) == (0.1, 7)
    assert built.lr_scheduler_type == "linear" and built.optim == "sgd"
    assert built.dataloader_drop_last is True
    assert built.lr_scheduler_kwargs == {"x": 1} and built.loss_type == "dft"


def test_fields_of_dpo_can_be_set_as_well() -> None:
    assert sft_config("dpo", loss_type='["ipo"]').loss_type == ["ipo"]
    assert sft_config("dpo", ld_alpha="none").ld_alpha is None


def test_an_unknown_field_is_answered_with_the_closest() -> None:
    with pytest.raises(ConfigError, match="'weight_decay'"):
        sft_config(weight_decai="0.1")
    with pytest.raises(ConfigError, match="use `learning_rate`"):
        sft_config(learning_rat="0.1")


def test_a_value_of_another_type_raises() -> None:
    with pytest.raises(ConfigError, match=r"weight_decay .*'much'.*valid number"):
        sft_config(weight_decay="much")


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("output_dir", "x", "`out`"),
        ("report_to", "wandb", "`report_to`"),
        ("assistant_only_loss", "false", "the assistant's tokens alone"),
        ("num_train_epochs", "7", "`epochs`"),
        ("max_steps", "7", "`steps`"),
        ("per_device_train_batch_size", "7", "`batch_size`"),
        ("gradient_accumulation_steps", "7", "`gradient_accumulation_steps`"),
        ("learning_rate", "2e-5", "`learning_rate`"),
        ("max_length", "none", "`max_length`"),
        ("save_steps", "100", "`checkpoint_every`"),
        ("save_strategy", "steps", "`checkpoint_every`"),
        ("gradient_checkpointing", "true", "`gradient_checkpointing`"),
        ("torch_compile", "false", "`compile`"),
        ("push_to_hub", "true", "`push_to_hub`"),
        ("hub_token", "x", "HF_TOKEN"),
    ],
)
def test_a_managed_field_raises_and_names_the_argument_to_use(
    key: str, value: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=f"{key} .*{hint}"):
        sft_config(**{key: value})


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("num_train_epochs", "1", "`steps`"),
        ("gradient_accumulation_steps", "3", "`batch_size`"),
        ("num_generations", "7", "`group_size`"),
        ("max_completion_length", "7", "`max_episode_tokens`"),
        ("report_to", "trackio", "`report_to`"),
        ("save_steps", "100", "`checkpoint_every`"),
        ("chat_template_kwargs", '{"enable_thinking": false}', "`chat_template_kwargs`"),
        ("push_to_hub", "true", "`push_to_hub`"),
    ],
)
def test_a_managed_field_of_grpo_raises_and_names_the_argument_to_use(
    key: str, value: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=f"{key}.*{hint}"):
        grpo_config({key: value})


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_former_name_of_a_field_is_answered_with_its_new_one(method: Method) -> None:
    with pytest.raises(ConfigError, match="use `max_length`"):
        sft_config(method, max_seq_length="2048")
    with pytest.raises(ConfigError, match="'warmup_steps'"):
        sft_config(method, warmup_ratio="0.1")


def test_non_decisive_fields_exist_in_trl_and_are_not_managed() -> None:
    import trl

    assert trl.GRPOConfig.__dataclass_fields__.keys() >= NON_DECISIVE_FIELDS
    assert not NON_DECISIVE_FIELDS & MANAGED_FIELDS.keys()


def test_an_error_of_trl_becomes_one_line() -> None:
    with pytest.raises(ConfigError, match="full eval") as raised:
        sft_config(bf16_full_eval="true", fp16_full_eval="true")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("method", "key", "value", "hint"),
    [
        ("sft", "optim", "adamw_troch", "adamw_torch"),
        ("sft", "lr_scheduler_type", "sideways", "cosine"),
        ("sft", "adam_beta1", [3], "number"),
        ("dpo", "label_smoothing", "much", "number"),
    ],
)
def test_a_value_that_the_field_does_not_take_raises(
    method: Method, key: str, value: Any, hint: str
) -> None:
    with pytest.raises(ConfigError, match=hint) as raised:
        build_trl_config(method, train_config(overrides={key: value}), Path("out"))
    assert "\n" not in str(raised.value)


def test_an_object_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "accelerator.json"
    file.write_text('{"split_batches": true}')
    assert sft_config(accelerator_config=str(file)).accelerator_config.split_batches


def test_managed_fields_exist_in_trl() -> None:
    import trl

    known = {*trl.SFTConfig.__dataclass_fields__, *trl.DPOConfig.__dataclass_fields__}
    assert known >= MANAGED_FIELDS.keys()


def test_nan_losses_are_logged_and_nothing_is_reported_or_pushed_by_default() -> None:
    built = sft_config()
    assert built.logging_nan_inf_filter is False
    assert built.report_to == [] and built.push_to_hub is False


def test_values_other_than_strings_are_kept() -> None:
    assert parse_overrides("sft", {"weight_decay": 0.5}) == {"weight_decay": 0.5}
