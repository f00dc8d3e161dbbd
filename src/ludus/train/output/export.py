"""The trained model as a folder that `from_pretrained` reads.

Weights are trained in float32 and saved in what the base had, which is what it is run in; with them
go the tokenizer under the template that it was trained under, and the tokens that end a turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.errors import RunError
from ludus.policy.chat.chat_format import ChatFormat, set_chat_format
from ludus.policy.load import load_model
from ludus.policy.model_ref import ModelKind, ModelRef, resolve_base_model
from ludus.train.config import BaseTrainConfig
from ludus.train.output.training_folder import ADAPTER_DIR
from ludus.train.trl_trainers import build_peft_config


def export_dtype(source: ModelRef) -> str:
    """The kind of number that the base's weights are in; float32 where it does not say."""
    from transformers import AutoConfig

    if source.kind is ModelKind.ADAPTER:
        return export_dtype(resolve_base_model(source))
    if source.kind is ModelKind.GGUF:
        return "float32"
    local = source.kind is ModelKind.FOLDER or source.cache_only
    config = AutoConfig.from_pretrained(source.path, local_files_only=local)
    found = str(getattr(config, "dtype", None) or "float32").removeprefix("torch.")
    return found if found in ("bfloat16", "float16") else "float32"


def export_model(
    trainer: Any, tokenizer: Any, dialect: ChatFormat, settings: BaseTrainConfig, source: ModelRef,
    *, dtype: str, out: Path,
) -> None:  # fmt: skip
    """Write all that `from_pretrained` needs. Every process takes part, and the first writes."""
    state = _gather_state_dict(trainer) if _is_sharded(trainer) else None
    if trainer.is_world_process_zero():
        whole = trainer.accelerator.unwrap_model(trainer.model)
        model = whole if state is None else rebuild_model(state, settings, source)
        _save_model(model, dialect, settings, source, dtype, out)
        set_chat_format(tokenizer, dialect)
        tokenizer.save_pretrained(out)
        _match_permissions(out)


def _gather_state_dict(trainer: Any) -> Any:
    """All weights, of which each process has a part; whole in the first one."""
    sharded = trainer.deepspeed if trainer.is_deepspeed_enabled else trainer.model
    return trainer.accelerator.get_state_dict(sharded)


def rebuild_model(state: Mapping[str, Any], settings: BaseTrainConfig, source: ModelRef) -> Any:
    """The base loaded anew, with these weights: one that is whole, and can be merged."""
    model = load_model(source.name, device="cpu", dtype="float32", allow_vision=True)
    if settings.lora is not None:
        from peft import get_peft_model

        model = get_peft_model(model, build_peft_config(settings.lora))
    left = model.load_state_dict(state, strict=False)
    own = model.state_dict()
    filled = {own[name].data_ptr() for name in own if name in state}
    # One weight may go by two names, of which one is enough.
    lost = [name for name in left.missing_keys if own[name].data_ptr() not in filled]
    if strange := [*lost, *left.unexpected_keys]:
        raise RunError(f"The weights of several processes do not make a model: {strange[0]}.")
    return model


def _save_model(
    model: Any,
    dialect: ChatFormat,
    settings: BaseTrainConfig,
    source: ModelRef,
    dtype: str,
    out: Path,
) -> None:
    import torch

    if settings.lora is not None:
        for config in model.peft_config.values():
            config.base_model_name_or_path = source.portable_name
        to = out / ADAPTER_DIR if settings.lora.merge else out
        model.save_pretrained(to)
        # Peft's draft of a card has nothing in it.
        (to / "README.md").unlink(missing_ok=True)
        if not settings.lora.merge:
            return
        model = model.merge_and_unload()
    _set_eos_tokens(model, dialect)
    model.to(getattr(torch, dtype)).save_pretrained(out)


def _match_permissions(out: Path) -> None:
    """Weights are written for their owner alone; they are for whom the files beside them are."""
    mode = (out / "tokenizer_config.json").stat().st_mode
    for folder in (out, out / ADAPTER_DIR):
        for weights in folder.glob("*.safetensors"):
            weights.chmod(mode)


def _set_eos_tokens(model: Any, dialect: ChatFormat) -> None:
    """Generation stops where a turn was trained to end."""
    known = model.generation_config.eos_token_id
    before = [] if known is None else [known] if isinstance(known, int) else list(known)
    ends = list(dict.fromkeys([*sorted(dialect.stop_token_ids), *before]))
    model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends


def _is_sharded(trainer: Any) -> bool:
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)
