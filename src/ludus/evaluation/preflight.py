"""Checks of candidates that are local models, before an evaluation starts; reads no weights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ludus.errors import TemplateUnmarked
from ludus.evaluation.candidates import Candidate
from ludus.policy.chat.chat_format import find_chat_format
from ludus.policy.device import choose_device, choose_dtype
from ludus.policy.load_errors import require_transformers
from ludus.policy.model_ref import resolve_model
from ludus.policy.preflight import check_model
from ludus.policy.tokenizer import load_tokenizer_from
from ludus.rollout.progress import PhaseProgress, ProgressCallback


def check_candidate_model(
    model: str,
    *,
    device: str | None = None,
    dtype: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Raise if the model of a candidate, its device or its chat template cannot be used."""
    check_model(model, device=device, dtype=dtype)
    require_transformers("Evaluating a local model", "torch")
    choose_dtype(dtype, choose_device(device))
    source = resolve_model(model)
    try:
        find_chat_format(load_tokenizer_from(source), chat_template_kwargs=chat_template_kwargs)
    except TemplateUnmarked as error:
        raise TemplateUnmarked(f"{model} cannot be evaluated. {error}") from None


async def check_local_models(candidates: Sequence[Candidate], progress: ProgressCallback) -> None:
    """Check all local models before the first candidate plays, which may take hours."""
    local = [candidate for candidate in candidates if candidate.model is not None]
    for candidate in local:
        check_model(candidate.model or "", device=candidate.device, dtype=candidate.dtype)
    progress(PhaseProgress("Checking the candidates", in_log=bool(local)))
    for candidate in local:
        await asyncio.to_thread(
            check_candidate_model,
            candidate.model or "",
            device=candidate.device,
            dtype=candidate.dtype,
            chat_template_kwargs=candidate.chat_template_kwargs,
        )
