"""Which template is trained under, and how a rendered row is cut into pieces."""

from __future__ import annotations

import subprocess
import sys

import pytest
from students import CHATML, of_family, student

from ludus.errors import LudusError, TemplateRefused, TemplateUnmarked
from ludus.policy.templates import Piece, families, render, training_template, written
from policy.conversations import INSTRUCTED, TALK, said

pytestmark = pytest.mark.filterwarnings("default")  # TRL and torch warn about each other.


def test_a_template_with_marks_is_used_as_it_is() -> None:
    assert training_template(student(CHATML)) is None


@pytest.mark.parametrize("family", families())
def test_a_template_that_trl_knows_is_swapped_as_trl_swaps_it(family: str) -> None:
    from trl.chat_template_utils import get_training_chat_template

    tokenizer = of_family(family)
    assert training_template(tokenizer) == get_training_chat_template(tokenizer)


@pytest.mark.parametrize("family", ["llama3_1", "llama3_2", "gemma4"])
def test_a_template_that_cannot_mark_is_an_error_that_names_those_that_can(family: str) -> None:
    with pytest.raises(TemplateUnmarked, match=r"does not mark.*llama3, .*qwen3") as caught:
        training_template(of_family(family))
    assert isinstance(caught.value, LudusError) and "\n" not in str(caught.value)


def test_one_letter_more_makes_a_template_unknown() -> None:
    known = of_family("qwen3")
    known.chat_template = str(known.chat_template) + " "
    with pytest.raises(TemplateUnmarked):
        training_template(known)


def test_a_template_under_several_names_counts_by_its_default() -> None:
    several = student(None)
    several.chat_template = {"default": CHATML, "tool_use": "{{ raise_exception('tools') }}"}
    assert training_template(several) is None
    assert any(render(several, TALK["messages"], None, None).mask)
    with pytest.raises(TemplateRefused, match="tools"):
        render(several, TALK["messages"], [{"name": "guess"}], None)


def test_the_template_is_found_without_loading_torch() -> None:
    program = "import sys, ludus.policy.templates as t; t.families(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_the_pieces_of_a_row_are_its_whole_text() -> None:
    tokenizer = of_family("qwen2_5")
    template = training_template(tokenizer)
    made = render(tokenizer, INSTRUCTED["messages"], None, template)
    special = frozenset(tokenizer.added_tokens_decoder)
    pieces = list(made.pieces(special))
    assert "".join(piece.text for piece in pieces) == made.text
    assert made.text == written(tokenizer, INSTRUCTED["messages"], None, template)
    assert Piece("<|im_start|>", bears_loss=False, special=True) in pieces
    assert Piece("<|im_end|>", bears_loss=True, special=True) in pieces
    trained = "".join(piece.text for piece in pieces if piece.bears_loss)
    assert "zwölf" in trained and "careful" not in trained


def test_spans_are_the_stretches_that_bear_the_loss() -> None:
    made = render(student(), TALK["messages"], None, None)
    assert len(made.spans) == 2
    for start, end in made.spans:
        assert all(made.mask[start:end]) and not made.mask[start - 1]
    assert sum(end - start for start, end in made.spans) == sum(made.mask)


def test_a_cut_row_is_the_beginning_of_the_whole_one() -> None:
    made = render(student(), TALK["messages"], None, None)
    cut = made.cut(20)
    assert (cut.ids, cut.mask) == (made.ids[:20], made.mask[:20])
    assert made.text.startswith(cut.text) and len(cut.text) < len(made.text)
    assert made.cut(None) is made.cut(len(made.ids)) is made


def test_what_a_template_raises_is_one_line() -> None:
    tokenizer = student(
        "{{ raise_exception('No\n tools here') }}{% generation %}{% endgeneration %}"
    )
    with pytest.raises(TemplateRefused, match=r"refuses it: No tools here$"):
        render(tokenizer, [said("user", "Hi.")], None, None)
