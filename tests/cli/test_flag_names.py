"""Flags instead of argument names in messages of the library."""

from __future__ import annotations

from pathlib import Path

import pytest
from ludus_process import run_ludus

from ludus.cli.flags import find_command, flags_of, name_command_flags, name_flags


@pytest.mark.parametrize(
    ("command", "message", "translated"),
    [
        ("train sft", "`epochs` must be positive, got 0.", "--epochs must be positive, got 0."),
        ("train sft", "Use another `out`.", "Use another --output-dir."),
        ("train sft", "`lora.rank` must be positive.", "--lora rank must be positive."),
        ("train grpo", "Set `reward_funcs` or `overrides`.", "Set --reward-func or --set."),
        ("collect", "Use `resume=False`.", "Use --no-resume."),
        ("collect", "Use `resume=True`.", "Use --resume."),
        ("collect", "Give another `env`.", "Give another ENV."),
        ("curate", 'Only with `to="dpo"`.', "Only with --to dpo."),
        ("curate", "`steps` is no parameter here.", "`steps` is no parameter here."),
        ("curate", "Run `ludus runs`.", "Run `ludus runs`."),
    ],
)
def test_argument_names_become_flags(command: str, message: str, translated: str) -> None:
    assert name_flags(message, flags_of(find_command(command))) == translated
    assert name_command_flags(message, command.split()) == translated


def test_the_program_prints_flags(tmp_path: Path) -> None:
    done = run_ludus("train", "grpo", "catch", "-m", "m", "-o", str(tmp_path), "--steps", "0")
    assert done.returncode == 1 and "--steps" in done.stderr and "`steps`" not in done.stderr
