"""The config of the rounds of a tutor."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from ludus.agents.agent import Agent
from ludus.agents.oracle import OracleAgent
from ludus.data.config import check_at_least
from ludus.data.tool_schema import JsonObject
from ludus.errors import ConfigError
from ludus.options import Option
from ludus.rollout.config import CollectConfig, EpisodeConfig
from ludus.rollout.plan import purpose_seed
from ludus.train.config import TrainConfig
from ludus.train.resume import NON_DECISIVE

KeepModel = Literal["best", "last"]


@dataclass(frozen=True, kw_only=True)
class TutorConfig(EpisodeConfig):
    """How a model is taught by a tutor. The same config gives the same rounds."""

    rounds: Annotated[int, Option("Basics")] = 3
    """Number of rounds."""
    episodes: Annotated[int, Option("Tasks")] = 500
    """Episodes per round, of the tutor and of the student together."""
    tutor: Agent | None = None
    """Who says what to reply; by default the environment's own solution."""
    tutor_share: Annotated[float, Option("Agent", advanced=True)] = 1.0
    """Share of the first round's episodes that the tutor plays itself: all of them if the model
    cannot play yet, 0 if it can."""
    tutor_decay: Annotated[float, Option("Agent", hidden=True)] = 0.5
    """Factor of that share from one round to the next."""
    explore: Annotated[float, Option("Agent", hidden=True)] = 0.1
    """Probability that a turn of the tutor's own episodes is random. The student makes mistakes
    without help."""
    working: Annotated[bool, Option("Agent", hidden=True)] = False
    """Let the oracle write its working as text, if the environment has it."""
    temperature: Annotated[float, Option("Sampling", hidden=True)] = 1.0
    """Sampling temperature of the student in its lessons; held-out tasks are played greedily."""
    max_tokens: Annotated[int, Option("Limits")] = 512
    """Maximum number of tokens sampled per reply, reasoning included."""
    eval_episodes: Annotated[int, Option("Output", hidden=True)] = 64
    """Held-out tasks that are played after each round."""
    solved_at: Annotated[float, Option("Output", hidden=True)] = 1.0
    """Reward from which on a task counts as solved."""
    keep: Annotated[KeepModel, Option("Output", hidden=True)] = "best"
    """Which model is kept: the one with the best held-out reward, or the last."""
    seed: Annotated[int, Option("Tasks", advanced=True)] = 0
    """Selects the tasks of all rounds."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """How each round is trained, from the same model on the rows of all rounds so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("rounds", "episodes", "eval_episodes"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("seed", self.seed, 0)
        for name in ("tutor_share", "tutor_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"`{name}` must be from 0 to 1, got {getattr(self, name)}.")
        if self.train.beta is not None:
            raise ConfigError("`beta` is for DPO only.")
        # Refuses the other fields before the first episode, with their own messages.
        self.play_config("check", 1)

    @property
    def teacher(self) -> Agent:
        return self.tutor or OracleAgent()

    def tutor_episodes(self, number: int) -> int:
        """How many episodes of a round, counted from 1, the tutor plays itself."""
        return round(self.tutor_share * self.tutor_decay ** (number - 1) * self.episodes)

    def play_config(self, tasks: str, num_episodes: int) -> CollectConfig:
        """How episodes are played; `tasks` names a selection of tasks that no other name shares."""
        return CollectConfig(
            num_episodes=num_episodes,
            seed=purpose_seed(tasks, self.seed),
            agent=self.teacher,
            explore=self.explore,
            working=self.working,
            task=dict(self.task),
            system_prompt=self.system_prompt,
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            base_url=self.base_url,
            token=self.token,
        )

    def student_config(self, number: int, student: Agent) -> CollectConfig:
        """How the student plays in a round, and is corrected."""
        count = self.episodes - self.tutor_episodes(number)
        played = self.play_config(f"student/{number}", count)
        return replace(played, agent=student, tutor=self.teacher, explore=0.0)

    def held_out_config(self, student: Agent) -> CollectConfig:
        """How held-out tasks are played: the same ones after every round."""
        played = self.play_config("held-out", self.eval_episodes)
        return replace(played, agent=student, explore=0.0, working=False, split="validation")

    def as_json(self) -> JsonObject:
        """The settings that must be the same to continue. More `rounds` may follow."""
        own = {
            name: getattr(self, name)
            for name in (
                *("episodes", "tutor_share", "tutor_decay", "explore", "working", "temperature"),
                *("task", "system_prompt", "max_turns", "max_tokens", "eval_episodes", "solved_at"),
                *("keep", "seed"),
            )
        }
        train = self.train.as_json().items()
        return {
            **own,
            "tutor": self.teacher.describe(),
            "train": {name: value for name, value in train if name not in NON_DECISIVE},
        }
