"""Distributed training: rank, world size, and collective operations.

One process runs under `python`, several under `accelerate launch`. Rank 0 writes files and shows
progress. On CPUs, too, several are started by `accelerate launch --multi_gpu` (with `device` cpu):
its `--cpu` starts only one, unless there is MPI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ludus.errors import RunError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.fsdp import FSDPModule

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Distributed:
    """The rank of this process and the number of processes."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def current(cls) -> Distributed:
        """As the launcher has set it up; TRL's config, which initializes it, must be built."""
        from accelerate import PartialState

        state = PartialState()
        return cls(state.process_index, state.num_processes)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @contextmanager
    def raise_on_all_ranks(self) -> Iterator[None]:
        """If one rank raises, raise on all ranks, so that none deadlocks in the next collective."""
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        (failed,) = self.all_reduce_max([int(failure is not None)])
        messages = self.all_gather([str(failure) if failure else None]) if failed else []
        if failure is not None:
            raise failure
        if failed:
            # Only rank 0 shows errors, so it must know the message of another rank.
            raise RunError(next(each for each in messages if each is not None))

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            from accelerate import PartialState

            PartialState().wait_for_everyone()

    def all_gather(self, items: Sequence[Item]) -> list[Item]:
        """The items of all ranks, in the order of ranks."""
        if self.world_size == 1:
            return list(items)
        from accelerate.utils import gather_object

        return list(gather_object(list(items)))

    def all_reduce_max(self, values: Sequence[int]) -> list[int]:
        """For each value, the maximum over all ranks."""
        if self.world_size == 1:
            return list(values)
        import torch
        from accelerate import PartialState
        from accelerate.utils import gather

        local = torch.tensor([list(values)], device=PartialState().device)
        maxima: list[int] = gather(local).amax(0).tolist()
        return maxima

    def average_gradients(self, model: nn.Module) -> None:
        """Replace the gradients of all ranks by their mean."""
        if self.world_size == 1:
            return
        import torch
        import torch.distributed

        if sharded_modules(model):
            return  # FSDP averages them in the backward pass.
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        (has_gradient,) = self.all_reduce_max([int(any(each.grad is not None for each in weights))])
        if not has_gradient:
            return  # With a gradient of 0, momentum would move the weights.
        for weight in weights:
            # A rank without images does not use the weights of the vision tower.
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            torch.distributed.all_reduce(weight.grad)
            weight.grad /= self.world_size


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """The modules whose weights FSDP2 divides among processes."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Give every rank all weights to read, if FSDP2 divides them; all ranks must enter it.

    Forward passes inside it are not collective. On exit every rank frees the gathered weights: by
    default FSDP keeps some for the backward pass, and an update in between would not reach them.
    """
    modules = sharded_modules(model)
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()


def set_weight(weight: Tensor, value: Tensor) -> None:
    """Overwrite a weight, or this rank's shard of it; `value` is the whole weight."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(weight, DTensor):
        mesh, placements = weight.device_mesh, weight.placements
        value = distribute_tensor(value.to(weight.device), mesh, placements, src_data_rank=None)
    weight.copy_(value)
