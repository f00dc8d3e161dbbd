"""Which shapes get CUDA graphs; see test_gpu for what graphs compute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ludus.train.grpo import graph_cache
from ludus.train.grpo.graph_cache import MAX_GRAPH_TOKENS, MAX_GRAPHS, GraphCache


class FakeModel:
    """The part of a model that the cache uses."""

    device = "cuda"
    config = SimpleNamespace(num_hidden_layers=1, hidden_size=1)
    forward: Any

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.forward = self._forward

    def parameters(self) -> list[Any]:
        return [self.weight]

    def _forward(self, input_ids: Any, **_: Any) -> Any:
        return SimpleNamespace(last_hidden_state=input_ids * self.weight.sum())


@pytest.fixture
def captured_shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The shapes that were captured, without a GPU."""
    shapes: list[tuple[int, int]] = []

    def capture(core: Any, compute: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        shapes.append(tuple(inputs[0].shape))
        return compute

    monkeypatch.setattr(graph_cache, "capture_graph", capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    memory = SimpleNamespace(total_memory=2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    return shapes


def forward_inputs(lanes: int, length: int) -> dict[str, Any]:
    ids = torch.ones(lanes, length)
    return {"input_ids": ids, "attention_mask": torch.ones(lanes, 1, length, length).bool(),
            "position_ids": ids.long(), "use_cache": False}  # fmt: skip


def test_a_shape_is_captured_once(captured_shapes: list[tuple[int, int]]) -> None:
    model = FakeModel()
    cache = GraphCache(model, torch.bfloat16, print)
    assert cache.graph_shape(5, 100) == (8, 128)
    for _ in range(3):
        assert model.forward(**forward_inputs(8, 128)).last_hidden_state.sum() == 8 * 128
    assert captured_shapes == [(8, 128)]


def test_no_graph_is_captured_without_gradients_or_for_plain_rows(
    captured_shapes: list[tuple[int, int]],
) -> None:
    model = FakeModel()
    GraphCache(model, torch.bfloat16, print)
    with torch.no_grad():
        model.forward(**forward_inputs(8, 128))
    model.forward(**{**forward_inputs(8, 128), "attention_mask": torch.ones(8, 128)})
    model.forward(**forward_inputs(5, 100))
    assert captured_shapes == []


def test_a_larger_shape_is_reused_when_the_cache_is_full(
    captured_shapes: list[tuple[int, int]],
) -> None:
    model = FakeModel()
    cache = GraphCache(model, torch.bfloat16, print)
    for number in range(1, MAX_GRAPHS + 1):
        model.forward(**forward_inputs(1, 64 * number))
    assert len(captured_shapes) == MAX_GRAPHS
    assert cache.graph_shape(1, 70) == (1, 128)
    assert cache.graph_shape(1, 64 * MAX_GRAPHS + 1) is None
    assert cache.graph_shape(2, 64) is None


def test_large_batches_get_no_graph(captured_shapes: list[tuple[int, int]]) -> None:
    cache = GraphCache(FakeModel(), torch.bfloat16, print)
    assert cache.graph_shape(1, MAX_GRAPH_TOKENS) == (1, MAX_GRAPH_TOKENS)
    assert cache.graph_shape(1, MAX_GRAPH_TOKENS + 1) is None
    assert cache.graph_shape(3, MAX_GRAPH_TOKENS // 2) is None


def test_a_small_gpu_gets_fewer_and_smaller_graphs(
    captured_shapes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SimpleNamespace(total_memory=25 * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    model = FakeModel()
    model.weight = torch.nn.Parameter(torch.ones(2**18))
    model.config = SimpleNamespace(num_hidden_layers=2**5, hidden_size=2**2)
    cache = GraphCache(model, torch.bfloat16, print)
    assert cache.graph_shape(1, 7 * 64) is None
    for length in (64, 128):
        model.forward(**forward_inputs(1, length))
    assert len(captured_shapes) == 2 and cache.graph_shape(1, 192) is None


def test_a_failed_capture_falls_back_and_is_reported_once(
    captured_shapes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the device has no graphs\nand more words")

    monkeypatch.setattr(graph_cache, "capture_graph", fail)
    model = FakeModel()
    warnings: list[str] = []
    GraphCache(model, torch.bfloat16, warnings.append)
    for length in (64, 128):
        assert model.forward(**forward_inputs(1, length)).last_hidden_state.sum() == length
    (warning,) = warnings
    assert "no graphs" in warning and "more words" not in warning
