"""A program that runs `ludus` with FSDP2 on CPUs, where accelerate would silently use DDP.

accelerate launch --use_fsdp --fsdp_version 2 -m train.fsdp_on_cpus ARGUMENTS
"""

from __future__ import annotations

from typing import Any

from accelerate.state import AcceleratorState, DistributedType, PartialState

from ludus.cli.main import main

original: Any = AcceleratorState.__init__


def initialize(state: Any, *args: Any, **options: Any) -> None:
    """Accelerate reads the launcher's FSDP variables only for processes that have GPUs."""
    processes: Any = PartialState(cpu=True)
    if processes.distributed_type is DistributedType.MULTI_CPU:
        processes.distributed_type = DistributedType.MULTI_GPU
    original(state, *args, **options)


if __name__ == "__main__":
    AcceleratorState.__init__ = initialize
    main()
