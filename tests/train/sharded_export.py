"""A program whose processes shard a model, gather its weights, and rebuild it.

torchrun sharded_export.py BASE
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from ludus.policy.model_ref import resolve_model
from ludus.train import Lora
from ludus.train.output.finalize import rebuild_model
from train.output.test_export import modified_model
from train.short_runs import train_config


def gather(model: Any, lora: Lora | None) -> Any:
    """Shard and gather as accelerate does under FSDP."""
    for layer in (model.get_base_model() if lora else model).model.layers:
        fully_shard(layer)
    fully_shard(model)
    whole = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, cpu_offload=True)
    return get_model_state_dict(model, options=whole)


def is_restored(base: str, lora: Lora | None) -> bool:
    torch.manual_seed(0)
    model, ids = modified_model(base, lora), torch.arange(8)[None]
    with torch.no_grad():
        before = model(ids).logits
        state = gather(model, lora)
        if distributed.get_rank():
            return True
        rebuilt = rebuild_model(state, train_config(lora=lora), resolve_model(base))
        return bool(torch.equal(rebuilt(ids).logits, before))


if __name__ == "__main__":
    distributed.init_process_group("gloo")
    restored = [is_restored(sys.argv[1], lora) for lora in (None, Lora(rank=2))]
    distributed.destroy_process_group()
    sys.exit(0 if all(restored) else 1)
