"""The config of GRPO training. For the fields of TRL's config see `trl_grpo_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ludus.environment.task_axes import parse_axes
from ludus.errors import ConfigError
from ludus.policy.engine.sampling import SamplingParams
from ludus.rollout.config import RolloutConfig
from ludus.rollout.loop import SYSTEM_PROMPT, EpisodeLimits
from ludus.rollout.plan import purpose_seed
from ludus.train.config import DEFAULT_GROUPS, BaseTrainConfig, check_at_least

ZeroVarianceMode = Literal["skip", "resample", "keep"]
CreditMode = Literal["episode", "turn"]
RolloutBackend = Literal["fast", "trl"]
VllmMode = Literal["colocate", "server"]
KeepModel = Literal["best", "last"]
_HELD_OUT_FRACTION = 0.1
"""Held-out episodes by default, at most, as a fraction of those that are trained on."""
_MIN_HELD_OUT_INTERVAL = 5


@dataclass(frozen=True, slots=True)
class GRPOConfig(BaseTrainConfig):
    """How a model is trained by GRPO.

    `batch_size` is the most episodes in a forward pass; by default as many as fit into the GPU's
    memory (8 on a CPU). `beta` defaults to 0: no reference model.
    """

    steps: int = 150
    """Number of training steps."""
    groups: int = DEFAULT_GROUPS
    """Tasks per step, over all processes."""
    group_size: int = 4
    """Attempts at each task, whose rewards are compared."""
    max_episode_tokens: int = 256
    """Maximum number of tokens sampled per episode, over all of its replies. TRL's own loop counts
    the environment's tokens too."""
    max_tokens: int | None = None
    """Maximum number of tokens sampled per reply; None: what is left of `max_episode_tokens`."""
    max_turns: int | None = None
    """Maximum number of replies per episode; by default 20, or as many as the rules of the
    environment give, if those are more. TRL's own loop knows no rules."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    zero_variance_groups: ZeroVarianceMode = "skip"
    """What to do with groups whose attempts all got the same reward, which have no learning signal:
    leave them out of the step, replace them by other tasks, or keep them as TRL does."""
    max_resamples: int = 2
    """How often such a group is replaced at most, with `zero_variance_groups="resample"`."""
    target_kl: float = 0.05
    """Target KL divergence of a step, per episode in nats, to which the learning rate is adapted.
    0: the rate is only scheduled."""
    importance_correction: bool = True
    """Weigh each token by its probability in the trainer over that in the decoder, clipped: both
    round differently. TRL does it for vLLM only."""
    credit: CreditMode = "episode"
    """The advantage of a reply: that of its episode, or its own, from the rewards
    and the environment's `progress()` from this turn on."""
    gae_lambda: float = 0.9
    """Lambda of generalized advantage estimation, with `credit="turn"`: 0 credits progress only to
    the turn that made it; with 1 it is only a baseline. Without effect without progress."""
    rollouts: RolloutBackend = "fast"
    """The rollout loop: that of Ludus (fast), or of TRL."""
    vllm_mode: VllmMode | None = None
    """Decode with TRL's vLLM, in this process or on a server."""
    reward_funcs: tuple[str, ...] = ()
    """Reward functions besides the environment's own: `module:function`, or with a weight
    `module:function=0.5`. `environment=0.5` sets the weight of the environment's own."""
    eval_every: int | None = None
    """Steps between two evaluations on held-out tasks; None: a tenth of all episodes are such; 0:
    none are played, so that there is no best model to keep or to go back to."""
    eval_episodes: int = 64
    keep: KeepModel = "best"
    """Which model the run ends with: the one with the best held-out reward, or the last one."""
    max_rollbacks: int = 2
    """How often a run that gets worse goes back to its best model, at half the learning rate; after
    that it is stopped."""
    early_stop: bool = False
    """End when nothing is left to learn."""
    allow_unseeded: bool = False
    """Train also on environments that ignore their seed, with a warning."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `reset` for every episode."""
    curriculum: tuple[str, ...] = ()
    """Arguments of `reset`, or `variant`, that are drawn where 20 to 80 % of attempts succeed:
    `max_terms=2..5`, or a list `size=4,9`. Of several, all combinations are buckets."""
    system_prompt: str | None = SYSTEM_PROMPT
    base_url: str | None = None
    """Address of a server of the environment; by default it runs in this process. Not stored."""
    token: str | None = field(default=None, repr=False)
    """Bearer token for that server. Not stored."""

    def __post_init__(self) -> None:
        BaseTrainConfig.__post_init__(self)
        for name, minimum in _MINIMUMS.items():
            check_at_least(name, getattr(self, name), minimum)
        if not 0 <= self.gae_lambda <= 1:
            raise ConfigError(f"`gae_lambda` must be from 0 to 1, got {self.gae_lambda:g}.")
        SamplingParams(self.temperature, self.top_p, self.top_k)
        if self.temperature == 0:
            raise ConfigError(
                "`temperature` must be positive, got 0: all attempts at a task would be the same."
            )
        if self.rollouts == "trl" and self.zero_variance_groups == "resample":
            raise ConfigError("`zero_variance_groups` resample is not supported by `rollouts` trl.")
        if self.rollouts == "trl" and self.credit == "turn":
            raise ConfigError(
                "`credit` turn is not supported by `rollouts` trl, which does not say which reply "
                "earned a reward. Use `rollouts` fast."
            )
        if self.max_tokens is not None and self.max_tokens > self.max_episode_tokens:
            raise ConfigError(
                f"`max_tokens` {self.max_tokens} (per reply) exceeds `max_episode_tokens` "
                f"{self.max_episode_tokens} (over all replies). Raise `max_episode_tokens`."
            )
        if self.rollouts == "trl" and self.max_tokens is not None:
            raise ConfigError(
                "`max_tokens` is not supported by `rollouts` trl, which has only a budget per "
                "episode. Use `max_episode_tokens`."
            )
        if parse_axes(self.curriculum, option="curriculum") and self.rollouts == "trl":
            raise ConfigError("`curriculum` is not supported by `rollouts` trl.")
        if "seed" in self.task:
            raise ConfigError("The seed of each episode comes from `seed`; remove it from `task`.")

    @property
    def episodes(self) -> int:
        """Episodes per step, over all processes."""
        return self.groups * self.group_size

    @property
    def tasks_seed(self) -> int:
        """The seed of the tasks: others than those of a warm start, which the model knows."""
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
            system_prompt=self.system_prompt,
            task=dict(self.task),
            base_url=self.base_url,
            token=self.token,
        )

    @property
    def limits(self) -> EpisodeLimits:
        return self.rollout_config.limits

    def as_json(self) -> dict[str, Any]:
        fields = BaseTrainConfig.as_json(self)
        # Absent at their defaults, as in records of versions without them.
        unset = {name for name in _NEWER_FIELDS if getattr(self, name) == getattr(_DEFAULTS, name)}
        unused = {*_NOT_STORED, *unset, *(_TURN_CREDIT if self.credit == "episode" else ())}
        return {name: value for name, value in fields.items() if name not in unused}


_MINIMUMS = {
    "steps": 1, "groups": 1, "group_size": 2, "max_tokens": 1, "max_episode_tokens": 1,
    "max_turns": 1, "beta": 0, "max_resamples": 1, "eval_every": 0, "eval_episodes": 1,
    "max_rollbacks": 0, "target_kl": 0,
}  # fmt: skip
_NOT_STORED = ("base_url", "token")
"""Where the environment is served may change when a run is resumed."""
_TURN_CREDIT = ("credit", "gae_lambda")
_NEWER_FIELDS = ("curriculum", "importance_correction", "keep", "max_rollbacks", "target_kl")
_DEFAULTS = GRPOConfig()
