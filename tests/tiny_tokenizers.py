"""Students for tests: tokenizers made on the spot, under the templates that real families have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ludus.policy.chat.chat_format import FAMILIES

_WORDS = [
    "You are a careful player. Guess the secret word, one guess at a time.",
    "What is 17 plus 25? The answer is 42, because seven and five make twelve.",
    '{"name": "guess", "arguments": {"word": "crane"}} {"type": "function", "parameters": {}}',
    "user assistant system tool model think Reason about it first, and then call the tool.",
]
_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|return|>",
    "<|end|>",
    "</s>",
    "<eos>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001
)
_SPECIAL = re.compile(r"<[|｜][^<>{}' ]{1,40}[|｜]>|<(?:start|end)_of_turn>|<bos>|<eos>|<pad>")  # noqa: RUF001

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|im_end|>"
    "{% endgeneration %}{% else %}{{ message.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
"""Words alone: it drops tools, calls and reasoning."""
WORDS = CHATML.replace("<|im_", "<|my_")
"""The same in tokens of no family that is known, so that nothing better can be had."""


def _trl_templates() -> Path:
    found = find_spec("trl")
    assert found is not None and found.submodule_search_locations
    return Path(found.submodule_search_locations[0]) / "chat_templates"


def template_of(family: str) -> str:
    """The chat template of a family, from the files that TRL ships."""
    return (_trl_templates() / f"{family}.jinja").read_text(encoding="utf-8")


def trl_chat_formats() -> set[str]:
    """TRL's names of the chat formats that it has training templates of."""
    marked = _trl_templates().glob("*_training.jinja")
    return {path.stem.removesuffix("_training") for path in marked}


@cache
def _trained(special: tuple[str, ...]) -> str:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(_WORDS, trainer)
    return str(made.to_str())


def student(
    template: str | None = CHATML, *, tokens: Sequence[str] = (), **more: Any
) -> PreTrainedTokenizerFast:
    """A tokenizer of a few hundred tokens, in which the template's own marks are one token each."""
    written = "".join([template or "", *tokens])
    end = next((mark for mark in _ENDS if mark in written), "<eos>")
    marks = dict.fromkeys(["<pad>", "<bos>", *_SPECIAL.findall(template or ""), *tokens, end])
    make: Any = PreTrainedTokenizerFast  # Not typed by its makers.
    made: PreTrainedTokenizerFast = make(
        tokenizer_object=Tokenizer.from_str(_trained(tuple(marks))),
        bos_token="<bos>",
        eos_token=end,
        pad_token="<pad>",
        **more,
    )
    made.chat_template = template
    return made


def of_family(family: str, **more: Any) -> PreTrainedTokenizerFast:
    return student(template_of(family), **more)


def with_tokens_of(family: str, **more: Any) -> PreTrainedTokenizerFast:
    """A student without a template, whose vocabulary tells one of Ludus's own families."""
    return student(None, tokens=FAMILIES[family], **more)
