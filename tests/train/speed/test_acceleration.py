from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from policy.models import saved

from ludus import sft
from train.lessons import curve, quick, sft_data

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def trained(folder: Path, name: str, **how: Any) -> list[dict[str, Any]]:
    """The log of a few steps, the last of each epoch on a smaller batch."""
    base, data = folder / "base", sft_data(folder / "data", rows=30, test=4)
    base = base if base.is_dir() else saved(base)
    settings = quick(**{"batch_size": 8, "epochs": 3, "learning_rate": 1e-2, **how})
    sft(data, str(base), folder / name, settings)
    return curve(folder / name)


def values(log: list[dict[str, Any]], name: str) -> list[float]:
    return [line[name] for line in log if name in line]


def test_only_what_bears_loss_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.trainer import utils

    scored = []
    whole = utils._ChunkedLogProbFunction.apply

    def watched(hidden: Any, *rest: Any) -> Any:
        scored.append(len(hidden))
        return whole(hidden, *rest)

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", SimpleNamespace(apply=watched))
    base, data = saved(tmp_path / "base"), sft_data(tmp_path / "data", rows=4)
    sft(data, str(base), tmp_path / "out", quick(batch_size=4))
    (line,) = [line for line in curve(tmp_path / "out") if "loss" in line]
    assert 0 < scored[0] < line["tokens"] / 3


@needs_gpu
def test_on_a_gpu_it_learns_the_same_in_every_way(tmp_path: Path) -> None:
    on_gpu = {"device": "cuda", "precision": "bf16"}
    plain = trained(tmp_path, "plain", **on_gpu, compile=False)
    graph = trained(tmp_path, "graph", **on_gpu, compile=True)
    rows = trained(tmp_path, "rows", **on_gpu, compile=True, batch_size=4, accumulate=2)
    for made in (graph, rows):
        for name in ("loss", "grad_norm", "eval_loss"):
            assert values(made, name) == pytest.approx(values(plain, name), rel=2e-2)
    assert values(plain, "loss")[-1] < 0.7 * values(plain, "loss")[0]


def row_by_row(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **more: Any
) -> Any:
    """What the kernel computes, written out."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    bounds = more["cu_seq_lens_q"].tolist()
    made = [
        torch.nn.functional.scaled_dot_product_attention(
            *(side[:, :, start:end] for side in (query, key, value)), is_causal=True, scale=scaling
        )
        for start, end in pairwise(bounds)
        if start < end
    ]
    return torch.cat(made, 2).transpose(1, 2).contiguous(), None


def test_strips_of_rows_teach_what_padded_batches_teach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it but the device: the kernel written out, the graph computed anew at each step."""
    from ludus.train.speed import acceleration, varlen_attention

    on_cpu = {"device": "cpu", "precision": "fp32"}
    plain = trained(tmp_path, "plain", **on_cpu)
    used = []
    monkeypatch.setattr(varlen_attention, "_varlen_attention", row_by_row)
    monkeypatch.setattr(acceleration, "_supports_varlen_training", lambda trainer: True)
    monkeypatch.setattr(
        acceleration, "_compile_layers", lambda model, dynamic: used.append(dynamic)
    )
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", lambda core, *_, **__: core)
    strips = trained(tmp_path, "strips", **on_cpu, compile=True)
    assert used == [False]
    for name in ("loss", "grad_norm", "eval_loss", "tokens"):
        assert values(strips, name) == pytest.approx(values(plain, name), rel=1e-4)


def a(config: type, **more: Any) -> Any:
    """A tiny model of a family."""
    sizes = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    made: Any = transformers.AutoModelForCausalLM
    return made.from_config(config(**{**sizes, **more}))


@pytest.mark.parametrize(
    ("family", "more", "can"),
    [
        ("LlamaConfig", {}, True),
        ("MistralConfig", {}, True),
        ("Qwen3Config", {"head_dim": 8}, True),
        ("LlamaConfig", {"attention_dropout": 0.1}, False),
        ("Gemma2Config", {"head_dim": 8}, False),
        ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}, False),
    ],
)
def test_rows_are_only_laid_end_to_end_where_attention_is_all_that_binds_them(
    family: str, more: dict[str, Any], can: bool
) -> None:
    from ludus.train.speed.varlen_attention import supports_varlen

    assert supports_varlen(a(getattr(transformers, family), **more)) is can


def test_heads_that_share_keys_are_named_to_the_kernel() -> None:
    """The kernel is there on a CPU too, and says what it would not take."""
    from ludus.train.speed.varlen_attention import varlen_attention_function

    query, key = torch.zeros(1, 4, 6, 8), torch.zeros(1, 2, 6, 8)
    bounds = torch.tensor([0, 2, 6], dtype=torch.int32)
    with pytest.raises(Exception) as told:
        varlen_attention_function()(
            None, query, key, key, None, cu_seq_lens_q=bounds, max_length_q=4
        )
    assert "number of heads" not in str(told.value)


@needs_gpu
def test_rows_end_to_end_see_only_themselves(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from ludus.train.speed.varlen_attention import supports_varlen, use_varlen_attention

    how = {"dtype": torch.bfloat16, "device_map": "cuda"}
    plain = AutoModelForCausalLM.from_pretrained(saved(tmp_path), **how)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, **how)
    assert supports_varlen(model)
    use_varlen_attention(model)
    rows = [torch.arange(5, 15), torch.arange(30, 37)]
    bounds = torch.tensor([0, 10, 17], dtype=torch.int32, device="cuda")
    places = torch.cat([torch.arange(10), torch.arange(7)])[None].cuda()
    with torch.no_grad():
        together = model(
            input_ids=torch.cat(rows)[None].cuda(), position_ids=places,
            cu_seq_lens_q=bounds, max_length_q=10,
        ).logits[0]  # fmt: skip
        alone = torch.cat([plain(input_ids=row[None].cuda()).logits[0] for row in rows])
    assert torch.allclose(together, alone, atol=3e-2)
