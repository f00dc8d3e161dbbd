"""An environment with images, and a tiny vision model trained to name its colours."""

from __future__ import annotations

import asyncio
from functools import cache
from io import BytesIO
from typing import Any

import torch
from PIL import Image as Pillow

from ludus import Episode, ToolCall, ToolEnvironment, connect, tool
from ludus.agents.oracle import OracleAgent
from ludus.data.messages import Image, Text
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.chat.rendering import render, to_template_message
from ludus.policy.load import Policy
from ludus.policy.vision.processor import VisionProcessor, stack_images
from ludus.rollout import Assignment, run_episode
from policy.vision.tiny_vlms import SIGHT, processor_of, tiny, tokenizer_of

GALLERY = "policy.vision.image_env:Gallery"
COLOURS = ("red", "blue")
MARK = "<|vision_start|><|image_pad|><|vision_end|>"


def picture(width: int, height: int, colour: str) -> Image:
    file = BytesIO()
    Pillow.new("RGB", (width, height), colour).save(file, "PNG")
    return Image.from_bytes(file.getvalue())


class Gallery(ToolEnvironment):
    """Name the colour of an image behind a curtain. The seed picks it."""

    def reset(self, *, seed: int | None = None) -> Any:
        self.colour, self.drawn = COLOURS[(seed or 0) % 2], False
        return [Text(text="Draw the curtain."), picture(24, 16, "green")]

    @tool
    def draw(self) -> Any:
        """Draw the curtain."""
        self.drawn = True
        return [Text(text="Behind it:"), picture(16, 32, self.colour), Text(text="Name it.")]

    @tool
    def name(self, colour: str) -> Any:
        """Say the colour.

        Args:
            colour: Its name.
        """
        self.finish(float(colour == self.colour))
        return [picture(16, 16, self.colour)]

    def oracle(self) -> ToolCall:
        if not self.drawn:
            return ToolCall(name="draw", arguments={})
        return ToolCall(name="name", arguments={"colour": self.colour})


class Forger(ToolEnvironment):
    """Writes an image placeholder as text."""

    def reset(self, *, seed: int | None = None) -> str:
        return f"Look: {MARK}"

    @tool
    def leave(self) -> str:
        """Leave."""
        return self.finish(0.0, "Gone.")


async def solved(seed: int) -> Episode:
    async with connect(GALLERY).session() as session:
        return await run_episode(session, OracleAgent(), Assignment.of(GALLERY, seed=seed))


def untaught(family: str, *, seed: int = 0) -> Policy:
    tokenizer = tokenizer_of(family)
    _, _, image, video = tokenizer.convert_tokens_to_ids(list(SIGHT))
    vision = VisionProcessor(
        processor_of(), image_token_id=image, suppressed_ids=frozenset({video})
    )
    model = tiny(family, tokenizer, seed=seed)
    return Policy("tiny-vlm", model, tokenizer, find_chat_format(tokenizer), vision=vision)


@cache
def taught(family: str) -> Policy:
    """A policy that is trained on both colours, and must look to tell them apart."""
    policy = untaught(family)
    batches = [_training_batch(policy, asyncio.run(solved(seed))) for seed in range(len(COLOURS))]
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=5e-3)
    for _ in range(300):
        loss = sum(policy.model(**batch).loss for batch in batches)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            return policy
    raise AssertionError("the loss did not converge")


def _training_batch(policy: Policy, episode: Episode) -> dict[str, Any]:
    vision = policy.vision
    assert vision is not None
    messages = [
        to_template_message(vision.message_to_text(message)) for message in episode.messages
    ]
    rendered = render(policy.tokenizer, messages, episode.tools, policy.chat_format.template)
    images = vision.process_messages(episode.messages)
    sizes = iter(image.num_tokens for image in images)
    widths = [next(sizes) if token == vision.image_token_id else 1 for token in rendered.ids]
    mask = [
        has_loss
        for has_loss, width in zip(rendered.mask, widths, strict=True)
        for _ in range(width)
    ]
    ids = torch.tensor([vision.expand_placeholders(rendered.ids, images)])
    return {
        "input_ids": ids,
        "labels": ids.masked_fill(torch.tensor([mask]) == 0, -100),
        "mm_token_type_ids": (ids == vision.image_token_id).long(),
        **stack_images(images),
    }
