"""Acceleration of SFT: the same training with and without it."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from policy.models import saved

from ludus import sft
from ludus.train.result import NoProgress
from train.sample_rows import sft_data
from train.short_runs import read_curve, train_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def train(folder: Path, name: str, **fields: Any) -> list[dict[str, Any]]:
    """The log of a few steps; the last batch of each epoch is smaller."""
    base, data = folder / "base", sft_data(folder / "data", rows=30, test=4)
    base = base if base.is_dir() else saved(base)
    config = train_config(**{"batch_size": 8, "epochs": 3, "learning_rate": 1e-2, **fields})
    sft(data, str(base), folder / name, config)
    return read_curve(folder / name)


def values(log: list[dict[str, Any]], name: str) -> list[float]:
    return [line[name] for line in log if name in line]


def test_logits_are_computed_only_where_there_are_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trl.trainer import utils

    computed = []
    original = utils._ChunkedLogProbFunction.apply

    def apply(hidden: Any, *rest: Any) -> Any:
        computed.append(len(hidden))
        return original(hidden, *rest)

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", SimpleNamespace(apply=apply))
    base, data = saved(tmp_path / "base"), sft_data(tmp_path / "data", rows=4)
    sft(data, str(base), tmp_path / "out", train_config(batch_size=4))
    (line,) = [line for line in read_curve(tmp_path / "out") if "loss" in line]
    assert 0 < computed[0] < line["tokens"] / 3


@needs_gpu
def test_on_a_gpu_all_variants_train_the_same(tmp_path: Path) -> None:
    on_gpu = {"device": "cuda", "precision": "bf16"}
    plain = train(tmp_path, "plain", **on_gpu, compile=False)
    graph = train(tmp_path, "graph", **on_gpu, compile=True)
    concatenated = train(
        tmp_path, "rows", **on_gpu, compile=True, batch_size=4, gradient_accumulation_steps=2
    )
    for log in (graph, concatenated):
        for name in ("loss", "grad_norm", "eval_loss"):
            assert values(log, name) == pytest.approx(values(plain, name), rel=2e-2)
    assert values(plain, "loss")[-1] < 0.7 * values(plain, "loss")[0]


def reference_varlen_attention(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **more: Any
) -> Any:
    """What the kernel computes, row by row."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    cu_seq_lens = more["cu_seq_lens_q"].tolist()
    outputs = [
        torch.nn.functional.scaled_dot_product_attention(
            *(side[:, :, start:end] for side in (query, key, value)), is_causal=True, scale=scaling
        )
        for start, end in pairwise(cu_seq_lens)
        if start < end
    ]
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("has_memory", [True, False])
def test_packed_batches_train_the_same_as_padded_ones(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    has_memory: bool,
) -> None:
    """Everything but the GPU: with a reference kernel, and without capturing a graph."""
    from ludus.train import acceleration, packed_attention

    on_cpu = {"device": "cpu", "precision": "fp32"}
    plain = train(tmp_path, "plain", **on_cpu)
    compiled = []
    monkeypatch.setattr(packed_attention, "_varlen_attention", reference_varlen_attention)
    monkeypatch.setattr(acceleration, "_supports_varlen_training", lambda trainer: True)
    monkeypatch.setattr(
        acceleration, "compile_layers", lambda model, dynamic: compiled.append(dynamic)
    )
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))

    def capture(core: Any, *_: Any, **__: Any) -> Any:
        if has_memory:
            return core
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    monkeypatch.setattr(acceleration, "end_failed_capture", lambda pool: None)
    monkeypatch.setattr(NoProgress, "say", lambda self, words: print(words))
    packed = train(tmp_path, "packed", **on_cpu, compile=True)
    assert compiled == ([False] if has_memory else [False, True])
    assert ("memory" in capsys.readouterr().out) is not has_memory
    for name in ("loss", "grad_norm", "eval_loss", "tokens"):
        assert values(packed, name) == pytest.approx(values(plain, name), rel=1e-4)


def tiny_model(config: type, **fields: Any) -> Any:
    """A tiny model of a family."""
    sizes = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    auto_class: Any = transformers.AutoModelForCausalLM
    return auto_class.from_config(config(**{**sizes, **fields}))


@pytest.mark.parametrize(
    ("family", "fields", "supported"),
    [
        ("LlamaConfig", {}, True),
        ("MistralConfig", {}, True),
        ("Qwen3Config", {"head_dim": 8}, True),
        ("LlamaConfig", {"attention_dropout": 0.1}, False),
        ("Gemma2Config", {"head_dim": 8}, False),
        ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}, False),
    ],
)
def test_varlen_attention_is_for_models_whose_tokens_interact_only_by_plain_attention(
    family: str, fields: dict[str, Any], supported: bool
) -> None:
    from ludus.train.packed_attention import supports_varlen

    assert supports_varlen(tiny_model(getattr(transformers, family), **fields)) is supported


def test_grouped_query_attention_is_passed_to_the_kernel() -> None:
    """On a CPU the kernel exists too, and raises for what it does not support."""
    from ludus.train.packed_attention import varlen_attention_function

    query, key = torch.zeros(1, 4, 6, 8), torch.zeros(1, 2, 6, 8)
    bounds = torch.tensor([0, 2, 6], dtype=torch.int32)
    with pytest.raises(Exception) as raised:
        varlen_attention_function()(
            None, query, key, key, None, cu_seq_lens_q=bounds, max_length_q=4
        )
    assert "number of heads" not in str(raised.value)


@needs_gpu
def test_concatenated_rows_attend_only_to_themselves(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from ludus.train.packed_attention import supports_varlen, use_varlen_attention

    options = {"dtype": torch.bfloat16, "device_map": "cuda"}
    plain = AutoModelForCausalLM.from_pretrained(saved(tmp_path), **options)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    assert supports_varlen(model)
    use_varlen_attention(model)
    rows = [torch.arange(5, 15), torch.arange(30, 37)]
    bounds = torch.tensor([0, 10, 17], dtype=torch.int32, device="cuda")
    positions = torch.cat([torch.arange(10), torch.arange(7)])[None].cuda()
    with torch.no_grad():
        together = model(
            input_ids=torch.cat(rows)[None].cuda(), position_ids=positions,
            cu_seq_lens_q=bounds, max_length_q=10,
        ).logits[0]  # fmt: skip
        alone = torch.cat([plain(input_ids=row[None].cuda()).logits[0] for row in rows])
    assert torch.allclose(together, alone, atol=3e-2)
