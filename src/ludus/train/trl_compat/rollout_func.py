"""A `rollout_func` for TRL's GRPOTrainer: the policy under training plays Ludus environments.

    trainer = GRPOTrainer(
        model=..., args=...,
        train_dataset=Dataset.from_dict({"prompt": [f"task {number}" for number in range(1000)]}),
        rollout_func=ludus.train.rollout_func("wordle"),
        reward_funcs=lambda env_reward, **_: env_reward,
    )

All episodes of a batch are played concurrently, as in `ludus train grpo`, which also handles
zero-variance groups and held-out tasks and records the run.
"""

from __future__ import annotations

import copy
import inspect
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ludus.data.episode import Episode
from ludus.data.tool_schema import JsonObject
from ludus.environment.mixture import Mixture, parse_mixture
from ludus.environment.task_splits import Split
from ludus.errors import ConfigError
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.load import Policy
from ludus.rollout.config import RolloutConfig
from ludus.rollout.episode_loop import SYSTEM_PROMPT, EpisodeLimits
from ludus.train.distributed import Distributed
from ludus.train.grpo.advantages import SeedCheck, split_into_groups
from ludus.train.grpo.grpo_config import GRPOConfig
from ludus.train.grpo.policy_agent import TrainingPolicyAgent
from ludus.train.grpo.rollout_worker import RolloutWorker
from ludus.train.grpo.trl_grpo_config import GENERATION_FIELDS, SAMPLING_FIELDS

if TYPE_CHECKING:
    from trl import GRPOTrainer

_PER_COMPLETION_FIELDS = ("completion_ids", "logprobs")
_REQUIRED_FIELDS = ("prompt_ids", *_PER_COMPLETION_FIELDS)
_TASK_PROMPT = re.compile(r"task (\d+)")
_IGNORED_FIELDS = (
    *(*GENERATION_FIELDS, *SAMPLING_FIELDS),
    *("use_vllm", "max_tool_calling_iterations"),
)
"""Fields of TRL's GRPOConfig that have no effect here."""
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
) -> Callable[[Sequence[Any], GRPOTrainer], dict[str, Any]]:
    """Build the `rollout_func` of TRL's GRPOTrainer.

    A prompt "task 17" selects the environment's task 17 under `seed`. With any other prompt each
    group gets the next task, also after resuming from a checkpoint; every evaluation starts at the
    first one. The model is shown the system prompt and the observations, not the prompt. Reward
    functions get `env_reward`, which is None for an episode that a fault ended, and `episodes`.

    Args:
        environment: a spec, a URL, or a mixture of them.
        limits: limits of an episode; by default only the trainer's `max_completion_length`, as a
            limit of sampled tokens.
        task: arguments of reset for every episode.
        seed: selects the tasks.
        base_url: where a single environment is served, if not in this process.
        token: bearer token of the server.
        allow_unseeded: allow environments that ignore their seed, with a warning; the trainer's
            metric `unseeded` is then the share of groups at different tasks.
    """
    mixture = parse_mixture(environment) if isinstance(environment, str) else environment
    config = RolloutConfig(
        system_prompt=system_prompt, task=dict(task or {}), base_url=base_url, token=token
    )
    return _RolloutFunc(mixture, config, limits, seed, SeedCheck(allow_unseeded))


@dataclass(eq=False)
class _RolloutFunc:
    """Keeps its sessions from one batch to the next; they are closed when it is collected."""

    mixture: Mixture
    config: RolloutConfig
    limits: EpisodeLimits | None
    seed: int
    check_seeds: SeedCheck
    _worker: RolloutWorker | None = None
    _eval_progress: tuple[int, int] = (0, 0)
    """The step of the current evaluation, and the groups that it has played."""

    def __call__(self, prompts: Sequence[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        training = bool(trainer.model.training)
        size = trainer.num_generations if training else trainer.num_generations_eval
        worker, distributed = self._ensure_worker(trainer), Distributed.current()
        num_groups = distributed.world_size * len(prompts) // size
        groups_before = self._count_groups_before(trainer, num_groups)
        indices = []
        for position, prompt in enumerate(prompts, distributed.rank * len(prompts)):
            # A prompt may be a text or a conversation.
            text = prompt[-1].get("content") if isinstance(prompt, list) and prompt else prompt
            match = _TASK_PROMPT.fullmatch(text.strip()) if isinstance(text, str) else None
            number = int(match[1]) if match else groups_before + position // size
            indices.append(number * size + position % size)
        # Evaluate on tasks that are not trained on.
        seed = self.seed if training else self.seed + 1
        split: Split = "train" if training else "validation"
        plan = worker.plan(RUN_ID, seed=seed, group_size=size, split=split)
        trainer.model.eval()
        try:
            worker.run(self._agent.refresh_weights())
            episodes = worker.play(plan, indices)
        finally:
            trainer.model.train(training)
        groups = split_into_groups(distributed.all_gather(episodes), size)
        for name, share in self.check_seeds(groups).items():
            trainer._metrics["train" if training else "eval"][name].append(share)
        rewards = [episode.reward for episode in episodes]
        rows = to_rollout_batch(episodes, trainer.processing_class.pad_token_id)
        return {**rows, "env_reward": rewards, "episodes": episodes}

    def _count_groups_before(self, trainer: GRPOTrainer, groups: int) -> int:
        """How many groups training, or the current evaluation, has played before these.

        In training it is derived from the global step, which a checkpoint restores, and the batches
        within the step.
        """
        step, args = int(trainer.state.global_step), trainer.args
        if trainer.model.training:
            batches = args.gradient_accumulation_steps
            batches_before = step * batches + trainer._step % batches
            calls = batches_before // (args.steps_per_generation * args.num_iterations)
            return int(calls) * groups
        last_step, before = self._eval_progress
        before = before if last_step == step else 0
        self._eval_progress = (step, before + groups)
        return before

    def _ensure_worker(self, trainer: GRPOTrainer) -> RolloutWorker:
        if self._worker is None:
            defaults = {field.name: field.default for field in fields(trainer.args)}
            for name in _IGNORED_FIELDS:
                if (value := getattr(trainer.args, name)) != defaults[name]:
                    raise ConfigError(
                        f"GRPOConfig({name}={value!r}) has no effect on Ludus's rollouts, which "
                        "generate completions themselves. Remove it; the limits of an episode are "
                        "the argument `limits` of rollout_func."
                    )
            limits = self.limits or EpisodeLimits(max_episode_tokens=trainer.max_completion_length)
            self._worker = RolloutWorker(self.mixture, replace(self.config, **asdict(limits)))
            self._worker.__enter__()
            self._worker.find_splits()
            self._worker.agent = self._agent = _build_agent(trainer)
            weakref.finalize(self, self._worker.__exit__)
        self._agent.step = trainer.state.global_step + 1
        return self._worker


def _build_agent(trainer: GRPOTrainer) -> TrainingPolicyAgent:
    """An agent for the trainer's model, with the trainer's sampling parameters."""
    model, tokenizer = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
    chat_format = find_chat_format(tokenizer, chat_template_kwargs=trainer.chat_template_kwargs)
    stop_token_ids = chat_format.stop_token_ids | frozenset(trainer.eos_token_ids)
    policy = Policy(
        model.name_or_path or "policy", model, tokenizer,
        replace(chat_format, stop_token_ids=stop_token_ids),
    )  # fmt: skip
    config = GRPOConfig(
        temperature=trainer.temperature,
        top_p=trainer.top_p,
        top_k=trainer.top_k if trainer.top_k and trainer.top_k > 0 else None,
        seed=trainer.args.seed,
    )
    return TrainingPolicyAgent(policy, config)


def to_rollout_batch(episodes: Sequence[Episode], pad_token_id: int) -> JsonObject:
    """The columns of TRL's batch; a completion starts with the first sampled token.

    An episode without sampled tokens becomes a single masked token.
    """
    batch: JsonObject = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    }
    for episode in episodes:
        tokens = episode.tokens
        if tokens is None or 1 not in tokens.mask:
            row: tuple[Sequence[float], ...] = [pad_token_id], [pad_token_id], [0], [0]
        else:
            first = tokens.mask.index(1)
            logprobs = [logprob or 0.0 for logprob in tokens.logprobs[first:]]
            row = tokens.ids[:first], tokens.ids[first:], logprobs, tokens.mask[first:]
        for column, values in zip(batch.values(), row, strict=True):
            column.append(list(values))
    return batch


def is_legacy(function: Callable[..., Any]) -> bool:
    """Whether a rollout function needs three positional arguments."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in kinds and each.default is each.empty for each in parameters) == 3


def call_legacy(
    function: Callable[..., Any], prompts: Sequence[Any], trainer: GRPOTrainer, size: int
) -> dict[str, Any]:
    """Call a function of three arguments on this process's prompts; returns TRL's format.

    `prompts` has each prompt `size` times in a row.
    """
    from trl.data_utils import apply_chat_template, is_conversational

    args = copy.copy(trainer.args)
    args.num_generations = size
    tokenizer, texts = trainer.processing_class, list(prompts[::size])
    if is_conversational({"prompt": texts[0]}):
        kwargs = trainer.chat_template_kwargs
        rendered = [apply_chat_template({"prompt": p}, tokenizer, **kwargs) for p in texts]
        texts = [each["prompt"] for each in rendered]
    return expand_per_completion(function(texts, args, tokenizer), len(prompts), size)


def expand_per_completion(
    output: Mapping[str, Any], count: int, num_generations: int
) -> dict[str, Any]:
    """Repeat values given once per prompt, so that all lists have `count` items.

    Log-probabilities may be numbers, or lists of the likeliest tokens' with the sampled one first.
    """
    missing = [name for name in _REQUIRED_FIELDS if name not in output]
    if missing:
        raise ConfigError(f"The rollout function must return {missing[0]!r}.")
    expanded = dict(output)
    for name, value in output.items():
        is_per_prompt = isinstance(value, list) and len(value) * num_generations == count
        if is_per_prompt and name not in _PER_COMPLETION_FIELDS:
            expanded[name] = [item for item in value for _ in range(num_generations)]
    if len(expanded["completion_ids"]) != count or len(expanded["prompt_ids"]) != count:
        raise ConfigError(
            f"The rollout function returned {len(output['completion_ids'])} completions for "
            f"{count // num_generations} prompts, expected {num_generations} for each: {count}."
        )
    if expanded["logprobs"] is not None:
        expanded["logprobs"] = [
            [float(value[0] if isinstance(value, list) else value) for value in row]
            for row in expanded["logprobs"]
        ]
    return expanded
