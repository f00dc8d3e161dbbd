"""Ids and loss masks equal those of TRL's trainers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_tokenizers import of_family, with_tokens_of
from transformers import PreTrainedTokenizerFast

from ludus.errors import TemplateRefused
from ludus.policy.chat.chat_format import (
    FAMILIES,
    _trl_replacements,
    find_chat_format,
    set_chat_format,
)
from ludus.policy.chat.rendering import RenderedConversation, render
from policy.conversations import ENDED, INSTRUCTED, PLAYED, TALK, TOOLS, Row
from policy.trl_batches import IdsAndMask, dpo_batch, sft_batch

pytestmark = pytest.mark.filterwarnings("default")  # TRL and torch warn about each other.

# A row with tools comes first: `from_list` takes the columns from the first row.
ALL_ROWS = [PLAYED, TALK, INSTRUCTED, ENDED]
WITH_TOOLS = [
    "qwen3",
    "qwen2_5",
    "qwen3_5_think",
    "deepseekv3",
    "glm4moe",
    "lfm2_v2",
    "nemotron_3_nano",
]
WITHOUT_TOOLS = ["llama3", "phi3", "gemma3"]


def tokenizer_with_ludus_template(family: str) -> PreTrainedTokenizerFast:
    """A tokenizer with Ludus's template, which TRL uses unchanged."""
    tokenizer = with_tokens_of(family)
    set_chat_format(tokenizer, find_chat_format(tokenizer))
    return tokenizer


def training_template(tokenizer: PreTrainedTokenizerFast) -> str:
    """TRL's training variant of the tokenizer's template, or that of its chat format."""
    known = _trl_replacements().get(tokenizer.chat_template)
    return find_chat_format(tokenizer).template if known is None else known[1]


def render_rows(
    rows: list[Row], student: str | PreTrainedTokenizerFast, max_length: int | None = None
) -> list[IdsAndMask]:
    """Render rows with Ludus; rows without loss are dropped, as TRL does."""
    tokenizer = of_family(student) if isinstance(student, str) else student
    template = training_template(tokenizer)
    rendered = [
        render(
            tokenizer,
            row["messages"] if "messages" in row else row["prompt"] + row["completion"],
            row.get("tools"),
            template,
            num_prompt_messages=len(row.get("prompt", ())),
        ).truncate(max_length)
        for row in rows
    ]
    return sorted(map(ids_and_mask, (each for each in rendered if any(each.mask))))


def ids_and_mask(rendered: RenderedConversation) -> IdsAndMask:
    return list(rendered.ids), list(rendered.mask)


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_rows_with_tools_and_reasoning(family: str, tmp_path: Path) -> None:
    expected = sft_batch(ALL_ROWS, of_family(family), tmp_path)
    assert render_rows(ALL_ROWS, family) == expected
    assert len(expected) == len(ALL_ROWS)


@pytest.mark.parametrize("family", WITHOUT_TOOLS)
def test_templates_without_tools(family: str, tmp_path: Path) -> None:
    rows = [TALK, INSTRUCTED]
    assert render_rows(rows, family) == sft_batch(rows, of_family(family), tmp_path)


@pytest.mark.parametrize("max_length", [400, 450, 560])
def test_truncated_rows(max_length: int, tmp_path: Path) -> None:
    expected = sft_batch(ALL_ROWS, of_family("qwen3"), tmp_path, max_length)
    assert render_rows(ALL_ROWS, "qwen3", max_length) == expected
    assert max(len(ids) for ids, _ in expected) <= max_length


def test_rows_with_a_separate_prompt(tmp_path: Path) -> None:
    at = [message["role"] for message in PLAYED["messages"]].index("tool") + 1
    cut = {"prompt": PLAYED["messages"][:at], "completion": PLAYED["messages"][at : at + 1]}
    rows = [{**cut, "tools": TOOLS}]
    assert render_rows(rows, "qwen3") == sft_batch(rows, of_family("qwen3"), tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_ludus_templates(family: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_with_ludus_template(family)
    assert render_rows(ALL_ROWS, tokenizer) == sft_batch(ALL_ROWS, tokenizer, tmp_path)


@pytest.mark.parametrize("family", ["chatml", "llama3", "gemma"])
def test_pairs_equal_trls_without_the_environments_tokens(family: str, tmp_path: Path) -> None:
    prompt, completion = PLAYED["messages"][:2], PLAYED["messages"][2:]
    row = {"prompt": prompt, "chosen": completion, "rejected": completion[:1], "tools": TOOLS}
    tokenizer = tokenizer_with_ludus_template(family)
    template = find_chat_format(tokenizer).template
    sides = [
        render(tokenizer, prompt + side, TOOLS, template, num_prompt_messages=len(prompt))
        for side in (completion, completion[:1])
    ]
    ours = sorted(map(ids_and_mask, sides))
    trl = dpo_batch([row], tokenizer, tmp_path)
    assert [ids for ids, _ in ours] == [ids for ids, _ in trl]
    for side, (_, mask), (_, trl_mask) in zip(
        (completion, completion[:1]), ours[::-1], trl[::-1], strict=True
    ):
        assistant = render(tokenizer, [*prompt, *side], TOOLS, template).mask
        assert mask == [a & b for a, b in zip(trl_mask, assistant, strict=True)]


def test_trl_fails_on_rows_that_a_template_refuses(tmp_path: Path) -> None:
    tokenizer = of_family("gemma3")
    with pytest.raises(TemplateRefused, match="must alternate"):
        render(
            tokenizer,
            PLAYED["messages"],
            TOOLS,
            training_template(tokenizer),
        )
    with pytest.raises(Exception, match="must alternate"):
        sft_batch([PLAYED], tokenizer, tmp_path)
