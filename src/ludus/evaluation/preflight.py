"""Checks of a local model before an evaluation starts, without reading its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ludus.errors import TemplateUnmarked
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.device import choose_device, choose_dtype
from ludus.policy.load_errors import require_transformers
from ludus.policy.model_ref import resolve_model
from ludus.policy.preflight import check_model
from ludus.policy.tokenizer import load_tokenizer_from


def check_local_model(
    model: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Raise if the model, its device or its chat template cannot be used."""
    check_model(model, device=device, dtype=dtype)
    require_transformers("Evaluating a local model", "torch")
    choose_dtype(dtype, choose_device(device))
    source = resolve_model(model)
    try:
        find_chat_format(load_tokenizer_from(source), chat_template_kwargs=chat_template_kwargs)
    except TemplateUnmarked as error:
        raise TemplateUnmarked(f"{model} cannot be evaluated. {error}") from None
