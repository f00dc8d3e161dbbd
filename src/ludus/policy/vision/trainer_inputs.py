"""What a trainer needs beside the ids of rows and episodes in which pictures were seen.

It is what the forward pass of TRL's trainers takes. An episode's pictures are those of its
messages, looked at with the eyes that the policy played with, so that it learns from what it saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ludus.data.episode import Episode
from ludus.errors import RunError
from ludus.policy.vision.images import ProcessedImage, stack_images
from ludus.policy.vision.processor import VisionProcessor


def episode_image_inputs(
    vision: VisionProcessor, episodes: Sequence[Episode], ids: Any
) -> dict[str, Any]:
    """`pixel_values`, `image_grid_thw`, `num_images` and `mm_token_type_ids`, on the ids' device.

    `ids` has a row for each episode: prompt and completion, padded in any way. Where no episode
    has a picture, there is nothing to be given.
    """
    rows = [images_in_tokens(vision, episode) for episode in episodes]
    made = stack_images([picture for row in rows for picture in row])
    if not made:
        return {}
    return {
        **{name: value.to(ids.device) for name, value in made.items()},
        "num_images": [len(row) for row in rows],
        "mm_token_type_ids": (ids == vision.image_token_id).long(),
    }


def image_inputs(vision: VisionProcessor, urls: Sequence[str], ids: Any) -> dict[str, Any]:
    """What a forward pass takes beside the ids of rows that show these images, in their order.

    Nothing where there are none.
    """
    if not urls:
        return {}
    return {
        **stack_images(vision.process_urls(urls)),
        "mm_token_type_ids": (ids == vision.image_token_id).long(),
    }


def images_in_tokens(vision: VisionProcessor, episode: Episode) -> tuple[ProcessedImage, ...]:
    """The pictures that are among an episode's ids: what ended it was never shown to the model."""
    ids = episode.tokens.ids if episode.tokens is not None else ()
    wanted = sum(each == vision.image_token_id for each in ids)
    pictures = vision.process_messages(episode.messages) if wanted else ()
    reached = [0, *accumulate(picture.num_tokens for picture in pictures)]
    if wanted not in reached:
        raise RunError(
            f"The tokens of {episode.episode_id} and its pictures do not belong together. Train on "
            "episodes as this very model played them."
        )
    return pictures[: reached.index(wanted)]


def allow_batches_without_images(model: Any) -> None:
    """Have a model's forward pass take rows of which none has a picture.

    A trainer cuts a step's pictures up by rows, and hands on what is left: it may be nothing, over
    which these models stumble.
    """
    model.register_forward_pre_hook(_drop_empty_image_inputs, with_kwargs=True)


def _drop_empty_image_inputs(
    model: Any, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    grids = named.get("image_grid_thw")
    if grids is None or len(grids):
        return given, named
    left = {"pixel_values", "image_grid_thw", "mm_token_type_ids"}
    return given, {name: value for name, value in named.items() if name not in left}
