"""Take the free memory of a GPU again and again, to see how another process copes.

    python benchmarks/memory_pulses.py [--keep-gib 0.02] [--seconds 60] [--hold]

All free memory but `--keep-gib` is taken for 0.4 s and given back for 0.4 s; with `--hold` it is
never given back.
"""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.gpu_check import require_gpu
else:
    # Scripts import modules of their own folder by bare names.
    from gpu_check import require_gpu

PULSE_S = 0.4


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep-gib", type=float, default=0.02)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--hold", action="store_true")
    args = parser.parse_args()
    require_gpu()
    blocks = []
    deadline = time.monotonic() + args.seconds
    while time.monotonic() < deadline:
        free, _ = torch.cuda.mem_get_info()
        size = int(free - args.keep_gib * 2**30)
        if size > 0:
            # The other process may have taken it meanwhile.
            with suppress(torch.OutOfMemoryError):
                blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        time.sleep(PULSE_S)
        if not args.hold:
            blocks.clear()
            torch.cuda.empty_cache()
            time.sleep(PULSE_S)


if __name__ == "__main__":
    main()
