"""Saving the trained model as a folder that `from_pretrained` loads.

Weights are trained in float32 and saved in the dtype of the base model. The tokenizer is saved with
the chat template used in training, and the generation config with the tokens that end a turn.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.errors import RunError
from ludus.policy.chat.chat_format import set_chat_format
from ludus.policy.model_ref import ModelRef
from ludus.train.config import BaseTrainConfig
from ludus.train.context import TrainContext
from ludus.train.output.training_folder import ADAPTER_DIR
from ludus.train.trainable_model import load_trainable_model, published_dtype
from ludus.train.trl_config import build_peft_config

_DRAFT_DIR = ".model.draft"


def export_model(context: TrainContext, trainer: Any) -> None:
    """Save the model and its tokenizer. All ranks must call it; the first one writes."""
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    # Gathering is a collective operation: every rank holds a part of the weights.
    state = trainer.accelerator.get_state_dict(
        trainer.deepspeed if trainer.is_deepspeed_enabled else trainer.model
    ) if sharded else None  # fmt: skip
    if not trainer.is_world_process_zero():
        return
    if state is None:
        model = trainer.accelerator.unwrap_model(trainer.model)
    else:
        model = rebuild_model(state, context.config, context.model_ref)
    # Where the disk is full, no half of a model is left.
    draft = context.out / _DRAFT_DIR
    shutil.rmtree(draft, ignore_errors=True)
    try:
        _save_model(context, trainer, model, draft)
        set_chat_format(context.tokenizer, context.chat_format)
        context.tokenizer.save_pretrained(draft)
        # Give the weights, which safetensors creates for the owner alone, the mode of other files.
        mode = (draft / "tokenizer_config.json").stat().st_mode
        for weights in draft.rglob("*.safetensors"):
            weights.chmod(mode)
        for path in draft.iterdir():
            if path.is_dir():
                shutil.rmtree(context.out / path.name, ignore_errors=True)
            path.replace(context.out / path.name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def rebuild_model(state: Mapping[str, Any], config: BaseTrainConfig, model_ref: ModelRef) -> Any:
    """The base model, loaded anew, with the gathered weights: unsharded, so it can be merged."""
    model = load_trainable_model(model_ref)
    if config.lora is not None:
        from peft import get_peft_model

        model = get_peft_model(model, build_peft_config(config.lora))
    keys = model.load_state_dict(state, strict=False)
    own = model.state_dict()
    loaded = {own[name].data_ptr() for name in own if name in state}
    # Tied weights have two names, and the state dict may hold only one of them.
    missing = [name for name in keys.missing_keys if own[name].data_ptr() not in loaded]
    if wrong := [*missing, *keys.unexpected_keys]:
        raise RunError(f"The gathered weights do not fit the model: {wrong[0]}.")
    return model


def _save_model(context: TrainContext, trainer: Any, model: Any, folder: Path) -> None:
    """Save the adapter or the model, or both; raises for weights that are not finite."""
    import torch

    lora = context.config.lora
    if lora is not None:
        trainer.check_weights(model)
        for peft_config in model.peft_config.values():
            peft_config.base_model_name_or_path = context.model_ref.portable_name
        adapter_dir = folder / ADAPTER_DIR if lora.merge_adapter else folder
        model.save_pretrained(adapter_dir)
        # PEFT writes an empty model card.
        (adapter_dir / "README.md").unlink(missing_ok=True)
        if not lora.merge_adapter:
            return
        model = model.merge_and_unload()
    # Generation stops at the tokens that end a turn in training.
    eos = model.generation_config.eos_token_id
    before = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    tokens = list(dict.fromkeys([*sorted(context.chat_format.stop_token_ids), *before]))
    model.generation_config.eos_token_id = tokens[0] if len(tokens) == 1 else tokens
    model = model.to(getattr(torch, published_dtype(context.model_ref)))
    # A finite float32 number may be infinite in float16.
    trainer.check_weights(model)
    model.save_pretrained(folder)
