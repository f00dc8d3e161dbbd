"""Groups in a run: the same task for all members, and what happens to zero-variance groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from ludus import ToolEnvironment, grpo, tool
from ludus.data.interval_estimates import is_zero_variance
from ludus.errors import RunError
from ludus.train.grpo.advantages import has_equal_returns, split_into_groups
from train.grpo.toy_environments import FLAT, PICK, read_episodes, small_config
from train.short_runs import RecordingProgress, read_curve


def test_all_members_of_a_group_have_the_same_task(model: Path, tmp_path: Path) -> None:
    grpo(PICK, str(model), tmp_path / "out", small_config(steps=2, groups=2, group_size=4))
    episodes = read_episodes(tmp_path / "out")
    for group in split_into_groups(episodes, 4):
        assert len({episode.seed for episode in group}) == 1
        assert len({episode.group_id for episode in group}) == 1
        assert len({episode.messages[1].content for episode in group}) == 1
    assert len({episode.group_id for episode in episodes}) == 4


UNSEEDED = "train.grpo.test_groups:Unseeded"


class Unseeded(ToolEnvironment):
    """Ignores its seed."""

    resets = 0

    def reset(self, *, seed: int | None = None) -> str:
        Unseeded.resets += 1
        return f"Task {Unseeded.resets}."

    @tool
    def pick(self, letter: str) -> str:
        """Pick.

        Args:
            letter: Which.
        """
        return self.finish(1.0, "Well.")


def test_an_environment_that_ignores_its_seed_raises(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="`allow_unseeded`"):
        grpo(UNSEEDED, str(model), tmp_path / "out", small_config())


def test_allow_unseeded_warns_once_and_logs_the_share_of_unseeded_groups(
    model: Path, tmp_path: Path
) -> None:
    seen, config = RecordingProgress(), small_config(allow_unseeded=True, seed=3)
    spec = f"{UNSEEDED}=0.5,{PICK}=0.5"
    assert grpo(spec, str(model), tmp_path / "out", config, progress=seen).steps == 2
    shares = [line["unseeded"] for line in read_curve(tmp_path / "out")]
    assert shares == [0.5, 0.5], "one of two groups ignores its seed"
    (warning,) = (text for text in seen.messages if "different tasks for the same seed" in text)
    assert warning.startswith(UNSEEDED)


def test_zero_variance_groups_are_left_out_of_a_step(model: Path, tmp_path: Path) -> None:
    for mode in ("skip", "keep"):
        config = small_config(steps=3, groups=4, zero_variance_groups=mode, seed=2)
        grpo(FLAT, str(model), tmp_path / mode, config)
    skipped, kept = read_curve(tmp_path / "skip"), read_curve(tmp_path / "keep")
    assert any(0 < line["zero_variance"] < 1 for line in skipped)
    for line in (*skipped, *kept):
        assert line["trained"] == pytest.approx(1 - line["zero_variance"])
    assert skipped[0]["zero_variance"] == kept[0]["zero_variance"]
    assert skipped[0]["reward"] == kept[0]["reward"]


def test_skipping_changes_only_the_normalization_of_the_gradient(
    model: Path, tmp_path: Path
) -> None:
    """Rows of zero-variance groups have no gradient, but TRL counts their tokens."""
    grads = {}
    for mode in ("skip", "keep"):
        config = small_config(
            steps=1, groups=4, zero_variance_groups=mode, seed=2, learning_rate=1e-9
        )
        grpo(FLAT, str(model), tmp_path / mode, config)
        (grads[mode],) = (line for line in read_curve(tmp_path / mode) if "grad_norm" in line)
    episodes = read_episodes(tmp_path / "skip")
    assert 0 < grads["skip"]["zero_variance"] < 1
    sampled = [sum(episode.tokens.mask) if episode.tokens else 0 for episode in episodes]
    rewards = split_into_groups([episode.reward for episode in episodes], 4)
    trained = sum(
        sum(sampled[4 * at : 4 * at + 4])
        for at, group in enumerate(rewards)
        if not is_zero_variance(group)
    )
    # TRL normalizes by all sampled tokens of the step, Ludus by those of groups with variance.
    share = trained / sum(sampled)
    assert grads["skip"]["grad_norm"] * share == pytest.approx(grads["keep"]["grad_norm"], rel=1e-3)


@pytest.mark.parametrize("size", range(2, 17))
def test_rounding_of_equal_rewards_is_no_variance(size: int) -> None:
    for value in (each / 100 for each in range(1, 200)):
        group = [(sum([value / size] * size),), *[(value,)] * (size - 1)]
        assert has_equal_returns(group)
        assert not has_equal_returns([(value + 1e-3,), *group[1:]])


def test_unscored_episodes_are_ignored_in_the_variance() -> None:
    assert has_equal_returns([(0.5,), None, (0.5,)]) and has_equal_returns([None, (0.2,)])
    assert not has_equal_returns([(0.5,), None, (0.4,)])
