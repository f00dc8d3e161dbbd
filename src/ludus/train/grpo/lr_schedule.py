"""The learning rate schedule of GRPO, in which every step has a positive rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def warmup_linear_schedule(optimizer: Any, warmup_steps: int, steps: int) -> Any:
    """Linear warm-up and linear decay, in which the first and the last step have a positive rate.

    With a rate of 0 the episodes of a step would be played in vain.
    """
    from torch.optim.lr_scheduler import LambdaLR

    def factor(step: int) -> float:
        warmup = (step + 1) / (warmup_steps + 1)
        return min(warmup, max(0, steps - step) / max(1, steps - warmup_steps))

    return LambdaLR(optimizer, factor)


def scale_schedule(scheduler: Any, factor: Callable[[], float]) -> None:
    """Multiply the rates of a schedule by a factor, which may change during the run."""
    from torch.optim.lr_scheduler import LambdaLR

    def scaled(scheduled: Callable[[int], float]) -> Callable[[int], float]:
        return lambda step: scheduled(step) * factor()

    if isinstance(scheduler, LambdaLR):
        scheduler.lr_lambdas = [scaled(each) for each in scheduler.lr_lambdas]


def restore_scheduled_lr(scheduler: Any) -> None:
    """Set the learning rate of the next step by the current schedule.

    A checkpoint restores the rate of the schedule under which it was made. For a run that is
    extended that is 0, from the end of the shorter schedule.
    """
    from torch.optim.lr_scheduler import LambdaLR

    if not isinstance(scheduler, LambdaLR):
        return
    rates = [
        base * factor(scheduler.last_epoch)
        for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    for group, rate in zip(scheduler.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates
