"""Float32 weights for training: rounded they are the published ones, and they follow updates."""

from __future__ import annotations

import pytest
import torch

from ludus.train.trainable_model import dither_weights

SMALL_UPDATE = 1e-5
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def linear_layer(dtype: str, size: int = 256) -> torch.nn.Linear:
    """A layer whose float32 weights are numbers of `dtype`."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(size, size, bias=False)
    layer.weight.data = torch.empty(size, size).uniform_(0.05, 0.1).to(DTYPES[dtype]).float()
    return layer


@pytest.mark.parametrize("dtype", DTYPES)
def test_dithered_weights_round_to_the_published_ones(dtype: str) -> None:
    layer, published = linear_layer(dtype), linear_layer(dtype)
    dither_weights(layer, dtype)
    assert not torch.equal(layer.weight, published.weight)
    assert torch.equal(layer.weight.to(DTYPES[dtype]), published.weight.to(DTYPES[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounded_weights_follow_updates_smaller_than_their_spacing(dtype: str) -> None:
    layer, published = linear_layer(dtype), linear_layer(dtype)
    dither_weights(layer, dtype)
    with torch.no_grad():
        layer.weight += SMALL_UPDATE
        published.weight += SMALL_UPDATE
    before = linear_layer(dtype).weight.detach()

    def mean_change(moved: torch.Tensor) -> float:
        return float((moved.detach().to(DTYPES[dtype]).float() - before).mean())

    assert mean_change(layer.weight) == pytest.approx(SMALL_UPDATE, rel=0.2)
    assert mean_change(published.weight) == 0.0


def test_zeros_stay_zero() -> None:
    layer = linear_layer("bfloat16")
    with torch.no_grad():
        layer.weight[3] = 0.0
    dither_weights(layer, "bfloat16")
    assert not layer.weight[3].any()


def test_weights_with_more_precision_are_not_changed() -> None:
    layer = torch.nn.Linear(8, 8, bias=False)
    before = layer.weight.detach().clone()
    dither_weights(layer, "float32")
    assert torch.equal(layer.weight, before)
    dither_weights(layer, "bfloat16")
    assert torch.equal(layer.weight, before)
