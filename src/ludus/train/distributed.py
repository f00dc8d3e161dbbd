"""The processes that train together: one under `python`, several under `accelerate launch`.

The first of them writes and speaks; the others compute. Several on CPUs are started by `accelerate
launch --multi_gpu` too, with `--device cpu`: its `--cpu` starts one, unless there is MPI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from ludus.errors import RunError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Distributed:
    """This process among all."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def current(cls) -> Distributed:
        """As the launcher has set it up; a trainer's config must have been made before."""
        from accelerate import PartialState

        state: Any = PartialState()
        return cls(state.process_index, state.num_processes)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """What one cannot do, none goes on from: otherwise the others would wait for it forever."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        (failed,) = self.all_reduce_max([int(failure is not None)])
        words = self.all_gather([str(failure) if failure else None]) if failed else []
        if failure is not None:
            raise failure
        if failed:
            # Only the first process speaks, so it must know what befell another one.
            raise RunError(next(each for each in words if each is not None))

    def barrier(self) -> None:
        """Until all are here."""
        if self.world_size > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()

    def all_gather(self, items: Sequence[Item]) -> list[Item]:
        """What all processes have, in the order of their ranks."""
        if self.world_size == 1:
            return list(items)
        from accelerate.utils import gather_object

        return list(gather_object(list(items)))

    def all_reduce_max(self, values: Sequence[int]) -> list[int]:
        """Of each value, the highest that any process has: what one wants, all do."""
        if self.world_size == 1:
            return list(values)
        import torch
        from accelerate import PartialState
        from accelerate.utils import gather

        mine = torch.tensor([list(values)], device=PartialState().device)
        found: list[int] = gather(mine).amax(0).tolist()
        return found
