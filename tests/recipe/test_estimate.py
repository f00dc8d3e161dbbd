"""Estimates before a recipe runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus.cli.stage_commands import fill_defaults
from ludus.recipe.estimate import (
    EpisodeShape,
    Estimate,
    Estimator,
    count_parameters,
    probe_episodes,
)
from ludus.recipe.recipe_file import Stage, read_recipe


def estimates(name: str, *overrides: str) -> dict[str, Estimate]:
    estimator = Estimator(lambda stage: EpisodeShape(turns=2, tokens=200))
    stages = read_recipe(name, overrides=overrides).stages
    return {stage.name: estimator.estimate(fill_defaults(stage)) for stage in stages}


def test_tokens_follow_from_episodes_and_steps() -> None:
    by_steps = estimates("quickstart", "sft.steps=10", "sft.batch_size=4")
    assert by_steps["sft"].tokens == 10 * 4 * 200
    by_epochs = estimates("offline-dpo", "collect.num_episodes=100", "sft.epochs=2")
    assert by_epochs["sft"].tokens == 100 * 200 * 2
    assert by_epochs["dpo"].tokens == 100 * 200 * 2  # Chosen and rejected.


def test_a_teacher_with_a_price_costs_in_proportion_to_its_episodes() -> None:
    few = estimates("chain-sum", "collect.num_episodes=100")["collect"].cost
    many = estimates("chain-sum", "collect.num_episodes=300")["collect"].cost
    assert few is not None and many == pytest.approx(3 * few) and few > 0
    assert estimates("quickstart")["collect"].cost is None


def test_all_values_of_a_sweep_and_all_tasks_of_a_file_are_counted(tmp_path: Path) -> None:
    plain, swept = (
        estimates("chain-sum", "eval.num_episodes=50", *more)["eval"]
        for more in ((), ("eval.sweep=['max_terms=2..5']",))
    )
    assert swept.tokens == pytest.approx(4 * plain.tokens)
    assert "393" in plain.warnings[0] and "= 99" in swept.warnings[0]
    (tmp_path / "tasks.jsonl").write_text('{"seed": 1}\n' * 30)
    tasks = estimates("chain-sum", f"collect.tasks={tmp_path}/tasks.jsonl")["collect"].cost
    assert tasks == estimates("chain-sum", "collect.num_episodes=30")["collect"].cost


def test_a_larger_model_takes_longer() -> None:
    small, large = (
        estimates("chain-sum", f"sft.model=Qwen/Qwen3-{size}")["sft"].seconds
        for size in ("0.6B", "6B")
    )
    assert 5 * small < large < 10 * small
    assert count_parameters("Qwen/Qwen3-1.7B") == 1.7e9
    # GRPO trains what SFT has made of it.
    small, large = (
        estimates("chain-sum", f"sft.model=Qwen/Qwen3-{size}")["grpo"].seconds
        for size in ("0.6B", "6B")
    )
    assert 5 * small < large


def test_too_few_episodes_for_the_effect_are_a_warning() -> None:
    assert estimates("chain-sum")["eval"].warnings == ()
    (warning,) = estimates("chain-sum", "eval.num_episodes=50")["eval"].warnings
    assert "393" in warning and "28 points" in warning
    assert (
        estimates("chain-sum", "eval.num_episodes=50", "eval.candidate=oracle")["eval"].warnings
        == ()
    )


def test_a_probe_measures_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sums = Stage("collect", "collect", {"env": "reasoning_gym:chain_sum"})
    games = Stage("collect", "collect", {"env": "wordle"})
    assert probe_episodes(sums).turns == 1 < probe_episodes(games).turns
    assert 100 < probe_episodes(sums).tokens < 400 < probe_episodes(games).tokens
    remote = Stage("collect", "collect", {"env": "http://127.0.0.1:1"})
    assert probe_episodes(remote) == EpisodeShape()
    assert not [*tmp_path.iterdir()]
