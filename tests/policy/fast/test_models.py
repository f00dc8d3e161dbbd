"""Which models can be decoded fast, which cannot and why, and adapters over those that can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from ludus.policy.fast.engine import fast_engine
from policy.fast.families import engine_of, fresh, generated, said
from policy.forwards import GREEDY, model_of, prompt, request


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: model_of("gpt2"), "GPT2LMHeadModel is none of LlamaForCausalLM"),
        (lambda: fresh("mistral", sliding_window=8), "MistralForCausalLM has windows that slide"),
        (lambda: fresh(hidden_act="gelu"), "has the activation gelu"),
        (lambda: fresh(mlp_bias=True), "has a bias in its inner layers"),
        (lambda: fresh(num_attention_heads=4, num_key_value_heads=2), "has heads of 24 numbers"),
        (
            lambda: fresh(
                rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
            ),
            "has positions of the kind dynamic",
        ),
    ],
)
def test_a_model_of_another_kind_is_refused_with_a_reason(model: Any, reason: str) -> None:
    said = fast_engine(model())
    assert isinstance(said, str) and reason in said


def test_a_model_whose_numbers_come_out_otherwise_is_refused() -> None:
    model = fresh()
    model.model.layers[1].mlp.register_forward_hook(lambda *given: given[2] * 1.5)
    said = fast_engine(model)
    assert isinstance(said, str) and "off the model's own" in said
    assert not model.training


def test_a_model_that_rounds_more_than_we_do_is_not_taken_for_another() -> None:
    model = fresh().bfloat16()
    engine_of(model)
    model.model.layers[1].mlp.register_forward_hook(lambda *given: given[2] * 1.5)
    assert isinstance(fast_engine(model), str)


def test_a_layer_that_is_no_plain_matrix_is_refused() -> None:
    kind: Any = type("Doubled", (torch.nn.Linear,), {})
    model = fresh()
    model.model.layers[0].mlp.down_proj = kind(48, 96, bias=False)
    said = fast_engine(model)
    assert said == "its weights are in Doubled, which is no plain matrix"


def adapted(**more: Any) -> Any:
    given: dict[str, Any] = {"r": 4, "target_modules": "all-linear", "init_lora_weights": False}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return get_peft_model(fresh(), LoraConfig(**(given | more))).eval()


def test_an_adapter_is_decoded_with_its_base_and_neither_is_changed() -> None:
    model, ids = adapted(), prompt(9)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    engine, asked = engine_of(model), [request(ids, sampling=GREEDY)]
    (first,) = said(engine, asked)
    assert first.ids == generated(model, ids)
    assert all(torch.equal(before[name], each) for name, each in model.named_parameters())
    with model.disable_adapter():
        assert first.ids != generated(model, ids), "the adapter has a say in it"
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.mul_(-1)
    engine.refresh()
    (second,) = said(engine, asked)
    assert second.ids == generated(model, ids) != first.ids


def test_what_an_adapter_trains_as_a_whole_is_taken_over() -> None:
    model, ids = adapted(target_modules=["q_proj"], modules_to_save=["lm_head"]), prompt(9)
    with torch.no_grad():
        model.get_base_model().lm_head.modules_to_save["default"].weight.mul_(-1)
    (reply,) = said(engine_of(model), [request(ids, sampling=GREEDY)])
    assert reply.ids == generated(model, ids)


def test_an_adapter_that_is_not_just_added_is_refused() -> None:
    said = fast_engine(adapted(use_dora=True))
    assert said == "its weights are in Linear, which is no plain matrix"
