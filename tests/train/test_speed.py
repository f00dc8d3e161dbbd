from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from policy.models import saved

from ludus.train import sft
from train.lessons import curve, quick, sft_data

torch = pytest.importorskip("torch")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def trained(folder: Path, name: str, **how: Any) -> list[float]:
    """The losses of a few steps on the GPU."""
    base, data = folder / "base", sft_data(folder / "data", rows=32, test=4)
    base = base if base.is_dir() else saved(base)
    settings = quick(batch_size=8, epochs=3, learning_rate=1e-3, **how)
    sft(data, str(base), folder / name, settings)
    return [line["loss"] for line in curve(folder / name) if "loss" in line]


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
def test_a_captured_graph_learns_what_the_plain_trainer_learns(tmp_path: Path) -> None:
    on_gpu = {"device": "cuda", "precision": "bf16"}
    plain = trained(tmp_path, "plain", device="cpu", precision="fp32")
    rows = trained(tmp_path, "rows", **on_gpu, compile=False)
    graph = trained(tmp_path, "graph", **on_gpu, compile=True)
    assert rows == pytest.approx(plain, rel=2e-2)
    assert graph == pytest.approx(plain, rel=2e-2)


@needs_gpu
def test_rows_end_to_end_see_only_themselves(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from ludus.train.attention import attend_by_rows, can_attend

    how = {"dtype": torch.bfloat16, "device_map": "cuda"}
    plain = AutoModelForCausalLM.from_pretrained(saved(tmp_path), **how)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, **how)
    assert can_attend(model)
    attend_by_rows(model)
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
