"""CUDA graphs of the training forward and backward pass, for a few shapes of prefix trees.

A step of a small model takes as long as its thousands of kernels take to launch, however few tokens
there are. Trees are therefore padded to one of a few shapes, and each shape has a captured graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ludus.train.acceleration import (
    GraphedForward,
    capture_graph,
    describe_capture_error,
)
from ludus.train.grpo.prefix_tree import PrefixTrees

Shape = tuple[int, int]
"""Lanes and their length."""
_GRAPH_INPUTS = ("input_ids", "attention_mask", "position_ids")
GRAPH_LENGTH_MULTIPLE = 64
MAX_GRAPH_TOKENS = 8192
"""Larger batches keep the GPU busy without graphs."""
MAX_GRAPHS = 8
MEMORY_FRACTION = 0.1
"""Share of the GPU's memory for the gradients of all graphs (each graph writes its own), and again
for the activations, which all graphs share."""
ACTIVATION_BYTES_PER_HIDDEN_UNIT = 90
"""Bytes of activations per token, layer and hidden unit that are kept for the backward pass."""


class GraphCache:
    """Replaces a model's forward method; captures a graph for each new shape and replays it."""

    def __init__(self, core: Any, dtype: Any, say: Callable[[str], None]) -> None:
        import torch

        self.enabled = True
        self._core, self._dtype, self._say = core, dtype, say
        self._forward: GraphedForward = core.forward
        budget = MEMORY_FRACTION * torch.cuda.get_device_properties(core.device).total_memory
        gradients = sum(weight.numel() * weight.element_size() for weight in core.parameters())
        per_layer = ACTIVATION_BYTES_PER_HIDDEN_UNIT * core.config.hidden_size
        per_token = per_layer * core.config.num_hidden_layers
        self._max_graphs = min(MAX_GRAPHS, int(budget / gradients))
        self._max_tokens = min(MAX_GRAPH_TOKENS, int(budget / per_token))
        self._graphs: dict[Shape, GraphedForward] = {}
        self._pool: Any = None
        core.forward = self._replay_or_forward

    def pad_to_graph_shape(self, trees: PrefixTrees) -> PrefixTrees:
        """Pad to a shape that has a graph or will get one; unchanged if there is no such shape."""
        shape = self.graph_shape(*trees.input_ids.shape)
        return trees if shape is None else trees.pad_to(*shape)

    def graph_shape(self, lanes: int, length: int) -> Shape | None:
        """The shape to pad to; None if the batch is too large or there are too many graphs."""
        multiple = GRAPH_LENGTH_MULTIPLE
        wanted = 1 << (lanes - 1).bit_length(), -(-length // multiple) * multiple
        if _num_tokens(wanted) > self._max_tokens:
            return None
        large_enough = [shape for shape in self._graphs if shape[0] >= lanes and shape[1] >= length]
        best = min(large_enough, key=_num_tokens, default=None)
        is_better = best is None or _num_tokens(best) > _num_tokens(wanted)
        return wanted if len(self._graphs) < self._max_graphs and is_better else best

    def release(self) -> None:
        """Free the graphs with their memory, and capture no more of them."""
        self._graphs.clear()
        self._pool, self._max_graphs = None, 0

    def _replay_or_forward(self, *args: Any, **inputs: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        graph = None if args or not self.enabled else self._find_or_capture(inputs)
        if graph is None:
            return self._forward(*args, **inputs)
        hidden = graph(*(inputs[name] for name in _GRAPH_INPUTS))
        return BaseModelOutputWithPast(last_hidden_state=hidden)

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

        def compute(ids: Any, mask: Any, positions: Any) -> Any:
            output = self._forward(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
            )
            return output.last_hidden_state

        try:
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            # The graph keeps these tensors: later inputs are copied into them.
            static_inputs = [inputs[name].clone() for name in _GRAPH_INPUTS]
            graph = capture_graph(self._core, compute, static_inputs, self._dtype, pool=self._pool)
        except Exception as error:
            self._max_graphs = len(self._graphs)
            reason = describe_capture_error(error)
            self._say(f"Training without more CUDA graphs, which is slower: {reason}")
            return None
        self._graphs[lanes, length] = graph
        return graph


def _num_tokens(shape: Shape) -> int:
    return shape[0] * shape[1]
