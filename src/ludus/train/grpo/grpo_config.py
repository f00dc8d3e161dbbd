"""How a model is trained by GRPO: what a user may say, and what is taken where nothing is said.

Values only. TRL's own fields, which `overrides` reach, are `ludus.train.grpo.trl_grpo_config`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ludus.errors import ConfigError, did_you_mean
from ludus.policy.engine.sampling import SamplingParams
from ludus.rollout import SYSTEM_PROMPT, EpisodeLimits
from ludus.train.config import DEFAULT_GROUPS, BaseTrainConfig, check_at_least

ZeroVarianceMode = Literal["skip", "resample", "keep"]
RolloutBackend = Literal["fast", "trl"]
VllmMode = Literal["colocate", "server"]


@dataclass(frozen=True, slots=True)
class GRPOConfig(BaseTrainConfig):
    """All that decides what comes out.

    `batch_size` is all of a step's episodes that a process has, where nothing is said, and `beta`
    is 0: no model is held beside the one that learns.
    """

    steps: int = 150
    groups: int = DEFAULT_GROUPS
    """Tasks of a step, over all processes."""
    group_size: int = 4
    """Attempts at each task, which are compared with one another."""
    max_episode_tokens: int = 256
    """Tokens that the model may sample in all replies of an episode; each may use what is left.
    TRL's own loop counts the environment's tokens too."""
    max_tokens: int | None = None
    """Tokens that the model may sample in one reply; None: all that are left of the episode's."""
    max_turns: int = 20
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    equal: ZeroVarianceMode = "skip"
    """What is done with groups whose members all got the same reward, which teach nothing: they are
    left out of the step, replaced by other tasks, or kept as TRL keeps them."""
    resamples: int = 2
    """How often such groups are replaced, at the most, with `equal="resample"`."""
    rollouts: RolloutBackend = "fast"
    """Who plays: Ludus, or TRL's own loop."""
    vllm: VllmMode | None = None
    rewards: tuple[str, ...] = ()
    """Reward functions besides the environment's: `module:function`, or with a weight
    `module:function=0.5`."""
    eval_every: int | None = None
    """Steps between two evaluations on held-out tasks."""
    eval_episodes: int = 64
    early_stop: bool = False
    """End when nothing is left to learn."""
    allow_unseeded: bool = False
    """Train also on environments that ignore their seed, with a warning."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of reset for every episode."""
    system_prompt: str | None = SYSTEM_PROMPT

    def __post_init__(self) -> None:
        BaseTrainConfig.__post_init__(self)
        for option, least in _MINIMUMS.items():
            check_at_least(option, getattr(self, option), least)
        _check_choice("--equal", self.equal, get_args(ZeroVarianceMode))
        _check_choice("--rollouts", self.rollouts, get_args(RolloutBackend))
        _check_choice("--vllm", self.vllm, (None, *get_args(VllmMode)))
        SamplingParams(self.temperature, self.top_p, self.top_k)
        if self.temperature == 0:
            raise ConfigError(
                "--temperature 0 gives every member of a group the same reply, and nothing can be "
                "learned from that. Write 1, or a little less."
            )
        if self.rollouts == "trl" and self.equal == "resample":
            raise ConfigError(
                "--equal resample is for --rollouts fast: TRL's loop plays only once."
            )
        if self.max_tokens is not None and self.max_tokens > self.max_episode_tokens:
            raise ConfigError(
                f"--max-tokens {self.max_tokens} for one reply is more than the "
                f"{self.max_episode_tokens} of --max-episode-tokens for all replies of an episode. "
                "Raise --max-episode-tokens."
            )
        if self.rollouts == "trl" and self.max_tokens is not None:
            raise ConfigError(
                "--max-tokens is for --rollouts fast: TRL's loop has one budget for the whole "
                "episode, --max-episode-tokens."
            )
        if "seed" in self.task:
            raise ConfigError("The seed of each episode comes from --seed; leave it out of --task.")

    @property
    def episodes(self) -> int:
        """Of one step, over all processes."""
        return self.groups * self.group_size

    @property
    def limits(self) -> EpisodeLimits:
        return EpisodeLimits(
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            max_episode_tokens=self.max_episode_tokens,
        )


_MINIMUMS = {
    "steps": 1, "groups": 1, "group_size": 2, "max_tokens": 1, "max_episode_tokens": 1,
    "max_turns": 1, "beta": 0, "resamples": 1, "eval_every": 1, "eval_episodes": 1,
}  # fmt: skip


def _check_choice(option: str, value: str | None, known: tuple[str | None, ...]) -> None:
    if value not in known:
        names = [name for name in known if name]
        hint = did_you_mean(str(value), names, f"Write {', '.join(names)}.")
        raise ConfigError(f"{option} {value} is unknown. {hint}")
