"""Overrides of fields of TRL's configs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from enum import Enum, EnumType
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import pytest
import trl

from ludus.errors import ConfigError
from ludus.train.config import Method
from ludus.train.grpo.trl_grpo_config import build_trl_grpo_config
from ludus.train.overrides import (
    MANAGED_FIELDS,
    NON_DECISIVE_FIELDS,
    drop_redundant,
    parse_override_assignments,
    parse_overrides,
    read_fields,
)
from ludus.train.trl_config import build_trl_config
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
    with pytest.raises(ConfigError, match=r"weight_decay .*'much'"):
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


TUTORIAL_OVERRIDES = {
    "output_dir": "out", "max_length": "2048", "num_train_epochs": "3",
    "per_device_train_batch_size": "4", "gradient_accumulation_steps": "2",
    "learning_rate": "2e-5", "warmup_steps": "10", "lr_scheduler_type": "cosine",
    "logging_steps": "5", "save_strategy": "no", "assistant_only_loss": "True",
}  # fmt: skip


def test_a_managed_field_with_its_effective_value_is_accepted() -> None:
    config = train_config(
        max_length=2048, epochs=3.0, batch_size=4, gradient_accumulation_steps=2,
        learning_rate=2e-5,
        overrides=TUTORIAL_OVERRIDES,
    )  # fmt: skip
    built = build_trl_config("sft", config, Path("out"))
    assert (built.warmup_steps, built.lr_scheduler_type) == (10, "cosine")
    kept = drop_redundant(config.overrides)
    assert kept.keys() == {"warmup_steps", "lr_scheduler_type", "logging_steps"}


def test_managed_fields_of_grpo_with_their_effective_values_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As if trackio were installed.
    monkeypatch.setattr("ludus.train.config.find_spec", lambda _: True)
    overrides = {
        "max_steps": "150", "learning_rate": "1e-6", "warmup_steps": "10", "optim": "adamw_torch",
        "max_grad_norm": "1.0", "num_generations": "2", "max_completion_length": "256",
        "log_completions": "true", "num_completions_to_print": "2", "report_to": "trackio",
        "trackio_space_id": "x", "logging_steps": "10", "gradient_checkpointing": "true",
        "save_strategy": "no",
    }  # fmt: skip
    ours = {"steps": 150, "group_size": 2, "max_episode_tokens": 256, "learning_rate": 1e-6}
    built = grpo_config(overrides, **ours, gradient_checkpointing=True, report_to="trackio")
    assert (built.logging_steps, built.log_completions) == (10, True)


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
        ("max_seq_length", "2048", "`max_episode_tokens`"),
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
        ("sft", "optim", "adamw_troch", "'adamw_torch'"),
        ("sft", "lr_scheduler_type", "sideways", "cosine"),
        ("sft", "loss_type", "bogus", "nll, dft"),
        ("dpo", "loss_type", '["sigmoid", "bogus"]', "ipo"),
        ("grpo", "loss_type", "bogus", "dr_grpo, dapo"),
        ("sft", "gradient_checkpointing_kwargs", "3", "JSON object"),
        ("sft", "lr_scheduler_kwargs", "[3]", "JSON object"),
        ("sft", "lr_scheduler_kwargs", 3, "JSON object"),
        ("grpo", "accelerator_config", "missing.json", "file"),
    ],
)
def test_a_value_that_the_field_does_not_take_raises(
    method: str, key: str, value: Any, hint: str
) -> None:
    with pytest.raises(ConfigError, match=f"{key} .*{hint}") as raised:
        parse_overrides(method, {key: value})
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


def test_assignments_are_parsed_into_a_mapping() -> None:
    assert parse_override_assignments(["weight-decay=0.1", "optim = sgd", "a=b=c"]) == {
        "weight_decay": "0.1",
        "optim": "sgd",
        "a": "b=c",
    }
    table = '{"weight_decay": 0.1, "lr_scheduler_kwargs": {"x": 1}}'
    assert parse_override_assignments([table, "optim=sgd"]) == {
        "weight_decay": 0.1,
        "lr_scheduler_kwargs": {"x": 1},
        "optim": "sgd",
    }


@pytest.mark.parametrize("text", ["optim", "=1", "optim=a optim=b"])
def test_invalid_assignments_raise(text: str) -> None:
    with pytest.raises(ConfigError, match="`overrides`"):
        parse_override_assignments(text.split())


CONFIGS = pytest.mark.parametrize(
    ("method", "config"), [("sft", trl.SFTConfig), ("dpo", trl.DPOConfig), ("grpo", trl.GRPOConfig)]
)


@CONFIGS
def test_field_types_are_those_of_the_config_class(method: str, config: type) -> None:
    types = {name: field.types for name, field in read_fields(method).items()}
    assert types.keys() == {field.name for field in fields(config)}
    for name, hint in get_type_hints(config).items():
        members = {get_origin(each) or each for each in get_args(hint) or (hint,)}
        if get_origin(hint) not in (None, Union, UnionType):
            members = {get_origin(hint)}
        builtin = {bool, int, float, dict, list, type(None)}
        assert types[name] & builtin == members & builtin, name
        # Enums and literals are given as text.
        assert (str in types[name]) == bool(members - builtin), name


@CONFIGS
def test_choices_are_those_of_the_config_class(method: str, config: type) -> None:
    choices = {name: field.choices for name, field in read_fields(method).items()}
    for name, hint in get_type_hints(config).items():
        for enum in (each for each in get_args(hint) if isinstance(each, EnumType)):
            assert choices[name] == [member.value for member in cast(type[Enum], enum)]
    built = config(use_cpu=True)
    for name, known in choices.items():
        values = getattr(built, name)
        for value in values if isinstance(values, list) else [values]:
            assert not known or value is None or value in known, name


def test_bad_overrides_raise_without_importing_trl_or_torch() -> None:
    code = (
        "import sys; from ludus.train.overrides import parse_overrides;"
        "assert parse_overrides('sft', {'weight_decay': '0.5'}) == {'weight_decay': 0.5};"
        "assert not {'torch', 'trl', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
