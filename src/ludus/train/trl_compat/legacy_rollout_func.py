"""Rollout functions of older TRL versions: `rollout_func(prompts, args, processing_class)`.

They get each prompt of a batch once, as text, and return `num_generations` completions for it.
Current TRL repeats the prompts itself and calls `rollout_func(prompts, trainer)`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ludus.errors import ConfigError

_PER_COMPLETION_FIELDS = ("completion_ids", "logprobs")
_REQUIRED_FIELDS = ("prompt_ids", *_PER_COMPLETION_FIELDS)


def is_legacy(function: Callable[..., Any]) -> bool:
    """Whether the function needs three positional arguments."""
    signature = inspect.signature(function)

    def accepts(count: int) -> bool:
        try:
            signature.bind(*[None] * count)
        except TypeError:
            return False
        return True

    return accepts(3) and not accepts(2)


def call_legacy(
    function: Callable[..., Any], prompts: Sequence[Any], trainer: Any, num_generations: int
) -> Any:
    """Call the function and return the results for this process's prompts, as TRL takes them.

    A group may be spread over several processes, so the main process calls it for all of them.
    """
    from accelerate.utils import broadcast_object_list, gather_object
    from trl.data_utils import apply_chat_template, is_conversational

    all_prompts = gather_object(list(prompts))
    outputs: list[Any] = [None]
    if trainer.accelerator.is_main_process:
        args = copy.copy(trainer.args)
        args.num_generations = num_generations
        tokenizer, texts = trainer.processing_class, all_prompts[::num_generations]
        if is_conversational({"prompt": texts[0]}):
            kwargs = trainer.chat_template_kwargs
            rendered = [apply_chat_template({"prompt": p}, tokenizer, **kwargs) for p in texts]
            texts = [each["prompt"] for each in rendered]
        output = function(texts, args, tokenizer)
        outputs = [expand_per_completion(output, len(all_prompts), num_generations)]
    broadcast_object_list(outputs, from_process=0)
    first = trainer.accelerator.process_index * len(prompts)
    return slice_output(outputs[0], first, len(prompts), len(all_prompts))


def expand_per_completion(
    output: Mapping[str, Any], count: int, num_generations: int
) -> dict[str, Any]:
    """Repeat the values that were given once per prompt, so that all lists have `count` items.

    Log-probabilities may be numbers, or lists of the likeliest tokens' with the sampled one first.
    """
    missing = [name for name in _REQUIRED_FIELDS if name not in output]
    if missing:
        raise ConfigError(f"The rollout function must return {missing[0]!r}.")
    expanded = dict(output)
    for name, value in output.items():
        is_per_prompt = isinstance(value, list) and len(value) * num_generations == count
        if is_per_prompt and name not in _PER_COMPLETION_FIELDS:
            expanded[name] = [item for item in value for _ in range(num_generations)]
    if len(expanded["completion_ids"]) != count or len(expanded["prompt_ids"]) != count:
        raise ConfigError(
            f"The rollout function returned {len(output['completion_ids'])} completions for "
            f"{count // num_generations} prompts, expected {num_generations} for each: {count}."
        )
    if expanded["logprobs"] is not None:
        expanded["logprobs"] = [
            [float(value[0] if isinstance(value, list) else value) for value in row]
            for row in expanded["logprobs"]
        ]
    return expanded


def slice_output(output: Mapping[str, Any], first: int, length: int, count: int) -> dict[str, Any]:
    """Return the part of one process: of lists with `count` items, `length` from `first` on."""
    return {
        name: value[first : first + length]
        if isinstance(value, list) and len(value) == count
        else value
        for name, value in output.items()
    }
