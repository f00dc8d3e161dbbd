"""`Environment`, the base class of typed environments."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from ludus.data.messages import Content
from ludus.data.tool_schema import JsonObject, ToolCall, ToolSpec
from ludus.protocol.types import Action, Observation, State

ActT = TypeVar("ActT", bound=Action)
ObsT = TypeVar("ObsT", bound=Observation)
StateT = TypeVar("StateT", bound=State)

TRAIN_TASKS = 1_000_000
TEST_TASKS = 10_000


class Environment(ABC, Generic[ActT, ObsT, StateT]):
    """An environment: `reset` starts an episode, `step` takes an action in it.

    The same seed must give the same episode on every machine. Name the three types in the base
    class: `class Maze(Environment[Move, View, State])`.
    """

    blocking: ClassVar[bool] = False
    """True if a step may take longer than a millisecond: it then runs in a thread."""
    concurrent: ClassVar[bool] = True
    """False if several instances in one process would interfere."""
    needs_reset: ClassVar[bool] = True
    """False if the constructor starts an episode, so that a step may come before a reset."""
    max_sessions: ClassVar[int | None] = None
    """How many sessions one machine should run at once, if each needs much of it; else None."""
    any_variant: ClassVar[bool] = False
    """True if any text may follow the colon of `name:variant`, such as a command."""
    max_turns: int | None = None
    """How many turns the rules give an episode; set it in the class or in `reset`. If there are
    more than 20, they are the default of `--max-turns`. Only players read it: a
    limit of the rules must still be enforced by a tool."""
    max_reward: ClassVar[float | None] = 1.0
    """The highest return of an episode; None if it is unbounded or unknown."""
    rewards_any_action: ClassVar[bool] = False
    """True if any action is rewarded by design: `ludus check` then does not object to it."""

    @classmethod
    def variants(cls) -> Sequence[str]:
        """The variants in `name:variant`; the constructor then takes `variant=`."""
        return ()

    @classmethod
    def variant_task(cls, variant: str) -> JsonObject:
        """The arguments of `reset` that select a variant, if one server has all of them."""
        return {}

    @classmethod
    def argument_fields(cls, variant: str | None) -> Mapping[str, Sequence[str]]:
        """The fields of those arguments of `reset` that are objects, by argument, if known."""
        return {}

    @classmethod
    def oracle_variants(cls) -> Sequence[str] | None:
        """The variants that `oracle` plays, if it does not play all of them."""
        return None

    @abstractmethod
    def reset(self, *args: Any, **task: Any) -> ObsT | Content | Awaitable[ObsT | Content]:
        """Start an episode. The keyword arguments of the override are the task arguments."""

    @abstractmethod
    def step(self, action: ActT) -> ObsT | Awaitable[ObsT]:
        """Take one action."""

    @property
    def state(self) -> StateT | State:
        """The state of the environment; its episode id and step count are filled in."""
        return State()

    def oracle(self) -> ActT | ToolCall | None:
        """The next action of a perfect solution, or None when there is nothing left to do.

        Optional: the environments that override it can be played by the oracle agent, and can teach
        a model. It answers in every state, also in one that a perfect solution never reaches, and
        leaves the state as it is: the action that follows may be another one. An override may take
        the keyword arguments `rng` (a `random.Random` that chooses among equally good actions) and
        `working` (whether to write the working as the call's `text`); without them it is
        deterministic and writes none.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement oracle().")

    def random_action(self, rng: random.Random) -> ActT | ToolCall | None:
        """A random legal action, with which agents explore.

        Optional: if it is None, a random call is made that is valid for the tools' schemas.
        """
        return None

    def progress(self) -> float | None:
        """How near the episode is to its goal, from 0 to 1; None if it is unknown.

        Optional: a potential, with which GRPO tells good turns from bad ones. Called after a reset
        and after every step. It depends on the state alone, and never changes the reward.
        """
        return None

    def task_key(self) -> str | None:
        """Return what identifies the task after a reset; None if the first observation does.

        Optional: for a task with a hidden part, such as a secret word. Tasks with the same key are
        in the same split, so that what a model was trained on is not what it is evaluated on.
        """
        return None

    def list_tools(self) -> Sequence[ToolSpec] | Awaitable[Sequence[ToolSpec]]:
        """The tools of this instance. Only for environments whose actions are `call_tool`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement list_tools().")

    def close(self) -> Awaitable[None] | None:
        """Release the resources of the environment."""

    def list_splits(self) -> Sequence[str]:
        """The names of the splits. By default there are two, with disjoint ranges of seeds."""
        return ("train", "test")

    def num_tasks(self, split: str) -> int:
        return {"train": TRAIN_TASKS, "test": TEST_TASKS}[split]

    def get_task(self, split: str, index: int) -> JsonObject:
        """The arguments of `reset` for one task of a split."""
        count = self.num_tasks(split)
        if not 0 <= index < count:
            raise IndexError(f"Split {split!r} has tasks 0 to {count - 1}, got {index}.")
        return {"seed": index if split == "train" else TRAIN_TASKS + index}
