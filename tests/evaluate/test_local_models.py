"""Local models as candidates: a few thousand weights that were never trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from policy.models import saved
from students import of_family

from evaluate.trying import COUNTER, QUICK
from ludus.errors import BadSetting, RunError
from ludus.evaluate import Evaluation, candidates_of, evaluate
from ludus.rollout import Job, Limits

JOB = Job(COUNTER, episodes=3, seed=999, limits=Limits(max_turns=2, max_tokens=8))


async def against_chance(model: Path, out: Path) -> Evaluation:
    candidates = candidates_of(["random", f"base=hf:{model}"])
    return await evaluate(JOB, candidates, out, tuning=QUICK)


async def test_a_model_plays_without_chance_and_its_tokens_are_counted(tmp_path: Path) -> None:
    model = saved(tmp_path / "model", of_family("qwen3"))
    found = await against_chance(model, tmp_path / "eval")
    chance, base = found.scores
    assert base.estimates["format_compliance"].value == 0.0, "it never learned to call"
    assert 1.0 <= base.estimates["reply_tokens"].value <= 8.0
    assert "reply_tokens" not in chance.estimates and "reply_tokens" not in base.deltas
    about = json.loads((tmp_path / "eval" / "base" / "run.json").read_text())
    assert about["settings"]["agent"]["temperature"] == 0.0
    (model / "tokenizer.json").unlink()
    again = await against_chance(model, tmp_path / "eval")
    assert again.scores == found.scores, "who has played is not loaded again"


async def test_a_model_that_was_trained_anew_is_not_given_the_old_ones_figures(
    tmp_path: Path,
) -> None:
    model = saved(tmp_path / "model", of_family("qwen3"))
    await against_chance(model, tmp_path / "eval")
    saved(model, of_family("qwen3"), seed=1)
    shutil.rmtree(tmp_path / "eval" / "random")
    with pytest.raises(RunError, match=r"base holds a run with other settings:\n  agent\.weights"):
        await against_chance(model, tmp_path / "eval")
    assert not (tmp_path / "eval" / "random").exists(), "nobody plays before that is said"


async def test_a_model_that_is_nowhere_is_told_before_anybody_plays(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="There is no folder"):
        await against_chance(tmp_path / "nowhere", tmp_path / "eval")
    assert not (tmp_path / "eval").exists()
