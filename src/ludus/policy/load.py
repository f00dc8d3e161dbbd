"""Load a local model with its tokenizer, chat format and image processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ludus.errors import ConfigError, LudusError
from ludus.policy.device import choose_device, choose_dtype
from ludus.policy.hf_loading import require_transformers, suppress_hf_logging
from ludus.policy.model_ref import (
    ModelKind,
    ModelRef,
    check_model_files,
    fingerprint_model,
    model_load_error,
    resolve_base_model,
    resolve_model,
)
from ludus.policy.sampling_config import eos_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ludus.policy.chat.chat_format import ChatFormat
    from ludus.policy.vision.processor import VisionProcessor

_CAUSAL_LM_CLASS_PARTS = ("CausalLM", "LMHead")
"""One of them is in the class name of every text-only language model."""
_LENGTH_WARNING = "sequence-length-is-longer-than-the-specified-maximum"


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with its tokenizer, chat format and image processor."""

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    chat_format: ChatFormat
    weights: str | None = None
    """The fingerprint of the weight files, if known."""
    vision: VisionProcessor | None = None
    """None for a text-only model."""


def load(
    name: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Policy:
    """Load a model in eval mode on the device; an adapter is merged into its base model.

    Device and dtype default to the fastest. `chat_template_kwargs` override the ones saved with the
    model.
    """
    from ludus.policy.chat.chat_format import find_chat_format
    from ludus.policy.vision.processor import load_vision_processor

    require_transformers("Using a local model", "torch")
    device = choose_device(device)
    ref = resolve_model(name)
    # Before the weights, because their errors show within a second.
    tokenizer = load_tokenizer(ref)
    chat_format = find_chat_format(tokenizer, chat_template_kwargs=chat_template_kwargs)
    vision = load_vision_processor(ref)
    weights = fingerprint_model(name)
    model = _load_on_device(ref, device, dtype, allow_vision=True)
    stop_token_ids = chat_format.stop_token_ids | eos_token_ids(model)
    chat_format = replace(chat_format, stop_token_ids=stop_token_ids)
    return Policy(name, model, tokenizer, chat_format, weights, vision)


def load_tokenizer(model: str | ModelRef) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder, a Hub id (`org/name`), `smollm2` or a resolved model.

    An adapter without a tokenizer uses its base model's. While the Hub cannot be reached, its
    local cache is used. Custom code of a model is not run.
    """
    ref = resolve_model(model) if isinstance(model, str) else model
    require_transformers("Loading a tokenizer")
    from transformers import AutoTokenizer

    if ref.kind is ModelKind.ADAPTER and not ref.has_tokenizer:
        return load_tokenizer(resolve_base_model(ref))
    if ref.kind is ModelKind.FOLDER and not ref.has_tokenizer:
        raise ConfigError(
            f"{ref.name} holds no tokenizer, so it is not a model. Name a folder with a "
            "tokenizer.json."
        )
    try:
        with suppress_hf_logging():
            tokenizer = AutoTokenizer.from_pretrained(ref.path, **ref.loading_kwargs)
    except Exception as error:
        raise model_load_error(ref, "tokenizer", error) from None
    if not tokenizer.is_fast:
        raise ConfigError(
            f"{ref.name} has only a slow tokenizer, which does not map tokens to characters. "
            "Name a model that has a tokenizer.json."
        )
    # Marks the warning as shown: Ludus reports the lengths of rows itself.
    tokenizer.deprecation_warnings[_LENGTH_WARNING] = True
    # Otherwise `save_pretrained` would write them into tokenizer_config.json.
    for name in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer


def load_model(
    name: str, *, device: str | None = None, dtype: str | None = None, allow_vision: bool = False
) -> PreTrainedModel:
    """Load the weights alone, in eval mode.

    Vision-language models are rejected unless `allow_vision`. The model's `name_or_path` is a name
    that an adapter's config can record.
    """
    require_transformers("Using a local model", "torch")
    device = choose_device(device)
    return _load_on_device(resolve_model(name), device, dtype, allow_vision=allow_vision)


def _load_on_device(
    ref: ModelRef, device: str, dtype: str | None, *, allow_vision: bool
) -> PreTrainedModel:
    dtype = choose_dtype(dtype, device)
    with suppress_hf_logging():
        model = _load_weights(ref, dtype, allow_vision=allow_vision)
        try:
            model = model.to(device).eval()
        except Exception as error:
            raise model_load_error(ref, "weights", error) from None
    if damaged := find_nonfinite_weights(model):
        raise ConfigError(
            f"The weights of {ref.name} are not finite in {dtype}: {damaged} holds NaN or infinite "
            "values, as after training that diverged. Use another model, or another dtype."
        )
    model.name_or_path = model.config._name_or_path = ref.portable_name
    return model


def find_nonfinite_weights(model: PreTrainedModel) -> str | None:
    """The name of the first weight with NaN or infinite values; None if all are finite."""
    import torch

    weights = {
        name: weight.detach()
        for name, weight in model.named_parameters()
        # Quantized weights are integers, or float8, which has no such operations.
        if weight.is_floating_point() and weight.dtype.itemsize > 1 and weight.numel()
    }
    if not weights:
        return None
    # One fast pass: NaN is passed on by the minimum and by the maximum.
    extremes = torch.stack([
        value.float() for weight in weights.values() for value in weight.aminmax()
    ])  # fmt: skip
    finite = extremes.isfinite().view(-1, 2).all(1).tolist()
    return next((name for name, good in zip(weights, finite, strict=True) if not good), None)


def _load_weights(ref: ModelRef, dtype: str, *, allow_vision: bool) -> PreTrainedModel:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    from ludus.policy.vision.processor import SUPPORTED_FAMILIES, supports_images

    if ref.kind is ModelKind.ADAPTER:
        base = _load_weights(resolve_base_model(ref), dtype, allow_vision=allow_vision)
        require_transformers("Using an adapter", "peft")
        from peft import PeftModel

        try:
            adapted = PeftModel.from_pretrained(base, ref.path, local_files_only=True)
            return adapted.merge_and_unload()
        except Exception as error:
            raise model_load_error(ref, "adapter", error) from None
    check_model_files(ref)
    try:
        config = AutoConfig.from_pretrained(ref.path, **ref.loading_kwargs)
        is_vlm = allow_vision and supports_images(config)
        classes = config.architectures or []
        # Encoders and other vision models could be loaded as a causal LM, and would write nonsense.
        if not is_vlm and classes and not any(
            part in name for name in classes for part in _CAUSAL_LM_CLASS_PARTS
        ):  # fmt: skip
            vlms = f", or a vision model: {SUPPORTED_FAMILIES}" if allow_vision else ""
            raise ConfigError(
                f"{ref.name} is a {classes[0]}, which is not a text-only language model. Name a "
                f"...ForCausalLM{vlms}."
            )
        auto_class = AutoModelForImageTextToText if is_vlm else AutoModelForCausalLM
        model, info = auto_class.from_pretrained(
            ref.path, dtype=dtype, output_loading_info=True, **ref.loading_kwargs
        )
    except LudusError:
        raise
    except Exception as error:
        raise model_load_error(ref, "weights", error) from None
    # transformers initializes weights that are not in the files at random.
    if missing := sorted(info["missing_keys"]):
        raise ConfigError(
            f"The weights of {ref.name} are incomplete: {len(missing)} tensors are missing, "
            f"{missing[0]} among them."
        )
    return model
