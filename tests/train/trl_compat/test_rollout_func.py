"""`rollout_func` with a real TRL trainer."""

from __future__ import annotations

import copy
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trl
from datasets import Dataset
from policy.models import tiny
from policy.trained_policies import player
from tiny_tokenizers import of_family
from world import Counter, serving, wait_until

from ludus.data.episode import Episode
from ludus.environment.task_splits import key_digest, split_of
from ludus.errors import ConfigError, RunError
from ludus.policy.chat.chat_format import find_chat_format, set_chat_format
from ludus.policy.load import Policy
from ludus.rollout import EpisodeLimits
from ludus.rollout.plan import Assignment, task_seed
from ludus.train import rollout_func
from train.trl_compat.scripted_rollouts import FAST_ARGS

COUNTER = "world:Counter"


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Policy:
    """A policy that solves Counter up to 6."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trained = player("chatml")
    policy_copy = replace(trained, model=copy.deepcopy(trained.model))
    set_chat_format(policy_copy.tokenizer, policy_copy.chat_format)
    return policy_copy


def drawn_seeds(seed: int, split: str) -> list[int]:
    """The seeds of a run's first tasks; those of other splits are drawn again."""

    def draw(number: int) -> int:
        first = drawn = Assignment.of(COUNTER, seed=task_seed(seed, number))
        draws = 0
        while split_of(key_digest(Counter().reset(seed=drawn.seed))) != split:
            draws += 1
            drawn = first.redraw(draws)
        assert drawn.seed is not None
        return drawn.seed

    return [draw(number) for number in range(8)]


def build_trainer(
    folder: Path, policy: Policy, function: Any, prompts: list[Any], **more: Any
) -> Any:
    policy.model.train()
    usual = {"max_steps": 1, "logging_steps": 1, "temperature": 0.01, "shuffle_dataset": False}
    sizes = {"per_device_train_batch_size": 4, "max_completion_length": 80}
    return trl.GRPOTrainer(
        policy.model,
        lambda env_reward, **_: env_reward,
        trl.GRPOConfig(str(folder), **{**FAST_ARGS, **usual, **sizes, **more}),
        Dataset.from_dict({"prompt": prompts}),
        processing_class=policy.tokenizer,
        rollout_func=function,
    )


def test_trained_model_plays_and_is_rewarded(tmp_path: Path, policy: Policy) -> None:
    function = rollout_func(COUNTER, task={"goal": 6})
    trainer = build_trainer(tmp_path, policy, function, [f"task {number}" for number in range(4)])
    trainer.train()
    logged = trainer.state.log_history[0]
    assert (logged["reward"], logged["completions/clipped_ratio"]) == (1.0, 0.0)


def test_output_has_sampled_tokens_and_masks_the_environments(
    tmp_path: Path, policy: Policy
) -> None:
    trainer = build_trainer(tmp_path, policy, print, ["task 0"])
    output = rollout_func(COUNTER, task={"goal": 6}, seed=5)(
        ["task 3"] * 2 + ["task 9"] * 2, trainer
    )
    episodes: list[Episode] = output["episodes"]
    seeds = [task_seed(5, number) for number in (3, 3, 9, 9)]
    assert [episode.seed for episode in episodes] == seeds
    assert output["env_reward"] == [1.0] * 4 == [episode.reward for episode in episodes]
    columns = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    prompt, reply, logprobs, mask = (output[name][0] for name in columns)
    assert episodes[0].tokens is not None
    assert [*prompt, *reply] == list(episodes[0].tokens.ids)
    assert len(reply) == len(logprobs) == len(mask) and mask[0] == 1 and 0 in mask
    assert episodes[0].agent["step"] == 1
    assert trainer.model.training


def test_other_prompts_get_consecutive_tasks(tmp_path: Path, policy: Policy) -> None:
    trainer = build_trainer(tmp_path, policy, print, ["task 0"])
    function = rollout_func(COUNTER, limits=EpisodeLimits(max_turns=1))
    talk = [{"role": "user", "content": "Play."}]

    def seeds(step: int) -> list[int | None]:
        trainer.state.global_step = step
        return [episode.seed for episode in function([talk] * 4, trainer)["episodes"]]

    trained = [seeds(step) for step in (0, 1)]
    numbers = [[0, 0, 1, 1], [2, 2, 3, 3]]
    train, test = drawn_seeds(0, "train"), drawn_seeds(1, "validation")
    assert trained == [[train[number] for number in batch] for batch in numbers]
    trainer.model.eval()
    held_out = [seeds(step) for step in (1, 1, 2, 2)]
    assert held_out[:2] == held_out[2:], "each evaluation is on the same tasks"
    assert held_out == [[test[number] for number in batch] for batch in numbers * 2]
    assert not trainer.model.training


def test_resumed_training_continues_with_the_next_tasks(tmp_path: Path, policy: Policy) -> None:
    """With two batches per step, each with its own rollouts."""
    seeds: list[list[int | None]] = []

    def watched() -> Any:
        function = rollout_func(COUNTER, limits=EpisodeLimits(max_turns=1))

        def rolled(prompts: Any, trainer: Any) -> Any:
            output = function(prompts, trainer)
            seeds.append([episode.seed for episode in output["episodes"]])
            return output

        return rolled

    more = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "save_steps": 1}
    steps: dict[str, Any] = {"max_steps": 2, "save_strategy": "steps", **more}
    build_trainer(tmp_path, policy, watched(), ["Play."] * 4, **steps).train()
    drawn = drawn_seeds(0, "train")
    whole = [[drawn[number] for number in (at, at, at + 1, at + 1)] for at in (0, 2, 4, 6)]
    assert seeds == whole
    seeds.clear()
    again = build_trainer(tmp_path, policy, watched(), ["Play."] * 4, **steps)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert seeds == whole[2:]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"min_p": 0.1}, r"min_p=0\.1"),
        ({"generation_kwargs": {"min_new_tokens": 3}}, "generation_kwargs="),
        ({"max_tool_calling_iterations": 3}, "`limits`"),
    ],
)
def test_ignored_generation_arguments_are_rejected(
    tmp_path: Path, policy: Policy, more: dict[str, Any], words: str
) -> None:
    trainer = build_trainer(tmp_path, policy, print, ["task 0"], **more)
    with pytest.raises(ConfigError, match=words):
        rollout_func(COUNTER)(["task 0"] * 2, trainer)


def test_chat_template_kwargs_of_the_trainer_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = of_family("qwen3")
    policy = Policy("talker", tiny(tokenizer), tokenizer, find_chat_format(tokenizer))
    off = {"enable_thinking": False}
    trainer = build_trainer(tmp_path, policy, print, ["task 0"], chat_template_kwargs=off)
    function = rollout_func(COUNTER, limits=EpisodeLimits(max_turns=1, max_tokens=2))
    played = function(["task 0"] * 2, trainer)
    assert all(each.agent["chat_template_kwargs"] == off for each in played["episodes"])
    for prompt in played["prompt_ids"]:
        assert tokenizer.decode(prompt).endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize("top_k", [-1, 0])
def test_top_k_of_zero_or_less_is_unlimited(tmp_path: Path, policy: Policy, top_k: int) -> None:
    trainer = build_trainer(tmp_path, policy, print, ["task 0"])
    trainer.top_k = top_k
    function = rollout_func(COUNTER, limits=EpisodeLimits(max_turns=1))
    assert len(function(["task 0"] * 2, trainer)["episodes"]) == 2


def test_group_at_different_tasks_is_an_error(tmp_path: Path, policy: Policy) -> None:
    trainer = build_trainer(tmp_path, policy, print, ["task 0"])
    with pytest.raises(RunError, match=r"IgnoresSeed .*same seed"):
        rollout_func(
            "train.trl_compat.environments:IgnoresSeed", limits=EpisodeLimits(max_turns=1)
        )(["x"] * 2, trainer)


def test_allow_unseeded_turns_the_error_into_a_warning(tmp_path: Path, policy: Policy) -> None:
    trainer = build_trainer(tmp_path, policy, print, ["task 0"])
    spec = "train.trl_compat.environments:IgnoresSeed"
    function = rollout_func(spec, limits=EpisodeLimits(max_turns=1), allow_unseeded=True)
    with pytest.warns(UserWarning, match=r"IgnoresSeed .*same seed"):
        assert len(function(["x"] * 2, trainer)["episodes"]) == 2
    function(["x"] * 2, trainer)
    assert trainer._metrics["train"]["unseeded"] == [1.0, 1.0]


def test_sessions_are_reused_and_closed_at_the_end(tmp_path: Path, policy: Policy) -> None:
    trainer = build_trainer(tmp_path, policy, print, ["task 0"])
    with serving(COUNTER) as served:
        function = rollout_func(COUNTER, base_url=served.url, limits=EpisodeLimits(max_turns=1))
        for _ in range(2):
            function(["task 1"] * 4, trainer)
            assert len(served.sessions) == 4
        del function
        gc.collect()
        wait_until(lambda: len(served.sessions) == 0)
