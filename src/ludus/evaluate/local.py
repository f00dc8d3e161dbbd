"""What would stop a local model, found out before anybody plays. Reads no weights.

How a model is loaded is `ludus.policy.load`'s business; here are only its names and files.
"""

from __future__ import annotations

from pathlib import Path

from ludus.errors import BadSetting, TemplateUnmarked
from ludus.policy.device import choose_device, choose_dtype
from ludus.policy.dialect import dialect_of
from ludus.policy.quiet import require
from ludus.policy.source import Kind, Source, base_of, find
from ludus.policy.tokenizer import tokenizer_of

_WEIGHTS = {
    Kind.FOLDER: ("*.safetensors", "pytorch_model*.bin"),
    Kind.ADAPTER: ("adapter_model.*",),
}


def check_local(model: str, *, device: str | None = None, dtype: str | None = None) -> None:
    """Raise, in one line, what can be known to be wrong with the model without loading it."""
    require("Evaluating a local model", "torch")
    choose_dtype(dtype, choose_device(device))
    source = find(model)
    _check_weights(source)
    try:
        dialect_of(tokenizer_of(source))
    except TemplateUnmarked as error:
        raise TemplateUnmarked(f"{model} cannot play. {error}") from None


def _check_weights(source: Source) -> None:
    """Of a file they are the file, and of a model on the Hub they are not here yet."""
    if source.kind is Kind.FOLDER and not (Path(source.path) / "config.json").is_file():
        raise BadSetting(
            f"{source.name} holds no config.json, so it is no model. Name a folder that "
            "`save_pretrained` wrote."
        )
    files = _WEIGHTS.get(source.kind, ())
    if files and not any(any(Path(source.path).glob(pattern)) for pattern in files):
        raise BadSetting(
            f"{source.name} holds no weights: there is no .safetensors file in it. Was its "
            "training stopped before it ended?"
        )
    if source.kind is Kind.ADAPTER:
        _check_weights(base_of(source))
