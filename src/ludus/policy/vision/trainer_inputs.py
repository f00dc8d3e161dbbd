"""Image inputs for the forward pass of TRL's trainers.

The images of an episode are those of its messages, processed as in the rollout.
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
    """Return `pixel_values`, `image_grid_thw`, `num_images` and `mm_token_type_ids`.

    They are on the device of `ids`, which has a row for each episode: prompt and completion, padded
    in any way. Empty if no episode has an image.
    """
    rows = [images_in_tokens(vision, episode) for episode in episodes]
    inputs = stack_images([image for row in rows for image in row])
    if not inputs:
        return {}
    return {
        **{name: value.to(ids.device) for name, value in inputs.items()},
        "num_images": [len(row) for row in rows],
        "mm_token_type_ids": (ids == vision.image_token_id).long(),
    }


def image_inputs(vision: VisionProcessor, urls: Sequence[str], ids: Any) -> dict[str, Any]:
    """Return the forward pass's inputs for rows with these images; empty if there are none."""
    if not urls:
        return {}
    return {
        **stack_images(vision.process_urls(urls)),
        "mm_token_type_ids": (ids == vision.image_token_id).long(),
    }


def images_in_tokens(vision: VisionProcessor, episode: Episode) -> tuple[ProcessedImage, ...]:
    """Return the images among an episode's ids.

    The model never saw the messages that ended the episode, so their images are not among the ids.
    """
    ids = episode.tokens.ids if episode.tokens is not None else ()
    num_tokens = sum(token == vision.image_token_id for token in ids)
    images = vision.process_messages(episode.messages) if num_tokens else ()
    cumulative = [0, *accumulate(image.num_tokens for image in images)]
    if num_tokens not in cumulative:
        raise RunError(
            f"The tokens of {episode.episode_id} do not match its images. Train on episodes that "
            "this model has played."
        )
    return images[: cumulative.index(num_tokens)]


def drop_empty_image_inputs(model: Any) -> None:
    """Let a model's forward pass accept a trainer's inputs for batches without images.

    A trainer splits a step's images by rows, and passes empty tensors for rows without images; the
    models would fail on them.
    """

    def drop_if_empty(
        model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        grids = kwargs.get("image_grid_thw")
        if grids is None or len(grids):
            return args, kwargs
        image_names = {"pixel_values", "image_grid_thw", "mm_token_type_ids"}
        return args, {name: value for name, value in kwargs.items() if name not in image_names}

    model.register_forward_pre_hook(drop_if_empty, with_kwargs=True)
