"""A training step's reading of its rows: each by itself, and a prompt once for its whole group.

    python benchmarks/grpo_reading.py [--prompt 163] [--reply 32] [--groups 1] [--group-size 8]

A random model of SmolLM2-135M's shape reads the same rows both ways, forward and backward, in
float32 on a CPU and in bf16 on a GPU; the best of three is shown. `--layers` makes it shorter.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any


def main() -> None:
    import torch

    given = _arguments()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = _model(given.layers).to(device)
    ids, mask = (each.to(device) for each in _rows(given))
    ways = {
        "rows": _by_row(model, ids, mask, given.reply),
        "trees": _by_tree(model, ids, mask, given.reply),
    }
    print(f"{device}, {torch.get_num_threads()} threads, {given.layers} layers")
    print(f"\n{'':8}{'tokens':>8}{'seconds':>10}")
    for name, (tokens, read) in ways.items():
        print(f"{name:8}{tokens:8,}{_seconds(model, read, device):10.3f}", flush=True)


def _arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--prompt", type=int, default=163)
    asked.add_argument("--reply", type=int, default=32)
    asked.add_argument("--groups", type=int, default=1)
    asked.add_argument("--group-size", type=int, default=8)
    asked.add_argument("--layers", type=int, default=30)
    return asked.parse_args()


def _model(layers: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def _rows(given: argparse.Namespace) -> tuple[Any, Any]:
    """Replies of slightly different lengths."""
    import torch

    prompts = torch.randint(3, 49152, (given.groups, given.prompt))
    count = given.groups * given.group_size
    replies = torch.randint(3, 49152, (count, given.reply))
    ids = torch.cat([prompts.repeat_interleave(given.group_size, 0), replies], 1)
    mask = torch.ones_like(ids)
    for row in range(count):
        mask[row, ids.shape[1] - row % 4 :] = 0
    return ids, mask


def _by_row(model: Any, ids: Any, mask: Any, reply: int) -> tuple[int, Callable[[], Any]]:
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-reply] = -100

    def read() -> Any:
        said = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
        return said.log_probs

    return ids.numel(), read


def _by_tree(model: Any, ids: Any, mask: Any, reply: int) -> tuple[int, Callable[[], Any]]:
    from ludus.train.grpo.prefix_sharing import score_trees
    from ludus.train.grpo.prefix_tree import build_trees

    trees = build_trees(ids, mask, reply, width=model.config.hidden_size)
    if trees is None:
        raise SystemExit("Trees would be no less work here, and are not made.")

    def read() -> Any:
        return score_trees(model, trees)[0]

    return trees.input_ids.numel(), read


def _seconds(model: Any, read: Callable[[], Any], device: str) -> float:
    import torch

    from ludus.train.speed.acceleration import skip_unlabelled_logits

    best = float("inf")
    for _ in range(3):
        model.zero_grad()
        began = time.perf_counter()
        with (
            torch.autocast(device, torch.bfloat16, enabled=device == "cuda"),
            skip_unlabelled_logits(),
        ):
            logps = read()
        logps.sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    main()
