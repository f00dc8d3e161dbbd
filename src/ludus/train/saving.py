"""The trained model as a folder that `from_pretrained` reads.

Weights are trained in float32 and saved in what the base had, which is what it is run in; with them
go the tokenizer under the template that it was trained under, and the tokens that end a turn.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ludus.policy.dialect import Dialect, adopt
from ludus.policy.source import Kind, Source, base_of
from ludus.train.folder import ADAPTER
from ludus.train.settings import Settings


def saved_dtype(source: Source) -> str:
    """The kind of number that the base's weights are in; float32 where it does not say."""
    from transformers import AutoConfig

    if source.kind is Kind.ADAPTER:
        return saved_dtype(base_of(source))
    if source.kind is Kind.GGUF:
        return "float32"
    local = source.kind is Kind.FOLDER or source.cached
    config = AutoConfig.from_pretrained(source.path, local_files_only=local)
    found = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return found if found in ("bfloat16", "float16") else "float32"


def save(
    trainer: Any, tokenizer: Any, dialect: Dialect, settings: Settings, source: Source,
    *, dtype: str, out: Path,
) -> None:  # fmt: skip
    """Write all that `from_pretrained` needs. Every process takes part, and the first writes."""
    if _is_sharded(trainer):
        trainer.save_model(str(out))
        main = trainer.is_world_process_zero()
    elif main := trainer.is_world_process_zero():
        _save_whole(trainer, dialect, settings, source, dtype, out)
    if main:
        adopt(tokenizer, dialect)
        tokenizer.save_pretrained(out)
        _share(out)


def _save_whole(
    trainer: Any, dialect: Dialect, settings: Settings, source: Source, dtype: str, out: Path
) -> None:
    import torch

    model = trainer.accelerator.unwrap_model(trainer.model)
    if settings.lora is not None:
        for config in model.peft_config.values():
            config.base_model_name_or_path = source.lasting
        to = out / ADAPTER if settings.lora.merge else out
        model.save_pretrained(to)
        # Peft's draft of a card has nothing in it.
        (to / "README.md").unlink(missing_ok=True)
        if not settings.lora.merge:
            return
        model = model.merge_and_unload()
    _end_turns(model, dialect)
    model.to(getattr(torch, dtype)).save_pretrained(out)


def _share(out: Path) -> None:
    """Weights are written for their owner alone; they are for whom the files beside them are."""
    mode = (out / "tokenizer_config.json").stat().st_mode
    for folder in (out, out / ADAPTER):
        for weights in folder.glob("*.safetensors"):
            weights.chmod(mode)


def _end_turns(model: Any, dialect: Dialect) -> None:
    """Generation stops where a turn was trained to end."""
    known = model.generation_config.eos_token_id
    before = [] if known is None else [known] if isinstance(known, int) else list(known)
    ends = list(dict.fromkeys([*sorted(dialect.stops), *before]))
    model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends


def _is_sharded(trainer: Any) -> bool:
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)
