"""The names of the fields of TRL's configs, read without importing TRL."""

import subprocess
import sys
from dataclasses import fields

import pytest
import trl

from ludus.train.trl_fields import field_names


@pytest.mark.parametrize(
    ("method", "config"), [("sft", trl.SFTConfig), ("dpo", trl.DPOConfig), ("grpo", trl.GRPOConfig)]
)
def test_names_equal_those_of_the_config_class(method: str, config: type) -> None:
    assert field_names(method) == frozenset(field.name for field in fields(config))


def test_an_unknown_method_gives_none() -> None:
    assert field_names("unknown") is None


def test_neither_trl_nor_torch_is_imported() -> None:
    code = (
        "import sys; from ludus.train.trl_fields import field_names; assert field_names('sft');"
        "assert not {'torch', 'trl', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
