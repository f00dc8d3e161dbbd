"""Which models the engine supports, the reasons why not, and LoRA adapters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from ludus.policy.triton_engine.reference_ops import ReferenceOps
from policy.forwards import GREEDY, model_of, prompt, request
from policy.triton_engine.tiny_models import (
    build_engine,
    build_model,
    complete,
    hf_generate,
    refusal_reason,
)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: model_of("gpt2"), "GPT2LMHeadModel"),
        (lambda: build_model("gemma3", use_bidirectional_attention=True), "both directions"),
        (lambda: build_model("gemma3", final_logit_softcapping=30.0), "caps its logits"),
        (lambda: build_model(hidden_act="gelu"), "GELUActivation"),
        (lambda: build_model(mlp_bias=True), "bias in its MLP"),
        (lambda: build_model(num_attention_heads=4, num_key_value_heads=2), "head_dim of 24"),
        (
            lambda: build_model(
                rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
            ),
            "type dynamic",
        ),
    ],
)
def test_an_unsupported_architecture_is_refused_with_a_reason(model: Any, reason: str) -> None:
    assert reason in refusal_reason(model())


def test_a_model_with_different_logits_is_refused() -> None:
    model = build_model()
    model.model.layers[1].mlp.register_forward_hook(lambda *args: args[2] * 1.5)
    assert "off the model's own" in refusal_reason(model)
    assert not model.training


def test_a_bfloat16_model_is_compared_with_a_larger_tolerance() -> None:
    model = build_model().bfloat16()
    build_engine(model)
    model.model.layers[1].mlp.register_forward_hook(lambda *args: args[2] * 1.5)
    assert "off the model's own" in refusal_reason(model)


def test_a_subclass_of_linear_is_refused() -> None:
    linear_class: Any = type("Doubled", (torch.nn.Linear,), {})
    model = build_model()
    model.model.layers[0].mlp.down_proj = linear_class(48, 96, bias=False)
    assert "Doubled" in refusal_reason(model)


def with_lora(model: Any = None, **overrides: Any) -> Any:
    config: dict[str, Any] = {"r": 4, "target_modules": "all-linear", "init_lora_weights": False}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return get_peft_model(model or build_model(), LoraConfig(**(config | overrides))).eval()


def test_an_adapter_is_applied_without_changing_the_model() -> None:
    model, ids = with_lora(), prompt(9)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    engine, requests = build_engine(model), [request(ids, sampling=GREEDY)]
    (first,) = complete(engine, requests)
    assert first.ids == hf_generate(model, ids)
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())
    with model.disable_adapter():
        assert first.ids != hf_generate(model, ids), "the adapter changes the completion"
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.mul_(-1)
    engine.refresh()
    (second,) = complete(engine, requests)
    assert second.ids == hf_generate(model, ids) != first.ids


@pytest.mark.parametrize("name", ["lm_head", "input_layernorm"])
def test_modules_that_are_trained_beside_an_adapter_are_refused(name: str) -> None:
    model = with_lora(target_modules=["q_proj"], modules_to_save=[name])
    assert "beside its adapter" in refusal_reason(model)


@pytest.mark.parametrize(
    "config",
    [
        {"use_dora": True},
        {"lora_bias": True},
        {"alora_invocation_tokens": [5, 6], "task_type": "CAUSAL_LM"},
    ],
)
def test_a_variant_of_lora_is_refused(config: dict[str, Any]) -> None:
    # Qwen2 has biases, without which `lora_bias` is not possible.
    model = with_lora(model=build_model("qwen2"), target_modules=["q_proj"], **config)
    assert "adapter" in refusal_reason(model)


def with_bias(linear: Any) -> Any:
    biased = torch.nn.Linear(linear.in_features, linear.out_features)
    biased.weight = linear.weight
    return biased


def test_a_bias_in_any_layer_is_refused() -> None:
    for block, name in (("mlp", "up_proj"), ("mlp", "down_proj"), ("self_attn", "k_proj")):
        model = build_model()
        owner = getattr(model.model.layers[1], block)
        setattr(owner, name, with_bias(getattr(owner, name)))
        assert "bias" in refusal_reason(model.bfloat16())
    model = build_model()
    model.lm_head = with_bias(model.lm_head)
    assert "bias" in refusal_reason(model.bfloat16())


def test_another_activation_in_any_layer_is_refused() -> None:
    model = build_model()
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()
    assert "activations" in refusal_reason(model.bfloat16())


def test_different_vocabularies_of_input_and_output_are_refused() -> None:
    model = build_model()
    model.lm_head = torch.nn.Linear(96, 90, bias=False)
    reason = refusal_reason(model)
    assert "97" in reason and "90" in reason


def test_logits_that_differ_only_for_long_prompts_are_noticed() -> None:
    model = build_model(max_position_embeddings=512)
    # As in layers with a sliding window.
    model.model.layers[1].mlp.register_forward_hook(
        lambda *args: args[2] * (1.5 if args[2].shape[1] > 100 else 1.0)
    )
    assert "off the model's own" in refusal_reason(model)


def test_sampling_from_nan_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = ReferenceOps.sample
    monkeypatch.setattr(
        ReferenceOps, "sample", lambda self, logits, batch: sample(self, logits * torch.nan, batch)
    )
    assert refusal_reason(build_model()) == "it sampled invalid tokens"
