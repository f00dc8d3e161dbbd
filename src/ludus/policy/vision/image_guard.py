"""Process the images of an environment, or end the run if the model cannot take images.

A text-only model meets the images of an environment in every episode, so the first one ends the
whole run: leaving images out would change the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ludus.data.messages import Message
from ludus.errors import ProviderRefuses
from ludus.policy.vision.images import ProcessedImage, message_image_urls
from ludus.policy.vision.model_families import SUPPORTED_FAMILIES

if TYPE_CHECKING:
    from ludus.policy.load import Policy


async def process_images(
    policy: Policy, environment: str, messages: Sequence[Message]
) -> tuple[ProcessedImage, ...]:
    """Process the images in the messages for the policy's model."""
    if not message_image_urls(messages):
        return ()
    if policy.vision is None:
        raise ProviderRefuses(
            f"{environment} shows images, and {policy.name} reads only text. Use a vision model "
            f"({SUPPORTED_FAMILIES}, or one of the provider openai), or an environment without "
            "images."
        )
    # In a thread: preprocessing would block the event loop, which serves other episodes.
    return await asyncio.to_thread(policy.vision.process_messages, messages)
