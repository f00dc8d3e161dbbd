"""Images in messages: placeholders in the text, image tokens in the ids, patches."""

from __future__ import annotations

import pytest
import torch

from ludus.data.messages import Image, ImagePart, ImageUrl, Message, Text, message_from_content
from ludus.errors import RequestRefused
from ludus.policy.vision.processor import VisionProcessor, message_image_urls, stack_images
from policy.vision.image_env import MARK, picture
from policy.vision.tiny_vlms import processor_of

TOKEN = 7


@pytest.fixture
def vision() -> VisionProcessor:
    return VisionProcessor(processor_of(), image_token_id=TOKEN)


def test_images_become_placeholders_between_texts(vision: VisionProcessor) -> None:
    one, other = picture(16, 16, "red"), picture(16, 16, "blue")
    parts: list[Text | Image] = [Text(text="a"), Text(text="b"), one, other, Text(text="c")]
    message = message_from_content("tool", parts, tool_call_id="t")
    assert vision.message_to_text(message) == Message(
        role="tool", content=f"a\nb{MARK}{MARK}c", tool_call_id="t"
    )
    plain = Message(role="user", content="a")
    assert vision.message_to_text(plain) is plain


def test_placeholders_are_expanded_to_the_images_tokens(vision: VisionProcessor) -> None:
    messages = [
        message_from_content("user", [picture(24, 16, "red")]),
        Message(role="assistant", content="I see."),
        message_from_content("tool", [Text(text="And:"), picture(16, 32, "blue")]),
    ]
    images = vision.process_messages(messages)
    assert [(each.grid_thw, each.num_tokens) for each in images] == [
        ((1, 4, 6), 6),
        ((1, 8, 4), 8),
    ]
    ids = vision.expand_placeholders([1, TOKEN, 2, TOKEN, 3], images)
    assert ids == [1, *[TOKEN] * 6, 2, *[TOKEN] * 8, 3]


def test_images_are_stacked_as_patches(vision: VisionProcessor) -> None:
    red, blue = vision.process_messages(
        [message_from_content("user", [picture(24, 16, "red"), picture(16, 32, "blue")])]
    )
    inputs = stack_images([red, blue])
    assert inputs["image_grid_thw"].tolist() == [[1, 4, 6], [1, 8, 4]]
    assert torch.equal(inputs["pixel_values"], torch.cat([red.pixel_values, blue.pixel_values]))
    assert len(red.pixel_values) == 24 and not torch.equal(
        red.pixel_values[0], blue.pixel_values[0]
    )
    assert stack_images([]) == {}


def test_processed_images_are_cached(vision: VisionProcessor) -> None:
    first, again = (
        vision.process_messages([message_from_content("user", [picture(16, 16, "red")])])
        for _ in range(2)
    )
    assert first[0] is again[0]


def test_a_placeholder_in_the_environments_text_is_rejected(vision: VisionProcessor) -> None:
    with pytest.raises(RequestRefused, match="image_pad"):
        vision.expand_placeholders(
            [1, TOKEN, TOKEN],
            vision.process_messages([message_from_content("user", [picture(16, 16, "red")])]),
        )


def test_remote_images_are_rejected(vision: VisionProcessor) -> None:
    part = ImagePart(image_url=ImageUrl(url="https://example.com/cat.png"))
    message = Message(role="user", content=(part,))
    assert message_image_urls([message]) == ["https://example.com/cat.png"]
    with pytest.raises(RequestRefused, match=r"https://example\.com/cat\.png"):
        vision.process_messages([message])


@pytest.mark.parametrize("data", [b"no picture", b""])
def test_a_damaged_image_is_rejected(vision: VisionProcessor, data: bytes) -> None:
    with pytest.raises(RequestRefused, match="cannot be opened") as caught:
        vision.process_messages([message_from_content("user", [Image.from_bytes(data)])])
    assert "\n" not in str(caught.value)


def test_an_image_that_the_processor_rejects_is_reported_with_its_size(
    vision: VisionProcessor,
) -> None:
    with pytest.raises(RequestRefused, match="900x2"):
        vision.process_messages([message_from_content("user", [picture(900, 2, "red")])])
