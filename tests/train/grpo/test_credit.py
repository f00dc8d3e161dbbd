"""Credit by turn: returns and advantages of turns, and the tensors that are trained on."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer.utils import nanstd

from ludus import Episode, grpo
from ludus.data.episode import StopReason
from ludus.train.grpo.advantages import (
    TurnCredit,
    has_equal_returns,
    turn_advantages,
)
from ludus.train.grpo.step_batch import StepBatch
from ludus.train.grpo.trl_grpo_config import build_trl_grpo_config
from train.grpo.toy_environments import (
    FIRST_PICK,
    MEASURED_PICKS,
    read_episodes,
    small_config,
)
from train.short_runs import read_curve

MEMBERS = 8


def episode(
    turn_rewards: tuple[float, ...],
    progress: tuple[float, ...] = (),
    *,
    reward: float | None = None,
    **fields: Any,
) -> Episode:
    return Episode(
        episode_id="x", stop_reason=StopReason.DONE, environment="e", group_id="g",
        turn_rewards=turn_rewards, progress=progress, turns=len(turn_rewards),
        reward=sum(turn_rewards) if reward is None else reward, **fields,
    )  # fmt: skip


def test_a_turn_returns_its_own_and_later_rewards() -> None:
    for gae_lambda in (0.0, 0.5, 1.0):
        assert TurnCredit(gae_lambda).returns(episode((1.0, 0.0, 2.0))) == (3.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("gae_lambda", "solved", "failed"),
    [
        (0.0, (0.5, 0.25, 0.25), (0.5, -0.5)),
        (0.5, (0.6875, 0.375, 0.25), (0.25, -0.5)),
        (1.0, (1.0, 0.5, 0.25), (0.0, -0.5)),
    ],
)
def test_progress_is_the_critic_and_0_at_the_end(
    gae_lambda: float, solved: tuple[float, ...], failed: tuple[float, ...]
) -> None:
    credit = TurnCredit(gae_lambda)
    assert credit.returns(episode((0.0, 0.0, 1.0), (0.0, 0.5, 0.75, 1.0))) == solved
    assert credit.returns(episode((0.0, 0.0), (0.0, 0.5, 0.5))) == failed


def test_reward_functions_count_to_the_last_turn_and_weights_to_the_environment() -> None:
    assert TurnCredit(1.0).returns(episode((1.0, 0.0), reward=1.5)) == (1.5, 0.5)
    # Half of the environment's reward of 1, and 1 from a function.
    halved = TurnCredit(1.0, environment_weight=0.5)
    assert halved.returns(episode((1.0, 0.0), reward=1.5)) == (1.5, 1.0)
    assert halved.returns(episode((1.0, 0.0), (0.0, 0.5, 1.0), reward=1.5)) == (1.5, 0.75)


def test_episodes_without_turns_and_without_a_reward() -> None:
    assert TurnCredit(0.9).returns(episode((), reward=0.5)) == (0.5,)
    broken = episode((1.0,)).model_copy(update={"reward": None})
    assert TurnCredit(0.9).returns(broken) is None


def test_turns_are_compared_with_the_same_turn_of_the_group() -> None:
    returns = [(1.0, 0.0), (0.0, 0.0), None]
    # The variance is 0.5 at the first turn and 0 at the second; the root of its mean is 0.5.
    first = 0.5 / 0.5001
    assert turn_advantages(returns, 3, "group") == [(first, 0.0), (-first, 0.0), ()]
    assert turn_advantages(returns, 3, "none") == [(0.5, 0.0), (-0.5, 0.0), ()]


def test_a_reward_at_the_end_gives_all_turns_the_advantage_of_the_episode() -> None:
    """As TRL computes it, also if the episodes differ in length."""
    own = 0.5 / (0.5**0.5 + 1e-4)
    assert turn_advantages([(1.0,) * 3, (0.0,) * 2], 2, "group") == [
        pytest.approx((own,) * 3),
        pytest.approx((-own,) * 2),
    ]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_of_episodes_are_trls(scale: str) -> None:
    """The formula of `GRPOTrainer._generate_and_score_completions`, for each `scale_rewards`."""
    rewards = torch.tensor([0.28, 0.28, 0.28, 0.30, 0.0, 0.0, 0.0, 1.0])
    divisors = {
        "group": nanstd(rewards.view(-1, 4), dim=1).repeat_interleave(4),
        "batch": nanstd(rewards).expand(8),
        "none": torch.ones(8) - 1e-4,
    }
    means = rewards.view(-1, 4).mean(dim=1).repeat_interleave(4)
    expected = (rewards - means) / (divisors[scale] + 1e-4)
    advantages = turn_advantages([(value,) for value in rewards.tolist()], 4, scale)
    assert [value for (value,) in advantages] == pytest.approx(expected.tolist(), rel=1e-4)


def test_by_default_a_small_difference_counts_less_than_a_solved_task(tmp_path: Path) -> None:
    scale = build_trl_grpo_config(small_config(), tmp_path).scale_rewards
    returns = [(value,) for value in (0.28, 0.28, 0.28, 0.30, 0.0, 0.0, 0.0, 1.0)]
    best = [values[0] for values in turn_advantages(returns, 4, scale)[3::4]]
    assert best[1] == pytest.approx(50 * best[0])


def test_a_group_has_a_signal_where_the_returns_from_any_turn_on_differ() -> None:
    assert not has_equal_returns([(1.0, 0.0), (1.0, 1.0)])
    assert has_equal_returns([(1.0, 1.0), (1.0,)])
    assert has_equal_returns([(1.0, 0.0), None])


def test_progress_alone_is_a_signal_unless_it_is_a_mere_baseline() -> None:
    failed = [episode((0.0, 0.0), (0.0, 0.5, 0.5)), episode((0.0, 0.0), (0.0, 0.0, 0.0))]
    assert not has_equal_returns([TurnCredit(0.9).compared_returns(each) for each in failed])
    assert has_equal_returns([TurnCredit(1.0).compared_returns(each) for each in failed])


class Recorded:
    """The batch of a step before episodes are left out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original: Any = StepBatch.build

        def record(*arguments: Any) -> StepBatch:
            if arguments[0]:  # Episodes of a step, not those of a measurement.
                self.batch = original(*arguments)
                self.episodes = self.batch.source
            batch: StepBatch = original(*arguments)
            return batch

        monkeypatch.setattr(StepBatch, "build", record)

    def turns(self, row: int) -> list[float]:
        """The advantage of each turn of an episode, which all its tokens must share."""
        part = self.batch.part(row, row + 1)
        advantages = iter(part.advantages.tolist())
        runs = groupby(part.episodes[0].sampled)
        values = [{next(advantages) for _ in run} for sampled, run in runs if sampled]
        assert all(len(each) == 1 for each in values)
        return [each.pop() for each in values]


def run(environment: str, model: Path, out: Path, **changes: Any) -> list[dict[str, Any]]:
    config = small_config(
        steps=1, groups=2, group_size=MEMBERS, max_episode_tokens=120, max_turns=3, **changes
    )
    grpo(environment, str(model), out, config)
    return read_curve(out)


def test_only_the_turn_that_is_rewarded_has_an_advantage(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch)
    run(FIRST_PICK, model, tmp_path / "out", credit="turn", zero_variance_groups="keep")
    rewarded = {True: 0, False: 0}
    for row, played in enumerate(recorded.episodes):
        first, *others = recorded.turns(row)
        assert len(others) == played.turns - 1
        assert others == [0.0] * len(others)
        rewarded[bool(played.reward)] += 1
        assert (first > 0) if played.reward else (first < 0)
    assert all(rewarded.values()) and any(each.turns > 1 for each in recorded.episodes)


def early(episode: Episode) -> float:
    """1 for an episode whose first pick is c or d."""
    calls = [call for message in episode.messages for call in message.tool_calls or ()]
    return float(bool(calls) and calls[0].function.arguments[-3] in "cd")


def test_with_a_reward_at_the_end_training_is_that_of_whole_episodes(
    model: Path, tmp_path: Path
) -> None:
    rewards = ("environment=0", f"{__name__}:early")
    logs = {
        credit: run(FIRST_PICK, model, tmp_path / credit, credit=credit, reward_funcs=rewards)[0]
        for credit in ("episode", "turn")
    }
    assert logs["turn"]["zero_variance"] < 1 and logs["turn"]["turns"] > 1
    for name in ("reward", "zero_variance", "trained", "grad_norm", "loss"):
        assert logs["turn"][name] == pytest.approx(logs["episode"][name], rel=1e-4, abs=1e-6)


def test_reward_functions_add_to_the_last_turn(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded(monkeypatch)
    run(
        FIRST_PICK, model, tmp_path / "out", credit="turn", zero_variance_groups="keep",
        reward_funcs=(f"{__name__}:early=0.5",), overrides={"scale_rewards": "none"},
    )  # fmt: skip
    group = recorded.episodes[:MEMBERS]
    last = [0.5 * early(each) for each in group]
    first = [each.turn_rewards[0] + bonus for each, bonus in zip(group, last, strict=True)]
    assert len(set(last)) > 1 and first != last and all(each.turns == 2 for each in group)
    for row in range(MEMBERS):
        expected = (first[row] - sum(first) / MEMBERS, last[row] - sum(last) / MEMBERS)
        assert recorded.turns(row) == pytest.approx(expected, abs=1e-6)


def test_progress_gives_a_signal_where_every_episode_fails(model: Path, tmp_path: Path) -> None:
    log = {
        credit: run(MEASURED_PICKS, model, tmp_path / credit, credit=credit)[0]
        for credit in ("episode", "turn")
    }
    assert log["episode"]["reward"] == log["turn"]["reward"] == 0.0
    assert (log["episode"]["zero_variance"], log["episode"]["trained"]) == (1.0, 0.0)
    assert log["turn"]["zero_variance"] == 0.0 and log["turn"]["trained"] > 0
    assert log["turn"]["grad_norm"] > 0
    for played in read_episodes(tmp_path / "turn"):
        assert len(played.progress) == played.turns + 1


@pytest.mark.parametrize("seed", [3, 4])
def test_micro_batches_and_rows_without_signal_do_not_change_the_gradient(
    model: Path, tmp_path: Path, seed: int
) -> None:
    logs = [
        run(
            FIRST_PICK, model, tmp_path / str(number), credit="turn", seed=seed, batch_size=size,
            zero_variance_groups=mode, reward_funcs=(f"{__name__}:early=0.5",),
        )[0]
        for number, (size, mode) in enumerate([(2 * MEMBERS, "keep"), (3, "skip")])
    ]  # fmt: skip
    assert logs[0]["grad_norm"] == pytest.approx(logs[1]["grad_norm"], rel=1e-3)
    assert logs[0]["micro_batches"] == 1 < logs[1]["micro_batches"]
