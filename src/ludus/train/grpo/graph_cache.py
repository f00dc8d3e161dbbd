"""Trees of a few shapes, whose way through all layers is captured once and then played back.

A small model's step takes as long as its thousands of kernels take to launch, however few tokens
there are to read. So trees are filled up to one of some shapes, and each of these has its graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ludus.train.grpo.prefix_tree import PrefixTrees
from ludus.train.speed.cuda_graphs import GraphedForward, capture_graph

Shape = tuple[int, int]
"""Lanes, and the length of them."""
GRAPH_LENGTH_MULTIPLE = 64
"""Lanes are as long as a multiple of it."""
MAX_GRAPH_TOKENS = 8192
"""With more the device has enough to do."""
MAX_GRAPHS = 8
MEMORY_FRACTION = 0.1
"""Of the device's memory, for the gradients of all graphs, because each writes its own; and as much
for what all of them keep of their tokens."""
ACTIVATION_BYTES_PER_HIDDEN_UNIT = 90
"""Bytes that a layer keeps of a token until it is learned from, for each number that it has."""


class GraphCache:
    """In the place of a core's forward pass."""

    def __init__(self, core: Any, dtype: Any, say: Callable[[str], None]) -> None:
        self._core, self._dtype, self._say = core, dtype, say
        self._forward: GraphedForward = core.forward
        self._max_graphs, self._max_tokens = _graph_budget(core)
        self._graphs: dict[Shape, GraphedForward] = {}
        self._pool: Any = None
        core.forward = self._replay_or_forward

    def stop(self) -> None:
        """Forget all graphs, and give the core its own forward pass back."""
        self._graphs.clear()
        self._pool, self._core.forward = None, self._forward

    def pad_to_graph_shape(self, trees: PrefixTrees) -> PrefixTrees:
        """Filled up to a shape that there is a graph of, or will be."""
        lanes, length = trees.input_ids.shape
        shape = self.graph_shape(lanes, length)
        return trees if shape is None else trees.pad_to(*shape)

    def graph_shape(self, lanes: int, length: int) -> Shape | None:
        """None where a graph would be too much, or there are too many already."""
        wanted = (
            1 << (lanes - 1).bit_length(),
            -(-length // GRAPH_LENGTH_MULTIPLE) * GRAPH_LENGTH_MULTIPLE,
        )
        if _num_tokens(wanted) > self._max_tokens:
            return None
        made = [shape for shape in self._graphs if shape[0] >= lanes and shape[1] >= length]
        best = min(made, key=_num_tokens, default=None)
        if len(self._graphs) < self._max_graphs and (
            best is None or _num_tokens(best) > _num_tokens(wanted)
        ):
            return wanted
        return best

    def _replay_or_forward(self, *given: Any, **inputs: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        play = None if given else self._find_or_capture(inputs)
        if play is None:
            return self._forward(*given, **inputs)
        made = play(*_graph_inputs(inputs))
        return BaseModelOutputWithPast(last_hidden_state=made)

    def _find_or_capture(self, inputs: dict[str, Any]) -> GraphedForward | None:
        import torch

        mask = inputs.get("attention_mask")
        if not torch.is_grad_enabled() or mask is None or mask.ndim != 4:
            return None
        lanes, length = inputs["input_ids"].shape
        if (lanes, length) in self._graphs:
            return self._graphs[lanes, length]
        if self.graph_shape(lanes, length) != (lanes, length):
            return None
        try:
            play = self._graphs[lanes, length] = self._capture(inputs)
        except Exception as error:
            self._max_graphs = len(self._graphs)
            why = next(iter(str(error).splitlines()), "") or type(error).__name__
            self._say(f"Training without more captured graphs, which is slower: {why}")
            return None
        return play

    def _capture(self, inputs: dict[str, Any]) -> GraphedForward:
        import torch

        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()

        def compute(ids: Any, mask: Any, positions: Any) -> Any:
            made = self._forward(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
            )
            return made.last_hidden_state

        # A graph keeps what it was shown, and is given the rest there.
        shown = [each.clone() for each in _graph_inputs(inputs)]
        return capture_graph(self._core, compute, shown, self._dtype, pool=self._pool)


def _graph_inputs(inputs: dict[str, Any]) -> tuple[Any, Any, Any]:
    return inputs["input_ids"], inputs["attention_mask"], inputs["position_ids"]


def _num_tokens(shape: Shape) -> int:
    return shape[0] * shape[1]


def _graph_budget(core: Any) -> tuple[int, int]:
    """How many graphs there may be, and of how many tokens."""
    import torch

    share = MEMORY_FRACTION * torch.cuda.get_device_properties(core.device).total_memory
    gradients = sum(each.numel() * each.element_size() for each in core.parameters())
    token = (
        ACTIVATION_BYTES_PER_HIDDEN_UNIT * core.config.num_hidden_layers * core.config.hidden_size
    )
    return min(MAX_GRAPHS, int(share / gradients)), min(MAX_GRAPH_TOKENS, int(share / token))
