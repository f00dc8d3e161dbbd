"""CUDA graphs of training: what is left behind by a capture that fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ludus.train.acceleration import capture_graph, describe_capture_error

TOO_MANY_BYTES = 1 << 42
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
def test_after_a_capture_that_ran_out_of_memory_another_one_succeeds() -> None:
    layer, inputs = torch.nn.Linear(8, 8, device="cuda"), torch.ones(2, 8, device="cuda")
    forward, pool = layer.forward, torch.cuda.graph_pool_handle()

    def compute(hidden: Any) -> Any:
        if torch.cuda.is_current_stream_capturing():
            torch.empty(TOO_MANY_BYTES, dtype=torch.uint8, device="cuda")
        return forward(hidden)

    with pytest.raises(RuntimeError) as raised:
        capture_graph(layer, compute, [inputs], torch.bfloat16, pool=pool)
    assert "memory" in describe_capture_error(raised.value)
    graphed = capture_graph(layer, forward, [inputs], torch.bfloat16, pool=pool)
    torch.testing.assert_close(graphed(inputs).float(), layer(inputs), atol=0.05, rtol=0.05)


def test_the_reason_of_a_failed_capture_is_the_first_error() -> None:
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")
    except RuntimeError as error:
        assert "memory" in describe_capture_error(error)
    assert describe_capture_error(RuntimeError("other\nlines")) == "other"
    assert describe_capture_error(RuntimeError()) == "RuntimeError"
