"""A local model, ready to generate: weights, tokenizer and the dialect it is spoken to in.

Where the model is, is `ludus.policy.source`'s business, and how it generates
`ludus.policy.generate`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.errors import ConfigError, LudusError
from ludus.policy import gguf
from ludus.policy.complaint import why
from ludus.policy.device import choose_device, choose_dtype
from ludus.policy.fingerprint import fingerprint
from ludus.policy.quiet import quiet, require
from ludus.policy.smollm2 import Say
from ludus.policy.source import Kind, Source, base_of, find
from ludus.policy.tokenizer import tokenizer_of

if TYPE_CHECKING:
    from ludus.policy.dialect import Dialect
    from ludus.policy.eyes.sight import Eyes

_WRITES_ON = ("CausalLM", "LMHead")
"""What the class of a model that only continues a text is called."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


@dataclass(frozen=True, slots=True)
class Policy:
    """A model with all that is needed to talk with it."""

    name: str
    model: Any
    tokenizer: Any
    dialect: Dialect
    weights: str | None = None
    """The fingerprint of the files that the weights were read from, where it is known."""
    eyes: Eyes | None = None
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
    say: Say | None = None,
) -> Policy:
    """The model of that name: an adapter merged into its base, in eval mode, on the device.

    Where none is named, the fastest device is taken, and the numbers that it is fastest in. The
    arguments of its chat template go over those that it was saved with.
    """
    from ludus.policy.dialect import dialect_of
    from ludus.policy.eyes.families import eyes_of

    device, dtype = _checked(device, dtype)
    source = find(name, say=say)
    # What can be refused in a second is, before the weights are read.
    tokenizer = tokenizer_of(source)
    dialect = dialect_of(tokenizer, chat_template_kwargs=chat_template_kwargs)
    eyes = eyes_of(source, tokenizer, dialect)
    weights = fingerprint(name)
    model = _placed(source, device, dtype, sees=True)
    dialect = replace(dialect, stops=dialect.stops | ends_of(model))
    return Policy(name, model, tokenizer, dialect, weights, eyes)


def load_model(
    name: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    say: Say | None = None,
    sees: bool = False,
) -> Any:
    """The weights alone, in eval mode, under a name that an adapter over them can record.

    A model that sees is refused but for those who say that they can deal with one (`sees`).
    """
    device, dtype = _checked(device, dtype)
    return _placed(find(name, say=say), device, dtype, sees=sees)


def ends_of(model: Any) -> frozenset[int]:
    """What ends a turn by the word of the model's makers, which may be more than templates show."""
    named = getattr(model.generation_config, "eos_token_id", None)
    return frozenset([named] if isinstance(named, int) else named or ())


def _checked(device: str | None, dtype: str | None) -> tuple[str, str]:
    require("Using a local model", "torch")
    device = choose_device(device)
    return device, choose_dtype(dtype, device)


def _placed(source: Source, device: str, dtype: str, *, sees: bool) -> Any:
    with quiet():
        model = _weights(source, dtype, sees=sees)
        try:
            model = model.to(device).eval()
        except Exception as error:
            raise ConfigError(
                why(source.name, "weights", error, unreached=source.unreached)
            ) from None
    model.name_or_path = model.config._name_or_path = source.lasting
    return model


def _weights(source: Source, dtype: str, *, sees: bool) -> Any:
    if source.kind is Kind.ADAPTER:
        return _merged(source, _weights(base_of(source), dtype, sees=sees))
    try:
        model, info = _read(source, dtype, sees=sees)
    except LudusError:
        raise
    except Exception as error:
        raise ConfigError(why(source.name, "weights", error, unreached=source.unreached)) from None
    _refuse_holes(source, info)
    return model


def _read(source: Source, dtype: str, *, sees: bool) -> tuple[Any, dict[str, Any]]:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    from ludus.policy.eyes import families

    if source.kind is Kind.GGUF:
        return gguf.read_model(Path(source.path), dtype=dtype)
    if source.kind is Kind.FOLDER:
        _refuse_empty(source)
    where: dict[str, Any] = {
        "local_files_only": source.cached or source.kind is Kind.FOLDER,
        "trust_remote_code": False,
    }
    config = AutoConfig.from_pretrained(source.path, **where)
    make: Any = AutoModelForCausalLM
    if sees and families.sees(config):
        make = AutoModelForImageTextToText
    else:
        _refuse_others(source, config, f", or one that sees: {families.KNOWN}" if sees else "")
    loaded: tuple[Any, dict[str, Any]] = make.from_pretrained(
        source.path, dtype=dtype, output_loading_info=True, **where
    )
    return loaded


def _merged(adapter: Source, base: Any) -> Any:
    require("Using an adapter", "peft")
    from peft import PeftModel

    try:
        model: Any = PeftModel.from_pretrained(base, adapter.path, local_files_only=True)
        return model.merge_and_unload()
    except Exception as error:
        raise ConfigError(why(adapter.name, "adapter", error)) from None


def _refuse_empty(source: Source) -> None:
    folder = Path(source.path)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{source.name} holds no config.json, so it is no model. Name a folder that "
            "`save_pretrained` wrote."
        )
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise ConfigError(
            f"{source.name} holds no weights: there is no .safetensors file in it. Was its "
            "training stopped before it ended?"
        )


def _refuse_others(source: Source, config: Any, instead: str) -> None:
    """Encoders and models with other eyes could be made to load, and would write nonsense."""
    classes = config.architectures or []
    if classes and not any(part in name for name in classes for part in _WRITES_ON):
        raise ConfigError(
            f"{source.name} is a {classes[0]}, which does not write text alone. Name a language "
            f"model (a ...ForCausalLM{instead})."
        )


def _refuse_holes(source: Source, info: dict[str, Any]) -> None:
    """Weights that are not in the file were filled in at random."""
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(
            f"The weights of {source.name} are not whole: {len(missing)} parts are missing, "
            f"{missing[0]} among them."
        )
