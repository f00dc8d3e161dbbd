"""A `rollout_func` for one's own trainer: the policy under training plays, in groups, at once."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset
from policy.players import player
from world import serving, wait_until

from ludus.data.episode import Episode
from ludus.errors import RunError
from ludus.policy.dialect import adopt
from ludus.policy.load import Policy
from ludus.rollout import Limits
from ludus.rollout.plan import task_seed
from ludus.train.trl import rollout_func
from train.trl.scripts import QUICK

COUNTER = "world:Counter"


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Policy:
    """It plays Counter up to 6 by heart."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    taught = player("chatml")
    made = replace(taught, model=copy.deepcopy(taught.model))
    adopt(made.tokenizer, made.dialect)
    return made


def trainer_of(folder: Path, policy: Policy, function: Any, prompts: list[Any]) -> Any:
    policy.model.train()
    settings = {**QUICK, "per_device_train_batch_size": 4, "max_completion_length": 80}
    return trl.GRPOTrainer(
        policy.model,
        lambda env_reward, **_: env_reward,
        trl.GRPOConfig(
            str(folder), **settings, max_steps=1, logging_steps=1, temperature=0.01,
            shuffle_dataset=False,
        ),
        Dataset.from_dict({"prompt": prompts}),
        processing_class=policy.tokenizer,
        rollout_func=function,
    )  # fmt: skip


def test_the_model_under_training_plays_and_is_rewarded(tmp_path: Path, policy: Policy) -> None:
    function = rollout_func(COUNTER, task={"goal": 6})
    trainer = trainer_of(tmp_path, policy, function, [f"task {number}" for number in range(4)])
    trainer.train()
    logged = trainer.state.log_history[0]
    assert (logged["reward"], logged["completions/clipped_ratio"]) == (1.0, 0.0)


def test_what_is_handed_over_is_what_was_sampled_with_the_environments_tokens_masked(
    tmp_path: Path, policy: Policy
) -> None:
    trainer = trainer_of(tmp_path, policy, print, ["task 0"])
    made = rollout_func(COUNTER, task={"goal": 6}, seed=5)(["task 3"] * 2 + ["task 9"] * 2, trainer)
    episodes: list[Episode] = made["episodes"]
    seeds = [task_seed(5, number) for number in (3, 3, 9, 9)]
    assert [episode.seed for episode in episodes] == seeds
    assert made["env_reward"] == [1.0] * 4 == [episode.reward for episode in episodes]
    columns = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    prompt, reply, logprobs, mask = (made[name][0] for name in columns)
    assert episodes[0].tokens is not None
    assert [*prompt, *reply] == list(episodes[0].tokens.ids)
    assert len(reply) == len(logprobs) == len(mask) and mask[0] == 1 and 0 in mask
    assert episodes[0].agent["step"] == 1
    assert trainer.model.training


def test_prompts_that_name_no_task_only_count_groups(tmp_path: Path, policy: Policy) -> None:
    trainer = trainer_of(tmp_path, policy, print, ["task 0"])
    function = rollout_func(COUNTER, limits=Limits(max_turns=1))
    talk = [{"role": "user", "content": "Play."}]
    seeds = [
        [episode.seed for episode in function([talk] * 4, trainer)["episodes"]] for _ in range(2)
    ]
    numbers = [[0, 0, 1, 1], [2, 2, 3, 3]]
    assert seeds == [[task_seed(0, number) for number in batch] for batch in numbers]
    trainer.model.eval()
    held_out = function([talk] * 4, trainer)["episodes"]
    assert not {episode.seed for episode in held_out} & set(seeds[0])
    assert not trainer.model.training


def test_a_group_that_was_shown_different_tasks_is_refused(tmp_path: Path, policy: Policy) -> None:
    trainer = trainer_of(tmp_path, policy, print, ["task 0"])
    with pytest.raises(RunError, match="different tasks for the same seed"):
        rollout_func("train.trl.worlds:Moody", limits=Limits(max_turns=1))(["x"] * 2, trainer)


def test_sessions_are_kept_for_the_next_batch_and_given_back_at_the_end(
    tmp_path: Path, policy: Policy
) -> None:
    trainer = trainer_of(tmp_path, policy, print, ["task 0"])
    with serving(COUNTER) as served:
        function = rollout_func(COUNTER, base_url=served.url, limits=Limits(max_turns=1))
        for _ in range(2):
            function(["task 1"] * 4, trainer)
            assert len(served.sessions) == 4
        del function
        gc.collect()
        wait_until(lambda: len(served.sessions) == 0)
