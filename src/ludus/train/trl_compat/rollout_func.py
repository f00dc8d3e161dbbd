"""A `rollout_func` for trainers of one's own: the policy under training plays Ludus environments.

    trainer = GRPOTrainer(
        model=..., args=...,
        train_dataset=Dataset.from_dict({"prompt": [f"task {number}" for number in range(1000)]}),
        rollout_func=ludus.train.rollout_func("wordle"),
        reward_funcs=lambda env_reward, **_: env_reward,
    )

All episodes of a batch are under way at once, as in `ludus train grpo`, which does more with them:
groups that teach nothing, held-out tasks, a record of the run.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ludus.data.episode import Episode
from ludus.environment.mixture import Mixture, parse_mixture
from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.load import Policy
from ludus.rollout.config import RolloutConfig
from ludus.rollout.loop import SYSTEM_PROMPT, EpisodeLimits
from ludus.train.distributed import Distributed
from ludus.train.grpo.group_rollouts import to_trl_batch
from ludus.train.grpo.groups import SeedCheck, prompt_digest
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.policy_agent import TrainingPolicyAgent
from ludus.train.grpo.rollout_worker import RolloutWorker
from ludus.train.grpo.trl_grpo_config import GENERATION_FIELDS

_TASK_PROMPT = re.compile(r"task (\d+)")
_ARGUMENT_HINTS = {"max_tool_calling_iterations": "Give rollout_func limits=Limits(max_turns=...)."}
"""What is said to rollouts of Ludus's in another way."""
RUN_ID = "rollouts"


def rollout_func(
    environment: str | Mixture,
    *,
    limits: EpisodeLimits | None = None,
    system_prompt: str | None = SYSTEM_PROMPT,
    task: Mapping[str, Any] | None = None,
    seed: int = 0,
    base_url: str | None = None,
    token: str | None = None,
    allow_unseeded: bool = False,
) -> Callable[[Sequence[Any], Any], dict[str, Any]]:
    """What TRL's GRPOTrainer takes as `rollout_func`.

    The prompts say which task is played: the text "task 17" is the environment's task 17 under this
    seed. Other prompts only count: each group gets the next task, also in a training that goes on
    from a checkpoint; an evaluation begins at the first one. What a model is shown is the system
    prompt and what the environment shows. Reward functions get `env_reward`, which is None for an
    episode that broke, and `episodes`.

    Args:
        environment: a spec, a URL, or a mix of them.
        limits: where an episode is cut off; if not given, after as many tokens of the model's as
            the trainer's `max_completion_length`.
        task: arguments of reset for every episode.
        base_url: where a single environment is served, if not in this process.
        allow_unseeded: train also on environments that ignore their seed, with a warning; the
            trainer's metric `unseeded` is then the share of groups at different tasks.
    """
    mix = parse_mixture(environment) if isinstance(environment, str) else environment

    def staged(given: EpisodeLimits) -> RolloutWorker:
        config = RolloutConfig(
            max_turns=given.max_turns,
            max_tokens=given.max_tokens,
            max_episode_tokens=given.max_episode_tokens,
            episode_timeout=given.episode_timeout,
            system_prompt=system_prompt,
            task=dict(task or {}),
            base_url=base_url,
            token=token,
        )
        return RolloutWorker(mix, config)

    return _RolloutFunc(staged, limits, seed, SeedCheck(allow_unseeded))


class _RolloutFunc:
    """Keeps its sessions from one batch to the next; they are closed when it is forgotten."""

    def __init__(
        self,
        staged: Callable[[EpisodeLimits], RolloutWorker],
        limits: EpisodeLimits | None,
        seed: int,
        check_seeds: SeedCheck,
    ) -> None:
        self._build_worker, self._limits, self._seed = staged, limits, seed
        self._check_seeds = check_seeds
        self._worker: RolloutWorker | None = None
        self._eval_progress = (0, 0)
        """The step at which an evaluation was, and how many groups it has played there."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        training = bool(trainer.model.training)
        size = trainer.num_generations if training else trainer.num_generations_eval
        stage, world = self._ensure_worker(trainer), Distributed.current()
        places = [world.rank * len(prompts) + at for at in range(len(prompts))]
        groups = world.world_size * len(prompts) // size
        before = (
            _count_generations(trainer) * groups
            if training
            else self._count_eval_groups(trainer, groups)
        )
        numbers = _task_numbers(prompts, [before + place // size for place in places])
        # Under another seed there are other tasks, all of them.
        seed = self._seed if training else self._seed + 1
        plan = stage.plan(RUN_ID, seed=seed, group_size=size)
        indices = [
            number * size + place % size for number, place in zip(numbers, places, strict=True)
        ]
        trainer.model.eval()
        try:
            stage.run(_policy_agent(stage).refresh_weights())
            episodes = stage.play(plan, indices)
        finally:
            trainer.model.train(training)
        for name, share in self._unseeded_share(world.all_gather(episodes), size).items():
            trainer._metrics["train" if training else "eval"][name].append(share)
        rewards = [episode.reward for episode in episodes]
        rows = to_trl_batch(episodes, trainer.processing_class.pad_token_id)
        return {**rows, "env_reward": rewards, "episodes": episodes}

    def _unseeded_share(self, episodes: Sequence[Episode], size: int) -> dict[str, float]:
        names = [episode.environment for episode in episodes]
        return self._check_seeds([prompt_digest(episode) for episode in episodes], names, size)

    def _count_eval_groups(self, trainer: Any, groups: int) -> int:
        """Groups of the same evaluation that came before these."""
        step, before = self._eval_progress
        now = int(trainer.state.global_step)
        before = before if step == now else 0
        self._eval_progress = (now, before + groups)
        return before

    def _ensure_worker(self, trainer: Any) -> RolloutWorker:
        if self._worker is None:
            _reject_ignored_args(trainer.args)
            tokens = trainer.max_completion_length
            self._worker = self._build_worker(
                self._limits or EpisodeLimits(max_episode_tokens=tokens)
            )
            self._worker.__enter__()
            self._worker.agent = _build_policy_agent(trainer)
            weakref.finalize(self, self._worker.__exit__)
        _policy_agent(self._worker).step = trainer.state.global_step + 1
        return self._worker


def _count_generations(trainer: Any) -> int:
    """How often training has asked for rollouts before, whoever has made its steps.

    From the step that it stands at, because a checkpoint brings that back; within a step, from the
    batches that it has had of it.
    """
    args = trainer.args
    batches = args.gradient_accumulation_steps
    done = trainer.state.global_step * batches + trainer._step % batches
    return int(done // (args.steps_per_generation * args.num_iterations))


def _task_numbers(prompts: Sequence[Any], defaults: Sequence[int]) -> list[int]:
    """Which tasks are meant."""
    pairs = zip(map(_match_task_prompt, prompts), defaults, strict=True)
    return [int(found[1]) if found else number for found, number in pairs]


def _reject_ignored_args(args: Any) -> None:
    """What the trainer's config says of generation in vain is not passed over in silence."""
    usual = {field.name: field.default for field in fields(args)}
    for name in (*GENERATION_FIELDS, "use_vllm", *_ARGUMENT_HINTS):
        if (value := getattr(args, name)) != usual[name]:
            raise ConfigError(
                f"GRPOConfig({name}={value!r}) means nothing to rollouts of Ludus's, which "
                f"generate by themselves. {_ARGUMENT_HINTS.get(name, 'Leave it away.')}"
            )


def _match_task_prompt(prompt: Any) -> re.Match[str] | None:
    """The number in a prompt, which may be a text or a conversation."""
    if isinstance(prompt, list):
        prompt = prompt[-1].get("content") if prompt else None
    return _TASK_PROMPT.fullmatch(prompt.strip()) if isinstance(prompt, str) else None


def _policy_agent(stage: RolloutWorker) -> TrainingPolicyAgent:
    assert isinstance(stage.agent, TrainingPolicyAgent)
    return stage.agent


def _build_policy_agent(trainer: Any) -> TrainingPolicyAgent:
    """The trainer's own model, sampled as the trainer says."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    tokenizer = trainer.processing_class
    dialect = find_chat_format(tokenizer, chat_template_kwargs=trainer.chat_template_kwargs)
    dialect = replace(
        dialect, stop_token_ids=dialect.stop_token_ids | frozenset(trainer.eos_token_ids)
    )
    settings = GRPOConfig(
        temperature=trainer.temperature,
        top_p=trainer.top_p,
        top_k=trainer.top_k if trainer.top_k and trainer.top_k > 0 else None,
        seed=trainer.args.seed,
    )
    return TrainingPolicyAgent(
        Policy(model.name_or_path or "policy", model, tokenizer, dialect), settings
    )
