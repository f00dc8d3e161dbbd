"""The learning rate of GRPO: its schedule, and a trust region that bounds and controls each step.

Which learning rate is right depends on the model, the length of episodes, the number of groups and
the rewards; one that is too high destroys the policy within few steps. So episodes of a step are
scored again by the updated model. An update that moved the policy too far is halved until it is
within the bound; and the rate of the next steps follows the measured divergence, which grows with
the square of the rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

MIN_CHANGE, MAX_CHANGE = 0.5, 1.25
"""Bounds of the factor's change after a step. A single large step does more harm than some
small ones, so it falls faster than it rises."""
MIN_FACTOR, MAX_FACTOR = 1 / 64, 8.0
UNDO_ABOVE = 3.0
"""A step with more than so many times its target divergence is halved."""
MAX_HALVINGS = 8


@dataclass(slots=True)
class TrustRegion:
    """Finds the factor of the learning rate for which a step has the target divergence."""

    target_kl: float
    """Divergence per episode, in nats, of a step at the peak learning rate."""
    factor: float = 1.0

    def target(self, rate_fraction: float) -> float:
        """The target of a step whose rate is this fraction of the peak, without `factor`.

        The fraction is below 1 in warm-up and decay, and after a rollback, which halves the rate.
        """
        return self.target_kl * rate_fraction**2

    def bound(self, rate_fraction: float) -> float:
        """The largest divergence of a step that is kept as it is."""
        return UNDO_ABOVE * max(self.target(rate_fraction), self.target_kl / 4)

    def update(self, step_kl: float, rate_fraction: float) -> None:
        """Adapt the factor to the divergence of a step."""
        change = sqrt(self.target(rate_fraction) / step_kl) if step_kl > 0 else MAX_CHANGE
        change = min(MAX_CHANGE, max(MIN_CHANGE, change))
        self.factor = min(MAX_FACTOR, max(MIN_FACTOR, self.factor * change))


class WeightSnapshot:
    """A copy of the trained weights, made before an update so that it can be reduced."""

    def __init__(self, model: nn.Module) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = [
            (weight, weight.detach().clone())
            for weight in model.parameters()
            if weight.requires_grad
        ]

    def halve_update(self) -> None:
        """Move the weights half the way back, as if the learning rate had been half as high."""
        import torch

        with torch.no_grad():
            for weight, before in self._pairs:
                weight.lerp_(before, 0.5)


def limit_update(
    before: WeightSnapshot, measure: Callable[[], float], bound: float
) -> tuple[float, float, int]:
    """Halve an update of the weights until its divergence is in bounds.

    Returns the divergence of the update before and after halving, and the number of halvings.
    """
    first = divergence = measure()
    halvings = 0
    while not divergence <= bound and halvings < MAX_HALVINGS:
        before.halve_update()
        halvings += 1
        divergence = measure()
    return first, divergence, halvings


def warmup_schedule(optimizer: Any, warmup_steps: int, decay_to: int | None = None) -> Any:
    """Linear warm-up, then linear decay to a step; the rate of every step is above 0.

    With a rate of 0 the episodes of a step would be played in vain. Without `decay_to` the rate is
    constant after the warm-up.
    """
    from torch.optim.lr_scheduler import LambdaLR

    def factor(step: int) -> float:
        warmup = (step + 1) / (warmup_steps + 1)
        if decay_to is None:
            return min(1.0, warmup)
        return min(warmup, max(0, decay_to - step) / max(1, decay_to - warmup_steps))

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
