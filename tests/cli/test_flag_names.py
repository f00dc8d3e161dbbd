"""Flags instead of argument names in messages of the library."""

from __future__ import annotations

from pathlib import Path

import pytest
from ludus_process import run_ludus

from ludus.cli.program import command_flags, name_flags

FLAGS = {
    "epochs": "--epochs",
    "out": "--output-dir",
    "lora_rank": "--lora-rank",
    "merge_adapter": "--merge-adapter",
    "resume": "--resume",
    "resume=False": "--no-resume",
    "to": "--to",
}


@pytest.mark.parametrize(
    ("message", "translated"),
    [
        ("`epochs` must be positive, got 0.", "--epochs must be positive, got 0."),
        ("Use another `out`.", "Use another --output-dir."),
        ("`lora.rank` must be positive.", "--lora-rank must be positive."),
        ("Set `lora.merge_adapter`.", "Set --merge-adapter."),
        ("Use `resume=False`.", "Use --no-resume."),
        ("Use `resume=True`.", "Use --resume."),
        ('Only with `to="dpo"`.', "Only with --to dpo."),
        ("`steps` is no parameter here.", "`steps` is no parameter here."),
        ("Run `ludus runs`.", "Run `ludus runs`."),
    ],
)
def test_argument_names_become_flags(message: str, translated: str) -> None:
    assert name_flags(message, FLAGS) == translated


def test_the_flags_of_a_command_are_those_of_its_options() -> None:
    flags = command_flags("train", "grpo")
    assert flags["zero_variance_groups"] == "--zero-variance-groups"
    assert flags["reward_funcs"] == "--reward-func" and flags["overrides"] == "--set"
    assert flags["out"] == "--output-dir" and flags["env"] == "ENV"
    assert flags["merge_adapter=False"] == "--no-merge-adapter"


def test_the_program_prints_flags(tmp_path: Path) -> None:
    done = run_ludus("train", "grpo", "catch", "-m", "m", "-o", str(tmp_path), "--steps", "0")
    assert done.returncode == 1 and "--steps" in done.stderr and "`steps`" not in done.stderr
