"""The class that authors of typed environments write.

What is served, over which wire and in which thread is not this module's business.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from ludus.data.content import Content
from ludus.data.tool_schema import ToolCall
from ludus.protocol.types import Action, Observation, State

ActT = TypeVar("ActT", bound=Action)
ObsT = TypeVar("ObsT", bound=Observation)
StateT = TypeVar("StateT", bound=State)

TRAIN_TASKS = 1_000_000
TEST_TASKS = 10_000


class Environment(ABC, Generic[ActT, ObsT, StateT]):
    """A world with a task in it: `reset` starts an episode, `step` acts in it.

    The same seed gives the same episode, everywhere. Name the three types in the base class:
    `class Maze(Environment[Move, View, State])`.
    """

    blocking: ClassVar[bool] = False
    """True where a step may take longer than a millisecond: it is then run off the event loop."""
    concurrent: ClassVar[bool] = True
    """False where a second instance in the same process would disturb the first."""
    needs_reset: ClassVar[bool] = True
    """False where the constructor begins an episode, so that a step may come before a reset."""
    max_reward: ClassVar[float | None] = 1.0
    """The best return that an episode can have; None where there is no such number."""

    @classmethod
    def variants(cls) -> Sequence[str]:
        """What may follow the colon in `name:variant`; the class then takes `variant=`."""
        return ()

    @classmethod
    def variant_task(cls, variant: str) -> dict[str, Any]:
        """The arguments of `reset` that ask for a variant, where one server has them all."""
        return {}

    @abstractmethod
    def reset(self, *args: Any, **task: Any) -> ObsT | Content | Awaitable[ObsT | Content]:
        """Start an episode. The keyword arguments of your override are the task's."""

    @abstractmethod
    def step(self, action: ActT) -> ObsT | Awaitable[ObsT]:
        """Do one action."""

    @property
    def state(self) -> StateT | State:
        """What the environment tells about itself; episode id and step count are filled in."""
        return State()

    def oracle(self) -> ActT | ToolCall | None:
        """The next action of a perfect player, or None when there is nothing left to do."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what the environment holds."""

    def list_splits(self) -> Sequence[str]:
        """The named sets of tasks. Seeds make two that never meet."""
        return ("train", "test")

    def num_tasks(self, split: str) -> int:
        return {"train": TRAIN_TASKS, "test": TEST_TASKS}[split]

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """The arguments of `reset` for one task of a split."""
        count = self.num_tasks(split)
        if not 0 <= index < count:
            raise IndexError(f"Split {split!r} has tasks 0 to {count - 1}, and not {index}.")
        return {"seed": index if split == "train" else TRAIN_TASKS + index}
