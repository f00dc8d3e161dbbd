"""Trees of a few shapes, whose way through all layers is captured once and then played back.

A small model's step takes as long as its thousands of kernels take to launch, however few tokens
there are to read. So trees are filled up to one of some shapes, and each of these has its graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ludus.train.captured import GraphedForward, capture_graph
from ludus.train.grpo.branches import Trees

Shape = tuple[int, int]
"""Lanes, and the length of them."""
LENGTHS = 64
"""Lanes are as long as a multiple of it."""
MOST_TOKENS = 8192
"""With more the device has enough to do."""
MOST_SHAPES = 8
SHARE = 0.1
"""Of the device's memory, for the gradients of all graphs, because each writes its own; and as much
for what all of them keep of their tokens."""
KEPT = 90
"""Bytes that a layer keeps of a token until it is learned from, for each number that it has."""


class Playback:
    """In the place of a core's forward pass."""

    def __init__(self, core: Any, dtype: Any, say: Callable[[str], None]) -> None:
        self._core, self._dtype, self._say = core, dtype, say
        self._forward: GraphedForward = core.forward
        self._room, self._most_tokens = _room(core)
        self._graphs: dict[Shape, GraphedForward] = {}
        self._pool: Any = None
        core.forward = self._run

    def stop(self) -> None:
        """Forget all graphs, and give the core its own forward pass back."""
        self._graphs.clear()
        self._pool, self._core.forward = None, self._forward

    def fitting(self, trees: Trees) -> Trees:
        """Filled up to a shape that there is a graph of, or will be."""
        lanes, length = trees.ids.shape
        shape = self.shape_for(lanes, length)
        return trees if shape is None else trees.filled_up(*shape)

    def shape_for(self, lanes: int, length: int) -> Shape | None:
        """None where a graph would be too much, or there are too many already."""
        wanted = 1 << (lanes - 1).bit_length(), -(-length // LENGTHS) * LENGTHS
        if _tokens(wanted) > self._most_tokens:
            return None
        made = [shape for shape in self._graphs if shape[0] >= lanes and shape[1] >= length]
        best = min(made, key=_tokens, default=None)
        if len(self._graphs) < self._room and (best is None or _tokens(best) > _tokens(wanted)):
            return wanted
        return best

    def _run(self, *given: Any, **inputs: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        play = None if given else self._played(inputs)
        if play is None:
            return self._forward(*given, **inputs)
        made = play(*_given(inputs))
        return BaseModelOutputWithPast(last_hidden_state=made)

    def _played(self, inputs: dict[str, Any]) -> GraphedForward | None:
        import torch

        mask = inputs.get("attention_mask")
        if not torch.is_grad_enabled() or mask is None or mask.ndim != 4:
            return None
        lanes, length = inputs["input_ids"].shape
        if (lanes, length) in self._graphs:
            return self._graphs[lanes, length]
        if self.shape_for(lanes, length) != (lanes, length):
            return None
        try:
            play = self._graphs[lanes, length] = self._captured(inputs)
        except Exception as error:
            self._room = len(self._graphs)
            why = next(iter(str(error).splitlines()), "") or type(error).__name__
            self._say(f"Training without more captured graphs, which is slower: {why}")
            return None
        return play

    def _captured(self, inputs: dict[str, Any]) -> GraphedForward:
        import torch

        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()

        def compute(ids: Any, mask: Any, positions: Any) -> Any:
            made = self._forward(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
            )
            return made.last_hidden_state

        # A graph keeps what it was shown, and is given the rest there.
        shown = [each.clone() for each in _given(inputs)]
        return capture_graph(self._core, compute, shown, self._dtype, pool=self._pool)


def _given(inputs: dict[str, Any]) -> tuple[Any, Any, Any]:
    return inputs["input_ids"], inputs["attention_mask"], inputs["position_ids"]


def _tokens(shape: Shape) -> int:
    return shape[0] * shape[1]


def _room(core: Any) -> tuple[int, int]:
    """How many graphs there may be, and of how many tokens."""
    import torch

    share = SHARE * torch.cuda.get_device_properties(core.device).total_memory
    gradients = sum(each.numel() * each.element_size() for each in core.parameters())
    token = KEPT * core.config.num_hidden_layers * core.config.hidden_size
    return min(MOST_SHAPES, int(share / gradients)), min(MOST_TOKENS, int(share / token))
