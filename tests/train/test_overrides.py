from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ludus.errors import BadSetting
from ludus.train.configs import made
from ludus.train.overrides import REFUSED, checked
from ludus.train.settings import Method
from train.lessons import quick


def config(method: Method = "sft", /, **overrides: str) -> Any:
    return made(method, quick(overrides=overrides), Path("out"))


def test_a_value_is_read_by_the_type_of_its_field() -> None:
    found = config(
        weight_decay="0.1", max_steps="7", lr_scheduler_type="linear", optim="sgd",
        dataloader_drop_last="yes", lr_scheduler_kwargs='{"x": 1}', loss_type="dft",
    )  # fmt: skip
    assert (found.weight_decay, found.max_steps) == (0.1, 7)
    assert found.lr_scheduler_type == "linear" and found.optim == "sgd"
    assert found.dataloader_drop_last is True
    assert found.lr_scheduler_kwargs == {"x": 1} and found.loss_type == "dft"


def test_fields_of_dpo_can_be_set_as_well() -> None:
    assert config("dpo", loss_type='["ipo"]').loss_type == ["ipo"]
    assert config("dpo", ld_alpha="none").ld_alpha is None


def test_an_unknown_field_is_refused_with_the_closest() -> None:
    with pytest.raises(BadSetting, match="Did you mean 'weight_decay'"):
        config(weight_decai="0.1")
    with pytest.raises(BadSetting, match=r"'learning_rate'\? It is .*: use --learning-rate\."):
        config(learning_rat="0.1")


def test_a_value_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadSetting, match="weight_decay=much cannot be read: a number is wanted"):
        config(weight_decay="much")


@pytest.mark.parametrize(
    "key", ["output_dir", "report_to", "assistant_only_loss", "save_steps", "hub_token"]
)
def test_what_a_promise_rests_on_cannot_be_set(key: str) -> None:
    with pytest.raises(BadSetting, match=f"--set {key} is not for you to set"):
        config(**{key: "x"})


def test_what_trl_refuses_is_one_line() -> None:
    with pytest.raises(BadSetting, match="TRL does not take these settings") as raised:
        config(lr_scheduler_type="sideways")
    assert "\n" not in str(raised.value)


def test_every_refused_field_is_one_that_trl_has() -> None:
    import trl

    known = {*trl.SFTConfig.__dataclass_fields__, *trl.DPOConfig.__dataclass_fields__}
    assert known >= REFUSED.keys()


def test_the_loss_is_never_smoothed_and_nothing_is_sent_anywhere() -> None:
    found = config()
    assert found.logging_nan_inf_filter is False
    assert found.report_to == [] and found.push_to_hub is False


def test_values_that_are_no_text_are_taken_as_they_are() -> None:
    import trl

    assert checked(trl.SFTConfig, {"weight_decay": 0.5}) == {"weight_decay": 0.5}
