"""The tokens that are marked here are those that TRL's real trainers train on, one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
from students import of_family, with_tokens_of
from transformers import PreTrainedTokenizerFast

from ludus.errors import TemplateRefused
from ludus.policy.chat.chat_format import FAMILIES, find_chat_format, set_chat_format
from ludus.policy.chat.rendering import RenderedConversation, render, render_pair
from policy.conversations import ENDED, INSTRUCTED, PLAYED, TALK, TOOLS, Row
from policy.trl_batches import Trained, dpo, sft

pytestmark = pytest.mark.filterwarnings("default")  # TRL and torch warn about each other.

# One with tools comes first: `from_list` takes the columns of the first row for all.
EVERYTHING = [PLAYED, TALK, INSTRUCTED, ENDED]
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


def adopted(family: str) -> PreTrainedTokenizerFast:
    """A student that has been given our own template, which TRL then takes as it is."""
    tokenizer = with_tokens_of(family)
    set_chat_format(tokenizer, find_chat_format(tokenizer))
    return tokenizer


def marked(
    rows: list[Row], student: str | PreTrainedTokenizerFast, max_length: int | None = None
) -> list[Trained]:
    """As we say that they are trained on. A row of which nothing is left is not trained on."""
    tokenizer = of_family(student) if isinstance(student, str) else student
    template = find_chat_format(tokenizer, tools=False).template
    made = [
        render(
            tokenizer,
            row["messages"] if "messages" in row else row["prompt"] + row["completion"],
            row.get("tools"),
            template,
            num_prompt_messages=len(row.get("prompt", ())),
        ).truncate(max_length)
        for row in rows
    ]
    return sorted(map(as_trained, (each for each in made if any(each.mask))))


def as_trained(made: RenderedConversation) -> Trained:
    return list(made.ids), list(made.mask)


@pytest.mark.parametrize("family", WITH_TOOLS)
def test_with_tools_calls_and_reasoning(family: str, tmp_path: Path) -> None:
    expected = sft(EVERYTHING, of_family(family), tmp_path)
    assert marked(EVERYTHING, family) == expected
    assert len(expected) == len(EVERYTHING)


@pytest.mark.parametrize("family", WITHOUT_TOOLS)
def test_with_templates_that_know_no_tools(family: str, tmp_path: Path) -> None:
    rows = [TALK, INSTRUCTED]
    assert marked(rows, family) == sft(rows, of_family(family), tmp_path)


@pytest.mark.parametrize("max_length", [400, 450, 560])
def test_cut_off_at_a_length(max_length: int, tmp_path: Path) -> None:
    expected = sft(EVERYTHING, of_family("qwen3"), tmp_path, max_length)
    assert marked(EVERYTHING, "qwen3", max_length) == expected
    assert max(len(ids) for ids, _ in expected) <= max_length


def test_rows_whose_prompt_is_given_apart(tmp_path: Path) -> None:
    at = [message["role"] for message in PLAYED["messages"]].index("tool") + 1
    cut = {"prompt": PLAYED["messages"][:at], "completion": PLAYED["messages"][at : at + 1]}
    rows = [{**cut, "tools": TOOLS}]
    assert marked(rows, "qwen3") == sft(rows, of_family("qwen3"), tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_our_own_templates(family: str, tmp_path: Path) -> None:
    tokenizer = adopted(family)
    assert marked(EVERYTHING, tokenizer) == sft(EVERYTHING, tokenizer, tmp_path)


@pytest.mark.parametrize("family", ["chatml", "llama3", "gemma"])
def test_pairs_are_trls_without_what_the_environment_wrote(family: str, tmp_path: Path) -> None:
    prompt, played = PLAYED["messages"][:2], PLAYED["messages"][2:]
    row = {"prompt": prompt, "chosen": played, "rejected": played[:1], "tools": TOOLS}
    tokenizer = adopted(family)
    template = find_chat_format(tokenizer).template
    pair = render_pair(tokenizer, prompt, played, played[:1], TOOLS, template)
    ours = sorted([as_trained(pair.chosen), as_trained(pair.rejected)])
    theirs = dpo([row], tokenizer, tmp_path)
    assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
    for side, (_, mask), (_, wider) in zip(
        (played, played[:1]), ours[::-1], theirs[::-1], strict=True
    ):
        assistant = render(tokenizer, [*prompt, *side], TOOLS, template).mask
        assert mask == [a & b for a, b in zip(wider, assistant, strict=True)]


def test_what_a_template_refuses_ends_the_training_too(tmp_path: Path) -> None:
    tokenizer = of_family("gemma3")
    with pytest.raises(TemplateRefused, match="must alternate"):
        render(
            tokenizer, PLAYED["messages"], TOOLS, find_chat_format(tokenizer, tools=False).template
        )
    with pytest.raises(Exception, match="must alternate"):
        sft([PLAYED], tokenizer, tmp_path)
