"""A local model, ready to generate: weights, tokenizer and the dialect it is spoken to in.

Where the model is, is `ludus.policy.model_ref`'s business, and how it generates
`ludus.policy.engine.batcher`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.errors import ConfigError, LudusError
from ludus.policy import gguf
from ludus.policy.device import choose_device, choose_dtype
from ludus.policy.fingerprint import fingerprint
from ludus.policy.hf_logging import require, suppress_hf_logging
from ludus.policy.load_errors import describe_load_error
from ludus.policy.model_ref import ModelKind, ModelRef, resolve_base_model, resolve_model
from ludus.policy.smollm2 import Notify
from ludus.policy.tokenizer import load_tokenizer_from

if TYPE_CHECKING:
    from ludus.policy.chat.chat_format import ChatFormat
    from ludus.policy.vision.processor import VisionProcessor

_CAUSAL_LM_SUFFIXES = ("CausalLM", "LMHead")
"""What the class of a model that only continues a text is called."""
_WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with all that is needed to talk with it."""

    name: str
    model: Any
    tokenizer: Any
    chat_format: ChatFormat
    weights: str | None = None
    """The fingerprint of the files that the weights were read from, where it is known."""
    vision: VisionProcessor | None = None
    """How pictures are shown to it; None: it reads only text."""

    @property
    def device(self) -> str:
        return str(self.model.device)

    @property
    def dtype(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")


def load(
    name: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    notify: Notify | None = None,
) -> Policy:
    """The model of that name: an adapter merged into its base, in eval mode, on the device.

    Where none is named, the fastest device is taken, and the numbers that it is fastest in. The
    arguments of its chat template go over those that it was saved with.
    """
    from ludus.policy.chat.chat_format import find_chat_format
    from ludus.policy.vision.model_families import build_vision_processor

    device, dtype = _choose_device_and_dtype(device, dtype)
    source = resolve_model(name, notify=notify)
    # What can be refused in a second is, before the weights are read.
    tokenizer = load_tokenizer_from(source)
    dialect = find_chat_format(tokenizer, chat_template_kwargs=chat_template_kwargs)
    eyes = build_vision_processor(source, tokenizer, dialect)
    weights = fingerprint(name)
    model = _load_on_device(source, device, dtype, allow_vision=True)
    dialect = replace(dialect, stop_token_ids=dialect.stop_token_ids | eos_token_ids(model))
    return Policy(name, model, tokenizer, dialect, weights, eyes)


def load_model(
    name: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    notify: Notify | None = None,
    allow_vision: bool = False,
) -> Any:
    """The weights alone, in eval mode, under a name that an adapter over them can record.

    A model that sees is refused but for those who say that they can deal with one (`sees`).
    """
    device, dtype = _choose_device_and_dtype(device, dtype)
    return _load_on_device(
        resolve_model(name, notify=notify), device, dtype, allow_vision=allow_vision
    )


def eos_token_ids(model: Any) -> frozenset[int]:
    """What ends a turn by the word of the model's makers, which may be more than templates show."""
    named = getattr(model.generation_config, "eos_token_id", None)
    return frozenset([named] if isinstance(named, int) else named or ())


def _choose_device_and_dtype(device: str | None, dtype: str | None) -> tuple[str, str]:
    require("Using a local model", "torch")
    device = choose_device(device)
    return device, choose_dtype(dtype, device)


def _load_on_device(source: ModelRef, device: str, dtype: str, *, allow_vision: bool) -> Any:
    with suppress_hf_logging():
        model = _load_weights(source, dtype, allow_vision=allow_vision)
        try:
            model = model.to(device).eval()
        except Exception as error:
            raise ConfigError(
                describe_load_error(
                    source.name, "weights", error, hub_unreachable=source.hub_unreachable
                )
            ) from None
    model.name_or_path = model.config._name_or_path = source.portable_name
    return model


def _load_weights(source: ModelRef, dtype: str, *, allow_vision: bool) -> Any:
    if source.kind is ModelKind.ADAPTER:
        return _merge_adapter(
            source, _load_weights(resolve_base_model(source), dtype, allow_vision=allow_vision)
        )
    try:
        model, info = _read_model(source, dtype, allow_vision=allow_vision)
    except LudusError:
        raise
    except Exception as error:
        raise ConfigError(
            describe_load_error(
                source.name, "weights", error, hub_unreachable=source.hub_unreachable
            )
        ) from None
    _check_no_missing_weights(source, info)
    return model


def _read_model(source: ModelRef, dtype: str, *, allow_vision: bool) -> tuple[Any, dict[str, Any]]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    from ludus.policy.vision import model_families

    if source.kind is ModelKind.GGUF:
        return gguf.read_model(Path(source.path), dtype=dtype)
    if source.kind is ModelKind.FOLDER:
        _check_files_exist(source)
    where: dict[str, Any] = {
        "local_files_only": source.cache_only or source.kind is ModelKind.FOLDER,
        "trust_remote_code": False,
    }
    config = AutoConfig.from_pretrained(source.path, **where)
    make: Any = AutoModelForCausalLM
    if allow_vision and model_families.supports_images(config):
        make = AutoModelForImageTextToText
    else:
        _check_architecture(
            source,
            config,
            f", or one that sees: {model_families.SUPPORTED_FAMILIES}" if allow_vision else "",
        )
    loaded: tuple[Any, dict[str, Any]] = make.from_pretrained(
        source.path, dtype=dtype, output_loading_info=True, **where
    )
    return loaded


def _merge_adapter(adapter: ModelRef, base: Any) -> Any:
    require("Using an adapter", "peft")
    from peft import PeftModel

    try:
        model: Any = PeftModel.from_pretrained(base, adapter.path, local_files_only=True)
        return model.merge_and_unload()
    except Exception as error:
        raise ConfigError(describe_load_error(adapter.name, "adapter", error)) from None


def _check_files_exist(source: ModelRef) -> None:
    folder = Path(source.path)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{source.name} holds no config.json, so it is no model. Name a folder that "
            "`save_pretrained` wrote."
        )
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHT_PATTERNS):
        raise ConfigError(
            f"{source.name} holds no weights: there is no .safetensors file in it. Was its "
            "training stopped before it ended?"
        )


def _check_architecture(source: ModelRef, config: Any, instead: str) -> None:
    """Encoders and models with other eyes could be made to load, and would write nonsense."""
    classes = config.architectures or []
    if classes and not any(part in name for name in classes for part in _CAUSAL_LM_SUFFIXES):
        raise ConfigError(
            f"{source.name} is a {classes[0]}, which does not write text alone. Name a language "
            f"model (a ...ForCausalLM{instead})."
        )


def _check_no_missing_weights(source: ModelRef, info: dict[str, Any]) -> None:
    """Weights that are not in the file were filled in at random."""
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(
            f"The weights of {source.name} are not whole: {len(missing)} parts are missing, "
            f"{missing[0]} among them."
        )
