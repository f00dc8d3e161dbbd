"""Showing a model what an environment shows, or saying at once that it cannot see.

A model without eyes meets every picture of an environment alike, so the whole run is ended by the
first of them: an episode in which pictures were left out would be another task.
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
    """The pictures in what was said, as this model takes them in."""
    if not message_image_urls(messages):
        return ()
    if policy.vision is None:
        raise ProviderRefuses(
            f"{environment} shows pictures, and {policy.name} reads only text. Play it with a "
            f"model that sees ({SUPPORTED_FAMILIES}, or one of --provider openai), or have the environment "
            "write."
        )
    # In a thread, because others are played meanwhile.
    return await asyncio.to_thread(policy.vision.process_messages, messages)
