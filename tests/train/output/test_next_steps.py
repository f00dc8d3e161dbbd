"""The environment of a trained model, as the next commands take it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import ludus
from ludus.train.data.training_data import open_data
from ludus.train.output.model_card import environment_arguments
from ludus.train.output.record import TrainingRecord
from train.sample_records import record_fields

KNOWN_LATER = {"created_at": "2026-01-01T00:00:00+00:00", "versions": {}}
DATA = {"path": "data", "rows": 2, "digest": "ab" * 32, "environments": {"wordle": 2}}


@pytest.mark.parametrize(
    ("system_prompt", "options"),
    [
        (None, ()),
        (ludus.CollectConfig().system_prompt, ()),
        ("Be careful.", ("--system-prompt", "Be careful.")),
        ("", ("--system-prompt", "")),
    ],
)
def test_the_system_prompt_of_the_rows_is_that_of_the_evaluation(
    system_prompt: str | None, options: tuple[str, ...]
) -> None:
    fields = record_fields(data={**DATA, "system_prompt": system_prompt})
    record = TrainingRecord.model_validate({**fields, **KNOWN_LATER})
    assert environment_arguments(record) == ("wordle", *options)


def test_the_system_prompt_is_read_from_the_runs_of_a_data_set(tmp_path: Path) -> None:
    for name, prompt in (("one", "Be careful."), ("other", "Be quick."), ("bare", None)):
        config = ludus.CollectConfig(num_episodes=2, system_prompt=prompt)
        asyncio.run(ludus.collect("catch", tmp_path / name, config))
    for number, (runs, expected) in enumerate(
        [
            (["one"], "Be careful."),
            (["one", "other"], "unknown"),
            (["bare"], None),
            (["one", "bare"], "unknown"),
        ]
    ):
        out = tmp_path / f"rows{number}"
        ludus.curate([tmp_path / run for run in runs], out)
        assert open_data(out).run_setting("system_prompt", "unknown") == expected
