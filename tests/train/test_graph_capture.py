"""CUDA graphs of training: what is left behind by a capture that fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

from ludus.train.acceleration import replace_forward_by_graph

TOO_MANY_BYTES = 1 << 42
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Body(torch.nn.Module):  # type: ignore[misc]  # torch is not typed.
    """A model below its head, which runs out of memory while it is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.fails = torch.nn.Embedding(8, 8), True

    def forward(self, input_ids: Any, **_: Any) -> Any:
        if self.fails and torch.cuda.is_current_stream_capturing():
            torch.empty(TOO_MANY_BYTES, dtype=torch.uint8, device="cuda")
        return BaseModelOutputWithPast(last_hidden_state=self.embedding(input_ids))


@needs_gpu
def test_after_a_capture_that_ran_out_of_memory_another_one_succeeds() -> None:
    body: Any = Body().to("cuda")
    ids = torch.arange(4, device="cuda")[None]
    batch = {"input_ids": ids, "position_ids": ids, "cu_seq_lens_q": torch.tensor([0, 4])}
    args: Any = SimpleNamespace(bf16=True, device="cuda")
    with pytest.raises(RuntimeError):
        replace_forward_by_graph(body, batch, 4, args)
    expected = body(**batch).last_hidden_state
    body.fails = False
    replace_forward_by_graph(body, batch, 4, args)
    on_gpu = {name: tensor.to("cuda") for name, tensor in batch.items()}
    hidden = body.forward(**on_gpu).last_hidden_state
    torch.testing.assert_close(hidden.float(), expected, atol=0.05, rtol=0.05)
