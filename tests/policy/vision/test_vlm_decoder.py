"""Sampling after pictures: what a whole forward pass says, whoever is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from ludus.data.content import Text
from ludus.data.messages import message_from_content
from ludus.policy.chat import incremental_prompt
from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.load import Policy
from ludus.policy.vision.images import stack_images
from ludus.policy.vision.model_families import VISION_FAMILIES
from ludus.policy.vision.vlm_decoder import VLMDecoder
from policy.vision.image_env import picture, untaught

RED, BLUE = picture(24, 16, "red"), picture(16, 32, "blue")
GREEDY = SamplingParams(temperature=0)


@cache
def seer(family: str) -> Policy:
    """Its weights are large enough to make it decided, and its pictures felt."""
    policy = untaught(family)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            weight.mul_(1.0 if "norm" in name else 4.0)
    return policy


@pytest.fixture(scope="module", params=VISION_FAMILIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return seer(request.param)


def asked(policy: Policy, *parts: Any, tokens: int = 10, **more: Any) -> Request:
    assert policy.vision is not None
    message = message_from_content("user", [Text(text="Look."), *parts])
    ids = incremental_prompt.initial_prompt_ids(
        policy.tokenizer, policy.chat_format, [policy.vision.message_to_text(message)], None
    )
    pictures = policy.vision.process_messages([message])
    given: dict[str, Any] = {"stop_token_ids": (), "sampling": SamplingParams(), "seed": 3} | more
    return Request(
        tuple(policy.vision.expand_placeholders(ids, pictures)), tokens, images=pictures, **given
    )


def answers(policy: Policy, requests: Sequence[Request]) -> list[Completion]:
    assert policy.vision is not None
    told: dict[int, Completion] = {}
    VLMDecoder(policy.model, pad_id=0, vision=policy.vision).run(requests, told.__setitem__)
    return [told[at] for at in range(len(requests))]


def given(policy: Policy, request: Request, ids: torch.Tensor) -> dict[str, Any]:
    assert policy.vision is not None
    seen = stack_images(request.images)
    kinds = {"mm_token_type_ids": (ids == policy.vision.image_token_id).long()} if seen else {}
    return {"input_ids": ids, **seen, **kinds}


def fresh(policy: Policy, request: Request, said: Completion) -> list[float]:
    """By one forward pass over all of it, in which the model places everything itself."""
    whole = torch.tensor([[*request.ids, *said.ids]])
    with torch.inference_mode():
        logits = policy.model(**given(policy, request, whole)).logits[0].float()
    logprobs = torch.log_softmax(logits, dim=-1)[len(request.ids) - 1 : -1]
    return [float(row[token]) for row, token in zip(logprobs, said.ids, strict=True)]


def test_a_batch_with_and_without_pictures_is_sampled_as_one_pass_would(policy: Policy) -> None:
    requests = [
        asked(policy, RED, BLUE),
        asked(policy, tokens=4),
        asked(policy, BLUE, Text(text="Well?"), tokens=7),
        asked(policy, Text(text="And this?"), tokens=2),
        asked(policy, BLUE, tokens=3),
    ]
    told = answers(policy, requests)
    assert [len(each.ids) for each in told] == [10, 4, 7, 2, 3]
    for request, each in zip(requests, told, strict=True):
        assert list(each.logprobs) == pytest.approx(fresh(policy, request, each), abs=1e-3)
        assert answers(policy, [request])[0].ids == each.ids


def test_the_likeliest_tokens_are_those_of_generate(policy: Policy) -> None:
    assert policy.vision is not None
    request = asked(policy, RED, BLUE, sampling=GREEDY)
    prompt = torch.tensor([request.ids])
    made = policy.model.generate(
        **given(policy, request, prompt),
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=10,
        eos_token_id=None,
        suppress_tokens=sorted(policy.vision.suppressed_ids),
    )
    (told,) = answers(policy, [request])
    assert list(told.ids) == made[0, len(request.ids) :].tolist()


def test_what_is_in_a_picture_matters(policy: Policy) -> None:
    request = asked(policy, picture(24, 16, "red"), sampling=GREEDY)
    other = asked(policy, picture(24, 16, "white"), sampling=GREEDY)
    assert request.ids == other.ids
    red, white = answers(policy, [request, other])
    assert red.logprobs != pytest.approx(white.logprobs, abs=1e-3)


def test_a_model_under_an_adapter_sees_too() -> None:
    from peft import LoraConfig, get_peft_model

    plain = untaught("qwen2_vl")
    config: Any = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    policy = replace(plain, model=get_peft_model(plain.model, config).eval())
    request = asked(policy, RED, BLUE)
    (told,) = answers(policy, [request])
    assert list(told.logprobs) == pytest.approx(fresh(policy, request, told), abs=1e-3)


@pytest.mark.parametrize("sampling", [SamplingParams(), GREEDY])
def test_a_model_never_says_a_placeholder_however_much_it_wants_to(
    sampling: SamplingParams,
) -> None:
    """And says how likely its words were among all that it could have said."""
    policy = untaught("qwen2_vl")
    assert policy.vision is not None
    requests = [asked(policy, RED, sampling=sampling), asked(policy, sampling=sampling)]
    wants = torch.zeros(len(policy.tokenizer))
    wants[policy.vision.image_token_id] = 6.0
    watch = policy.model.lm_head.register_forward_hook(lambda _, __, logits: logits + wants)
    try:
        told = answers(policy, requests)
        expected = [fresh(policy, *each) for each in zip(requests, told, strict=True)]
    finally:
        watch.remove()
    assert all(policy.vision.image_token_id not in each.ids for each in told)
    for each, logprobs in zip(told, expected, strict=True):
        assert list(each.logprobs) == pytest.approx(logprobs, abs=1e-3)
        assert max(each.logprobs) < -0.5, "its wish for a picture is counted in"


def test_a_reply_ends_with_a_stop_and_within_the_context(policy: Policy) -> None:
    request = asked(policy, RED, sampling=GREEDY)
    (whole,) = answers(policy, [request])
    (cut,) = answers(policy, [replace(request, stop_token_ids=whole.ids[2:3])])
    assert cut.stopped and cut.ids == whole.ids[: whole.ids.index(whole.ids[2]) + 1]
    long = replace(request, ids=(1,) * (1022 - len(request.ids)) + request.ids)
    assert len(answers(policy, [long])[0].ids) == 2
