from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.train.config import Method
from ludus.train.grpo.trl_grpo_config import build_trl_grpo_config
from ludus.train.overrides import (
    MANAGED_FIELDS,
    NON_DECISIVE_FIELDS,
    drop_redundant,
    parse_overrides,
)
from ludus.train.trl_config import build_trl_config
from train.grpo.toy_environments import small_config
from train.lessons import quick


def config(method: Method = "sft", /, **overrides: str) -> Any:
    return build_trl_config(method, quick(overrides=overrides), Path("out"))


def grpo(overrides: dict[str, str], **settings: Any) -> Any:
    return build_trl_grpo_config(small_config(overrides=overrides, **settings), Path("out"))


def test_a_value_is_read_by_the_type_of_its_field() -> None:
    found = config(
        weight_decay="0.1", logging_steps="7", lr_scheduler_type="linear", optim="sgd",
        dataloader_drop_last="yes", lr_scheduler_kwargs='{"x": 1}', loss_type="dft",
    )  # fmt: skip
    assert (found.weight_decay, found.logging_steps) == (0.1, 7)
    assert found.lr_scheduler_type == "linear" and found.optim == "sgd"
    assert found.dataloader_drop_last is True
    assert found.lr_scheduler_kwargs == {"x": 1} and found.loss_type == "dft"


def test_fields_of_dpo_can_be_set_as_well() -> None:
    assert config("dpo", loss_type='["ipo"]').loss_type == ["ipo"]
    assert config("dpo", ld_alpha="none").ld_alpha is None


def test_an_unknown_field_is_refused_with_the_closest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'weight_decay'"):
        config(weight_decai="0.1")
    with pytest.raises(ConfigError, match=r"'learning_rate'\? It is .*: use --learning-rate\."):
        config(learning_rat="0.1")


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="weight_decay=much cannot be read: a number is wanted"):
        config(weight_decay="much")


@pytest.mark.parametrize(
    ("key", "value", "option"),
    [
        ("output_dir", "x", "--output-dir"),
        ("report_to", "wandb", "--report-to"),
        ("assistant_only_loss", "false", "the assistant's tokens alone"),
        ("num_train_epochs", "7", "--epochs"),
        ("max_steps", "7", "--steps"),
        ("per_device_train_batch_size", "7", "--batch-size"),
        ("gradient_accumulation_steps", "7", "--accumulate"),
        ("learning_rate", "2e-5", "--learning-rate"),
        ("max_length", "none", "--max-length"),
        ("save_steps", "100", "--checkpoint-every"),
        ("save_strategy", "steps", "--checkpoint-every"),
        ("gradient_checkpointing", "true", "--gradient-checkpointing"),
        ("torch_compile", "false", "--compile"),
        ("push_to_hub", "true", "--push-to-hub"),
        ("hub_token", "x", "--push-to-hub"),
    ],
)
def test_what_ludus_decides_is_refused_with_the_option_to_use(
    key: str, value: str, option: str
) -> None:
    with pytest.raises(ConfigError, match=f"--set {key} is managed by Ludus: .*{option}"):
        config(**{key: value})


SFT_TUTORIALS = {
    "output_dir": "out", "max_length": "2048", "num_train_epochs": "3",
    "per_device_train_batch_size": "4", "gradient_accumulation_steps": "2",
    "learning_rate": "2e-5", "warmup_steps": "10", "lr_scheduler_type": "cosine",
    "logging_steps": "5", "save_strategy": "no", "assistant_only_loss": "True",
}  # fmt: skip


def test_a_field_that_repeats_what_is_in_force_is_accepted() -> None:
    settings = quick(
        max_length=2048, epochs=3.0, batch_size=4, accumulate=2, learning_rate=2e-5,
        overrides=SFT_TUTORIALS,
    )  # fmt: skip
    found = build_trl_config("sft", settings, Path("out"))
    assert (found.warmup_steps, found.lr_scheduler_type) == (10, "cosine")
    kept = drop_redundant(settings.overrides)
    assert kept.keys() == {"warmup_steps", "lr_scheduler_type", "logging_steps"}


def test_a_tutorials_fields_for_grpo_are_accepted_where_they_are_in_force() -> None:
    overrides = {
        "max_steps": "150", "learning_rate": "1e-6", "warmup_steps": "10", "optim": "adamw_torch",
        "max_grad_norm": "1.0", "num_generations": "2", "max_completion_length": "256",
        "log_completions": "true", "num_completions_to_print": "2", "report_to": "trackio",
        "trackio_space_id": "x", "logging_steps": "10", "gradient_checkpointing": "true",
        "save_strategy": "no",
    }  # fmt: skip
    ours = {"steps": 150, "group_size": 2, "max_episode_tokens": 256, "learning_rate": 1e-6}
    found = grpo(overrides, **ours, gradient_checkpointing=True, report_to="trackio")
    assert (found.logging_steps, found.log_completions) == (10, True)


@pytest.mark.parametrize(
    ("key", "value", "option"),
    [
        ("num_train_epochs", "1", "--steps"),
        ("gradient_accumulation_steps", "3", "--batch-size"),
        ("num_generations", "7", "--group-size"),
        ("max_completion_length", "7", "--max-episode-tokens"),
        ("report_to", "trackio", "--report-to"),
        ("save_steps", "100", "--checkpoint-every"),
        ("chat_template_kwargs", '{"enable_thinking": false}', "--chat-template-kwargs"),
        ("push_to_hub", "true", "--push-to-hub"),
        ("max_seq_length", "2048", "--max-episode-tokens"),
    ],
)
def test_what_a_tutorial_sets_otherwise_for_grpo_is_refused_with_our_option(
    key: str, value: str, option: str
) -> None:
    with pytest.raises(ConfigError, match=f"--set {key}.*{option}"):
        grpo({key: value})


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_field_under_its_former_name_is_answered_with_the_option(method: Method) -> None:
    with pytest.raises(ConfigError, match=r"'max_length'\? .*: use --max-length\."):
        config(method, max_seq_length="2048")
    with pytest.raises(ConfigError, match="'warmup_steps'"):
        config(method, warmup_ratio="0.1")


def test_every_neutral_field_is_one_that_trl_has() -> None:
    import trl

    assert trl.GRPOConfig.__dataclass_fields__.keys() >= NON_DECISIVE_FIELDS
    assert not NON_DECISIVE_FIELDS & MANAGED_FIELDS.keys()


def test_what_trl_refuses_is_one_line() -> None:
    with pytest.raises(ConfigError, match="TRL does not take these settings") as raised:
        config(lr_scheduler_type="sideways")
    assert "\n" not in str(raised.value)


def test_every_refused_field_is_one_that_trl_has() -> None:
    import trl

    known = {*trl.SFTConfig.__dataclass_fields__, *trl.DPOConfig.__dataclass_fields__}
    assert known >= MANAGED_FIELDS.keys()


def test_the_loss_is_never_smoothed_and_nothing_is_sent_anywhere() -> None:
    found = config()
    assert found.logging_nan_inf_filter is False
    assert found.report_to == [] and found.push_to_hub is False


def test_values_that_are_no_text_are_taken_as_they_are() -> None:
    import trl

    assert parse_overrides(trl.SFTConfig, {"weight_decay": 0.5}) == {"weight_decay": 0.5}
