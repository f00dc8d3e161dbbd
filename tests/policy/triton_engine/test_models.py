"""Which models can be decoded fast, which cannot and why, and adapters over those that can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from policy.forwards import GREEDY, model_of, prompt, request
from policy.triton_engine.families import engine_of, fresh, generated, refusal, said


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
    assert reason in refusal(model())


def test_a_model_whose_numbers_come_out_otherwise_is_refused() -> None:
    model = fresh()
    model.model.layers[1].mlp.register_forward_hook(lambda *given: given[2] * 1.5)
    assert "off the model's own" in refusal(model)
    assert not model.training


def test_a_model_that_rounds_more_than_we_do_is_not_taken_for_another() -> None:
    model = fresh().bfloat16()
    engine_of(model)
    model.model.layers[1].mlp.register_forward_hook(lambda *given: given[2] * 1.5)
    assert "off the model's own" in refusal(model)


def test_a_layer_that_is_no_plain_matrix_is_refused() -> None:
    kind: Any = type("Doubled", (torch.nn.Linear,), {})
    model = fresh()
    model.model.layers[0].mlp.down_proj = kind(48, 96, bias=False)
    assert refusal(model) == "its weights are in Doubled, which is no plain matrix"


def adapted(model: Any = None, **more: Any) -> Any:
    given: dict[str, Any] = {"r": 4, "target_modules": "all-linear", "init_lora_weights": False}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return get_peft_model(model or fresh(), LoraConfig(**(given | more))).eval()


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


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"lora_bias": True}, "LoRA with a bias"),
        ({"alora_invocation_tokens": [5, 6], "task_type": "CAUSAL_LM"}, "of the kind ALora"),
    ],
)
def test_an_adapter_that_is_not_just_added_is_refused(more: dict[str, Any], kind: str) -> None:
    words = f"its adapter is {kind}, which does more than add to a matrix"
    assert refusal(with_biases(more)) == words


def with_biases(more: dict[str, Any]) -> Any:
    """An adapter can only have a bias where the model has them."""
    return adapted(model=fresh("qwen2"), target_modules=["q_proj"], **more)


def test_what_is_saved_with_an_adapter_is_switched_off_with_it() -> None:
    model, ids = adapted(target_modules=["q_proj"], modules_to_save=["lm_head"]), prompt(9)
    with torch.no_grad():
        model.get_base_model().lm_head.modules_to_save["default"].weight.mul_(-1)
    with model.disable_adapter():
        (reply,) = said(engine_of(model), [request(ids, sampling=GREEDY)])
        assert reply.ids == generated(model, ids)


def with_bias(linear: Any) -> Any:
    made = torch.nn.Linear(linear.in_features, linear.out_features)
    made.weight = linear.weight
    return made


def test_a_bias_in_any_layer_is_seen() -> None:
    for part, name in (("mlp", "up_proj"), ("mlp", "down_proj"), ("self_attn", "k_proj")):
        model = fresh()
        owner = getattr(model.model.layers[1], part)
        setattr(owner, name, with_bias(getattr(owner, name)))
        assert "has a bias" in refusal(model.bfloat16())
    model = fresh()
    model.lm_head = with_bias(model.lm_head)
    assert "has a bias" in refusal(model.bfloat16())


def test_another_activation_in_any_layer_is_seen() -> None:
    model = fresh()
    model.model.layers[1].mlp.act_fn = torch.nn.GELU()
    assert "has other activations in some layers" in refusal(model.bfloat16())


def test_a_model_that_writes_fewer_tokens_than_it_reads_is_refused() -> None:
    model = fresh()
    model.lm_head = torch.nn.Linear(96, 90, bias=False)
    assert "reads 97 tokens and writes 90" in refusal(model)


def test_what_only_goes_wrong_in_a_long_text_is_found_out() -> None:
    model = fresh(max_position_embeddings=512)
    # As layers do that see no more than a window.
    model.model.layers[1].mlp.register_forward_hook(
        lambda *given: given[2] * (1.5 if given[2].shape[1] > 100 else 1.0)
    )
    assert "off the model's own" in refusal(model)


def test_draws_that_are_no_tokens_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from ludus.policy.triton_engine import reference_ops

    sample = reference_ops.sample
    monkeypatch.setattr(
        reference_ops, "sample", lambda logits, rows: sample(logits * torch.nan, rows)
    )
    assert refusal(fresh()) == "what it draws is no token"
