"""Rollout functions of the older form: `rollout_func(prompts, args, processing_class)`.

They get each prompt of a batch once, as text, and give `num_generations` completions for each. TRL
of today repeats the prompts and hands over itself. What the function does is its own business.
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
    """Whether it cannot be called with two arguments, and can with three."""
    signature = inspect.signature(function)

    def takes(count: int) -> bool:
        try:
            signature.bind(*[None] * count)
        except TypeError:
            return False
        return True

    return takes(3) and not takes(2)


def call_legacy(
    function: Callable[..., Any], prompts: Sequence[Any], trainer: Any, num_generations: int
) -> Any:
    """The function's results for this process's prompts, as TRL of today takes them.

    A group may lie in several processes, so that the first asks for all of them.
    """
    from accelerate.utils import broadcast_object_list, gather_object

    everyone = gather_object(list(prompts))
    answer: list[Any] = [None]
    if trainer.accelerator.is_main_process:
        once = _render_prompts(everyone[::num_generations], trainer)
        args = copy.copy(trainer.args)
        args.num_generations = num_generations
        given = function(once, args, trainer.processing_class)
        answer = [expand_per_completion(given, len(everyone), num_generations)]
    broadcast_object_list(answer, from_process=0)
    first = trainer.accelerator.process_index * len(prompts)
    return slice_output(answer[0], first, len(prompts), len(everyone))


def expand_per_completion(
    output: Mapping[str, Any], count: int, num_generations: int
) -> dict[str, Any]:
    """What was given for each prompt once is repeated for each of its completions."""
    missing = [name for name in _REQUIRED_FIELDS if name not in output]
    if missing:
        raise ConfigError(f"The rollout function gave no {missing[0]!r}; it must.")
    made = {
        name: value if name in _PER_COMPLETION_FIELDS else _repeat(value, count, num_generations)
        for name, value in output.items()
    }
    if len(made["completion_ids"]) != count or len(made["prompt_ids"]) != count:
        raise ConfigError(
            f"The rollout function gave {len(output['completion_ids'])} completions for "
            f"{count // num_generations} prompts; give {num_generations} for each, which are {count}."
        )
    if made["logprobs"] is not None:
        made["logprobs"] = [[_logprob_value(each) for each in row] for row in made["logprobs"]]
    return made


def slice_output(output: Mapping[str, Any], first: int, length: int, count: int) -> dict[str, Any]:
    """The part of one process."""
    return {
        name: value[first : first + length]
        if isinstance(value, list) and len(value) == count
        else value
        for name, value in output.items()
    }


def _repeat(value: Any, count: int, num_generations: int) -> Any:
    if not isinstance(value, list) or len(value) * num_generations != count:
        return value
    return [each for each in value for _ in range(num_generations)]


def _logprob_value(logprob: Any) -> float:
    """Servers give a token's log-probability, or a list of the likeliest ones with it first."""
    return float(logprob[0] if isinstance(logprob, list) else logprob)


def _render_prompts(prompts: Sequence[Any], trainer: Any) -> list[str]:
    from trl.data_utils import apply_chat_template, is_conversational

    if not is_conversational({"prompt": prompts[0]}):
        return list(prompts)
    return [
        apply_chat_template(
            {"prompt": prompt}, trainer.processing_class, **trainer.chat_template_kwargs
        )["prompt"]
        for prompt in prompts
    ]
