"""The config of GRPO training. For the fields of TRL's config see `trl_grpo_config`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any, Literal

from ludus.data.config import check_at_least
from ludus.environment.task_buckets import parse_axes
from ludus.errors import ConfigError
from ludus.options import Option
from ludus.policy.device import choose_device
from ludus.policy.engine.sampling import SamplingParams
from ludus.rollout.config import EpisodeConfig, RolloutConfig
from ludus.rollout.plan import purpose_seed
from ludus.train.config import DEFAULT_GROUPS, BaseTrainConfig

ZeroVarianceMode = Literal["skip", "keep"]
CreditMode = Literal["episode", "turn"]
VllmMode = Literal["colocate", "server"]
KeepModel = Literal["best", "last"]
_HELD_OUT_FRACTION = 0.1
"""Default upper bound of held-out episodes, as a fraction of training episodes."""
_MIN_HELD_OUT_INTERVAL = 5
_DEFAULT_GAE_LAMBDA = 0.9


@dataclass(frozen=True, kw_only=True)
class GRPOConfig(BaseTrainConfig, EpisodeConfig):
    """How a model is trained by GRPO."""

    steps: Annotated[int, Option("Optimization", aliases=("--max-steps",))] = 150
    """Number of training steps."""
    groups: Annotated[int, Option("Sampling", default="64 on CUDA, else 16")] = 0
    """Groups (tasks) per training step, over all processes."""
    group_size: Annotated[
        int, Option("Sampling", aliases=("--num-generations",), default="8 on CUDA, else 4")
    ] = 0
    """Episodes per group, whose rewards are compared."""
    max_episode_tokens: Annotated[
        int,
        Option("Limits", aliases=("--max-completion-length",), default="1024 on CUDA, else 256"),
    ] = 0
    """Maximum number of tokens sampled per episode, over all its replies."""
    max_tokens: Annotated[
        int | None, Option("Limits", hidden=True, default="what is left of --max-episode-tokens")
    ] = None
    """Maximum number of tokens sampled per reply, reasoning included."""
    temperature: Annotated[float, Option("Sampling")] = 1.0
    """Sampling temperature."""
    top_p: Annotated[float, Option("Sampling", hidden=True)] = 1.0
    """Nucleus sampling: probability mass to keep."""
    top_k: Annotated[int | None, Option("Sampling", hidden=True, default="all")] = None
    """Number of the most likely tokens to sample from."""
    batch_size: Annotated[
        int | None,
        Option(
            "Optimization",
            advanced=True,
            aliases=("--per-device-train-batch-size",),
            default="as many as fit; 8 on a CPU",
        ),
    ] = None
    """Most episodes in a forward pass."""
    beta: Annotated[float | None, Option("Optimization", advanced=True, default="0")] = None
    """KL penalty coefficient."""
    zero_variance_groups: Annotated[ZeroVarianceMode, Option("Sampling", advanced=True)] = "skip"
    """What to do with groups whose episodes all have the same reward, which have no learning
    signal: leave them out of the step, or keep them as TRL does."""
    target_kl: Annotated[float, Option("Optimization", hidden=True)] = 0.05
    """Target KL divergence of a step, per episode in nats; the learning rate is scaled to reach it.
    0: no scaling."""
    importance_correction: Annotated[bool, Option("Optimization", hidden=True)] = True
    """Weigh each token by its probability in the trainer over that in the decoder, clipped: both
    round differently. TRL does it for vLLM only."""
    credit: Annotated[CreditMode, Option("Optimization", advanced=True)] = "episode"
    """Advantage per episode, or per reply (`turn`), from the rewards and the progress that follow
    it."""
    gae_lambda: Annotated[float, Option("Optimization", hidden=True)] = _DEFAULT_GAE_LAMBDA
    """Lambda of generalized advantage estimation, with `credit="turn"`: 0 credits progress only to
    the turn that made it; with 1 it is only a baseline. Without effect without progress."""
    vllm_mode: Annotated[
        VllmMode | None,
        Option(
            "Sampling",
            advanced=True,
            aliases=("--use-vllm=colocate",),
            default="the built-in engine",
        ),
    ] = None
    """Decode with TRL's vLLM, in this process or on a server."""
    reward_funcs: Annotated[
        tuple[str, ...],
        Option("Tasks", advanced=True, name="reward_func", metavar="MODULE:FUNCTION[=WEIGHT]"),
    ] = ()
    """Reward function or rubric besides the environment's own reward, with a weight:
    `module:function=0.5`; repeatable. `environment=0.5` weighs the environment's own reward."""
    gpu_memory_utilization: Annotated[float, Option("Limits", advanced=True)] = 0.9
    """Share of the GPU's memory for this run, decoder and training together. Runs that share a GPU
    need shares that add up to less than 1."""
    eval_every: Annotated[
        int | None,
        Option("Output", advanced=True, default="so that a tenth of all episodes are held-out"),
    ] = None
    """Steps between two evaluations on held-out tasks. 0: no evaluation, and so no best model to
    keep or to roll back to."""
    eval_episodes: Annotated[int, Option("Output", hidden=True, default="256 on CUDA, else 64")] = 0
    """Episodes per evaluation on held-out tasks."""
    keep: Annotated[KeepModel, Option("Output", hidden=True)] = "best"
    """Model that the run ends with: the best on held-out tasks, or the last."""
    max_rollbacks: Annotated[int, Option("Optimization", hidden=True)] = 2
    """Maximum number of rollbacks: a run that gets worse goes back to its best model, at half the
    learning rate; after the last rollback it is stopped."""
    early_stop: Annotated[bool, Option("Optimization", advanced=True)] = False
    """End when nothing is left to learn."""
    allow_unseeded: Annotated[bool, Option("Tasks", hidden=True)] = False
    """Train also on environments that ignore their seed, although the episodes of a group then have
    different tasks."""
    curriculum: Annotated[
        tuple[str, ...], Option("Tasks", advanced=True, metavar="NAME=LOW..HIGH|NAME=VALUE,VALUE")
    ] = ()
    """Argument of reset, or `variant`, drawn from values at which 20 to 80 % of attempts succeed:
    max_terms=2..5, or a list size=4,9; repeatable for combinations."""

    def __post_init__(self) -> None:
        BaseTrainConfig.__post_init__(self)
        EpisodeConfig.__post_init__(self)
        for name, minimum in _MINIMUMS.items():
            if getattr(self, name) or name not in _BY_DEVICE:
                check_at_least(name, getattr(self, name), minimum)
        if self.gae_lambda != _DEFAULT_GAE_LAMBDA and self.credit != "turn":
            raise ConfigError('`gae_lambda` needs `credit="turn"`.')
        if self.eval_every == 0 and self.eval_episodes:
            raise ConfigError("`eval_episodes` has no effect with `eval_every=0`.")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                "`gpu_memory_utilization` must be above 0 and at most 1, got "
                f"{self.gpu_memory_utilization:g}."
            )
        if not 0 <= self.gae_lambda <= 1:
            raise ConfigError(f"`gae_lambda` must be from 0 to 1, got {self.gae_lambda:g}.")
        SamplingParams(self.temperature, self.top_p, self.top_k)
        if self.temperature == 0:
            raise ConfigError(
                "`temperature` must be positive, got 0: all attempts at a task would be the same."
            )
        if (self.max_tokens or 0) > (self.max_episode_tokens or inf):
            raise ConfigError(
                f"`max_tokens` {self.max_tokens} (per reply) exceeds `max_episode_tokens` "
                f"{self.max_episode_tokens} (over all replies). Raise `max_episode_tokens`."
            )
        parse_axes(self.curriculum, option="curriculum")

    def for_device(self) -> GRPOConfig:
        """Replace 0 by the defaults of the device. Imports torch."""
        on_cuda = choose_device(self.device).startswith("cuda")
        chosen: dict[str, Any] = {
            name: getattr(self, name) or values[not on_cuda]
            for name, values in _BY_DEVICE.items()
            if name != "eval_episodes" or self.eval_every != 0
        }
        return replace(self, **chosen)

    @property
    def episodes(self) -> int:
        """Episodes per step, over all processes."""
        return self.groups * self.group_size

    @property
    def tasks_seed(self) -> int:
        """The seed of the tasks; not the seed of a warm start, whose tasks the model knows."""
        return purpose_seed("grpo", self.seed)

    @property
    def held_out_interval(self) -> int:
        """Steps between two evaluations on held-out tasks; 0: none."""
        if self.eval_every is not None:
            return self.eval_every
        interval = round(self.eval_episodes / (_HELD_OUT_FRACTION * self.episodes))
        return max(_MIN_HELD_OUT_INTERVAL, interval)

    @property
    def rollout_config(self) -> RolloutConfig:
        """How episodes are played."""
        return RolloutConfig(
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            max_episode_tokens=self.max_episode_tokens,
            episode_timeout=None,
            system_prompt=self.system_prompt,
            task=dict(self.task),
            base_url=self.base_url,
            token=self.token,
        )

    def as_json(self) -> dict[str, Any]:
        fields = BaseTrainConfig.as_json(self)
        return {name: value for name, value in fields.items() if name not in _NOT_STORED}


_BY_DEVICE = {
    "groups": (64, DEFAULT_GROUPS), "group_size": (8, 4), "max_episode_tokens": (1024, 256),
    "eval_episodes": (256, 64),
}  # fmt: skip
"""Fields that are 0 by default, and what that means on CUDA and on other devices."""
_MINIMUMS = {
    "steps": 1, "groups": 1, "group_size": 2, "max_tokens": 1, "max_episode_tokens": 1,
    "max_turns": 1, "beta": 0, "eval_every": 0, "eval_episodes": 1,
    "max_rollbacks": 0, "target_kl": 0,
}  # fmt: skip
_NOT_STORED = ("base_url", "token", "dataset_config", "gpu_memory_utilization")
"""Where the environment is served, and the share of the GPU, may change when a run is resumed."""
