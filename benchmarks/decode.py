"""Decoding on one GPU: transformers' `generate` beside the fast engine, and the memory's floor.

    python benchmarks/decode.py [--prompt 330] [--tokens 128] [--rows 64 256] [--kernels]
                                [--live] [--model NAME]

The model is random and of SmolLM2-135M's shape, in bfloat16, if none is named; nothing is
downloaded then. Of a random model's tokens many are as likely as each other, so greedy replies
part where two of them lie closer than bfloat16 can tell; how close is shown. A step's time
is what further tokens cost, so that neither the reading of prompts nor the capturing of graphs is
in it. The floor is one read of all weights and keys at the speed that the memory of an H200 was
seen to give. `--kernels` shows where the time of a step goes, and
`--live` what becomes of it while episodes are played.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.decode_live import GROUP, live
    from benchmarks.with_gpu import need_gpu
else:
    from decode_live import GROUP, live
    from with_gpu import need_gpu

BANDWIDTH = 4.2e12
SHORT = 8
"""Tokens of the run that a longer one is compared with."""
CHECKED = 8
"""Rows that are held against transformers."""


def main() -> None:
    import torch

    given = _arguments()
    need_gpu()
    model = _model(given.model)
    model.generation_config.eos_token_id = None  # Every reply is as long as it may be.
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, prompts of {given.prompt}")
    print(f"\n{'':28}{'rows':>6}{'ms/step':>10}{'tokens/s':>12}{'with prompts':>14}{'floor':>8}")
    engine = _engine(model, given.rows)
    for rows in given.rows:
        prompts = _prompts(rows, given.prompt)
        floor = _floor(model, rows, given.prompt + given.tokens // 2)
        _line("generate", rows, _timed(partial(_generate, model, prompts), 40), floor)
        ours = _timed(partial(_ours, engine, prompts), given.tokens)
        _line("fast", rows, ours, floor)
    _group(engine, given)
    _compared(model, engine, given)
    if given.live:
        live(engine, [ids for ids in _prompts(8, given.prompt) for _ in range(GROUP)])
    if given.kernels:
        _kernels(engine, given)
    _compared_exactly(model, given)


def _arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--prompt", type=int, default=330)
    asked.add_argument("--tokens", type=int, default=128)
    asked.add_argument("--rows", type=int, nargs="+", default=[64, 256])
    asked.add_argument("--kernels", action="store_true")
    asked.add_argument("--live", action="store_true")
    asked.add_argument("--model")
    return asked.parse_args()


def _model(name: str | None) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    if name is not None:
        from ludus.policy.load import load_model

        return load_model(name, device="cuda", dtype="bfloat16")
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=0.05,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    # Not cast afterwards: that would round the frequencies of its positions too.
    return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda").eval()


def _prompts(rows: int, length: int) -> list[tuple[int, ...]]:
    import torch

    made = torch.Generator().manual_seed(rows)
    ids: list[list[int]] = torch.randint(3, 49152, (rows, length), generator=made).tolist()
    return [tuple(each) for each in ids]


def _engine(model: Any, rows: Sequence[int], **more: Any) -> Any:
    from ludus.policy.triton_engine.triton_engine import TritonEngine, build_triton_engine

    began = time.perf_counter()
    engine = build_triton_engine(model, max_batch=512, expected=max(rows), **more)
    if not isinstance(engine, TritonEngine):
        raise SystemExit(f"no fast engine: {engine}")
    # Of several turns, as `--live` plays them.
    engine.reserve_capacity(rows=max(rows), length=1024)
    print(f"{'engine made and tried in':28}{time.perf_counter() - began:22.1f} s")
    return engine


def _generate(model: Any, prompts: Sequence[tuple[int, ...]], tokens: int) -> Any:
    import torch

    given = torch.tensor(prompts, device="cuda")
    seen = torch.ones_like(given)
    return model.generate(given, attention_mask=seen, max_new_tokens=tokens, do_sample=True)


def _ours(
    engine: Any, prompts: Sequence[tuple[int, ...]], tokens: int, *, temperature: float = 1.0
) -> list[Any]:
    from ludus.policy.engine.engine_api import Completion, Request
    from ludus.policy.engine.sampling import SamplingParams

    engine.refresh()  # What was read before would not have to be read again.
    told: dict[int, Completion] = {}
    how = SamplingParams(temperature)
    asked = [Request(ids, tokens, (), how, seed) for seed, ids in enumerate(prompts)]
    engine.run(asked, told.__setitem__)
    return [told[at] for at in range(len(prompts))]


def _timed(run: Callable[[int], Any], tokens: int) -> tuple[float, float, int]:
    """Seconds of a step, of everything, and how many tokens that was per row."""
    run(SHORT), run(tokens)
    short, long = _seconds(lambda: run(SHORT)), _seconds(lambda: run(tokens))
    return (long - short) / (tokens - SHORT), long, tokens


def _seconds(run: Callable[[], Any]) -> float:
    import torch

    best = float("inf")
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best


def _line(name: str, rows: int, taken: tuple[float, float, int], floor: float) -> None:
    step, whole, tokens = taken
    print(
        f"{name:28}{rows:6}{1000 * step:10.3f}{rows / step:12,.0f}{rows * tokens / whole:14,.0f}"
        f"{1000 * floor:8.3f}",
        flush=True,
    )


def _floor(model: Any, rows: int, length: int) -> float:
    """Seconds in which the weights and the keys of all rows can be read once."""
    config = model.config
    weights = sum(each.numel() for each in model.parameters()) * 2
    heads = config.num_key_value_heads * config.head_dim
    kept = rows * length * config.num_hidden_layers * heads * 2 * 2
    return float((weights + kept) / BANDWIDTH)


def _group(engine: Any, given: argparse.Namespace) -> None:
    prompts = [ids for ids in _prompts(8, given.prompt) for _ in range(GROUP)]
    _ours(engine, prompts, given.tokens)
    taken = _seconds(lambda: _ours(engine, prompts, given.tokens))
    print(f"8 groups of 8, {given.tokens} tokens, new weights taken over: {taken:.3f} s")


def _compared(model: Any, engine: Any, given: argparse.Namespace) -> None:
    """Greedy replies beside `generate`'s, and log-probabilities beside full forwards."""
    prompts = _prompts(CHECKED, given.prompt)
    greedy = _ours(engine, prompts, 32, temperature=0.0)
    _say_equal("bfloat16", model, prompts, greedy)
    closest, _, _ = _against_forwards(model, prompts, greedy)
    _, off, own = _against_forwards(model, prompts, _ours(engine, prompts, 64))
    print(f"greedy tokens that a full forward finds likeliest too: {closest:.1%}")
    print(f"largest |logprob - float32 forward|: fast {off:.4f}, a bfloat16 forward {own:.4f}")


def _compared_exactly(model: Any, given: argparse.Namespace) -> None:
    """The same in single precision, in which hardly two tokens are as likely as each other."""
    import torch

    prompts = _prompts(CHECKED, given.prompt)
    engine = _engine(model.float(), [CHECKED], dtype=torch.float32)
    _say_equal("float32", model, prompts, _ours(engine, prompts, 32, temperature=0.0))


def _say_equal(
    kind: str, model: Any, prompts: Sequence[tuple[int, ...]], greedy: Sequence[Any]
) -> None:
    import torch

    ids = torch.tensor(prompts, device="cuda")
    seen = torch.ones_like(ids)
    theirs = model.generate(ids, attention_mask=seen, max_new_tokens=32, do_sample=False)
    theirs = theirs[:, ids.shape[1] :].tolist()
    gaps = [
        gap
        for ids, row, said in zip(prompts, theirs, greedy, strict=True)
        if (gap := _gap(model, ids, row, said.ids)) is not None
    ]
    print(
        f"greedy replies equal to generate's in {kind}: {CHECKED - len(gaps)} of {CHECKED}", end=""
    )
    print(f"; where they part, logits are at most {max(gaps):.4f} apart" if gaps else "")


def _gap(
    model: Any, ids: Sequence[int], theirs: Sequence[int], ours: Sequence[int]
) -> float | None:
    """How far apart in single precision the first two tokens lie that are not the same."""
    import torch

    place = next((at for at, (a, b) in enumerate(zip(theirs, ours, strict=True)) if a != b), None)
    if place is None:
        return None
    with torch.inference_mode():
        given = torch.tensor([[*ids, *ours[:place]]], device="cuda")
        logits = deepcopy(model).float()(given).logits[0, -1]
    return float((logits[theirs[place]] - logits[ours[place]]).abs())


def _against_forwards(
    model: Any, prompts: Sequence[tuple[int, ...]], said: Sequence[Any]
) -> tuple[float, float, float]:
    """Likeliest tokens; how far we lie off single precision; how far the model itself does."""
    import torch

    whole = torch.tensor(
        [[*ids, *each.ids] for ids, each in zip(prompts, said, strict=True)], device="cuda"
    )
    start, chosen = len(prompts[0]), whole[:, len(prompts[0]) :].unsqueeze(2)
    with torch.inference_mode():
        half = model(whole).logits[:, start - 1 : -1].float()
        full = deepcopy(model).float()(whole).logits[:, start - 1 : -1]
    likeliest = (half.argmax(-1) == chosen.squeeze(2)).float().mean().item()
    half, full = (each.log_softmax(-1).gather(2, chosen).squeeze(2) for each in (half, full))
    ours = torch.tensor([each.logprobs for each in said], device="cuda")
    return likeliest, (ours - full).abs().max().item(), (half - full).abs().max().item()


def _kernels(engine: Any, given: argparse.Namespace) -> None:
    from torch.profiler import ProfilerActivity, profile

    prompts = _prompts(64, given.prompt)
    _ours(engine, prompts, 32)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        _ours(engine, prompts, 32)
    print(
        seen.key_averages().table(sort_by="cuda_time_total", row_limit=16, max_name_column_width=40)
    )


if __name__ == "__main__":
    main()
