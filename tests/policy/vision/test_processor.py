"""Pictures among words: marks in the text, placeholders among the ids, patches for the model."""

from __future__ import annotations

import pytest
import torch

from ludus.data.content import Image, Text
from ludus.data.messages import ImagePart, ImageUrl, Message, message_from_content
from ludus.errors import RequestRefused
from ludus.policy.vision.images import message_image_urls, stack_images
from ludus.policy.vision.processor import VisionProcessor
from policy.vision.image_env import MARK, picture
from policy.vision.tiny_vlms import processor_of

TOKEN = 7


@pytest.fixture
def eyes() -> VisionProcessor:
    return VisionProcessor(processor_of(), placeholder=MARK, image_token_id=TOKEN)


def test_a_picture_stands_between_words_as_a_mark(eyes: VisionProcessor) -> None:
    one, other = picture(16, 16, "red"), picture(16, 16, "blue")
    parts: list[Text | Image] = [Text(text="a"), Text(text="b"), one, other, Text(text="c")]
    heard = message_from_content("tool", parts, tool_call_id="t")
    assert eyes.message_to_text(heard) == Message(
        role="tool", content=f"a\nb{MARK}{MARK}c", tool_call_id="t"
    )
    plain = Message(role="user", content="a")
    assert eyes.message_to_text(plain) is plain


def test_a_mark_becomes_as_long_as_its_picture(eyes: VisionProcessor) -> None:
    messages = [
        message_from_content("user", [picture(24, 16, "red")]),
        Message(role="assistant", content="I see."),
        message_from_content("tool", [Text(text="And:"), picture(16, 32, "blue")]),
    ]
    pictures = eyes.process_messages(messages)
    assert [(each.grid_thw, each.num_tokens) for each in pictures] == [
        ((1, 4, 6), 6),
        ((1, 8, 4), 8),
    ]
    ids = eyes.expand_placeholders([1, TOKEN, 2, TOKEN, 3], pictures)
    assert ids == [1, *[TOKEN] * 6, 2, *[TOKEN] * 8, 3]


def test_pictures_are_patches_one_after_the_other(eyes: VisionProcessor) -> None:
    red, blue = eyes.process_messages(
        [message_from_content("user", [picture(24, 16, "red"), picture(16, 32, "blue")])]
    )
    made = stack_images([red, blue])
    assert made["image_grid_thw"].tolist() == [[1, 4, 6], [1, 8, 4]]
    assert torch.equal(made["pixel_values"], torch.cat([red.pixel_values, blue.pixel_values]))
    assert len(red.pixel_values) == 24 and not torch.equal(
        red.pixel_values[0], blue.pixel_values[0]
    )
    assert stack_images([]) == {}


def test_a_picture_that_many_are_shown_is_looked_at_once(eyes: VisionProcessor) -> None:
    first, again = (
        eyes.process_messages([message_from_content("user", [picture(16, 16, "red")])])
        for _ in range(2)
    )
    assert first[0] is again[0]


def test_what_the_environment_writes_is_not_taken_for_a_picture(eyes: VisionProcessor) -> None:
    with pytest.raises(RequestRefused, match=r"The environment writes .*image_pad.* in its words"):
        eyes.expand_placeholders(
            [1, TOKEN, TOKEN],
            eyes.process_messages([message_from_content("user", [picture(16, 16, "red")])]),
        )


def test_a_picture_that_is_elsewhere_is_not_fetched(eyes: VisionProcessor) -> None:
    part = ImagePart(image_url=ImageUrl(url="https://example.com/cat.png"))
    message = Message(role="user", content=(part,))
    assert message_image_urls([message]) == ["https://example.com/cat.png"]
    with pytest.raises(RequestRefused, match=r"by its address \(https://example.com/cat.png\)"):
        eyes.process_messages([message])


@pytest.mark.parametrize("data", [b"no picture", b""])
def test_a_damaged_picture_is_one_line(eyes: VisionProcessor, data: bytes) -> None:
    with pytest.raises(RequestRefused, match="a picture that cannot be opened") as raised:
        eyes.process_messages([message_from_content("user", [Image.from_bytes(data)])])
    assert "\n" not in str(raised.value)


def test_a_picture_of_an_impossible_shape_is_one_line(eyes: VisionProcessor) -> None:
    with pytest.raises(RequestRefused, match="a picture of 900x2 that this model cannot look at"):
        eyes.process_messages([message_from_content("user", [picture(900, 2, "red")])])
