"""The VLM decoder against single forward passes and `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from ludus.data.messages import Text, message_from_content
from ludus.policy.chat import incremental_prompt
from ludus.policy.engine.engine_api import Completion, Request
from ludus.policy.engine.sampling import SamplingParams
from ludus.policy.load import Policy
from ludus.policy.vision.processor import VISION_FAMILIES, stack_images
from ludus.policy.vision.vlm_decoder import VLMDecoder
from policy.vision.image_env import picture, untaught

RED, BLUE = picture(24, 16, "red"), picture(16, 32, "blue")
GREEDY = SamplingParams(temperature=0)


@cache
def build_policy(family: str) -> Policy:
    """A model with large weights, so that logits are distinct and images matter."""
    policy = untaught(family)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            weight.mul_(1.0 if "norm" in name else 4.0)
    return policy


@pytest.fixture(scope="module", params=VISION_FAMILIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return build_policy(request.param)


def build_request(policy: Policy, *parts: Any, tokens: int = 10, **kwargs: Any) -> Request:
    assert policy.vision is not None
    message = message_from_content("user", [Text(text="Look."), *parts])
    ids = incremental_prompt.initial_prompt_ids(
        policy.tokenizer, policy.chat_format, [policy.vision.message_to_text(message)], None
    )
    images = policy.vision.process_messages([message])
    options: dict[str, Any] = {"stop_token_ids": (), "sampling": SamplingParams(), "seed": 3}
    prompt = tuple(policy.vision.expand_placeholders(ids, images))
    return Request(prompt, tokens, images=images, **(options | kwargs))


def complete(policy: Policy, requests: Sequence[Request]) -> list[Completion]:
    assert policy.vision is not None
    completions: dict[int, Completion] = {}
    VLMDecoder(policy.model, pad_id=0, vision=policy.vision).run(requests, completions.__setitem__)
    return [completions[index] for index in range(len(requests))]


def model_inputs(policy: Policy, request: Request, ids: torch.Tensor) -> dict[str, Any]:
    assert policy.vision is not None
    images = stack_images(request.images)
    types = {"mm_token_type_ids": (ids == policy.vision.image_token_id).long()} if images else {}
    return {"input_ids": ids, **images, **types}


def fresh_logprobs(policy: Policy, request: Request, completion: Completion) -> list[float]:
    """By one forward pass over all tokens, for which the model computes the positions itself."""
    whole = torch.tensor([[*request.ids, *completion.ids]])
    with torch.inference_mode():
        logits = policy.model(**model_inputs(policy, request, whole)).logits[0].float()
    logprobs = torch.log_softmax(logits, dim=-1)[len(request.ids) - 1 : -1]
    return [float(row[token]) for row, token in zip(logprobs, completion.ids, strict=True)]


def test_a_mixed_batch_has_the_logprobs_of_single_forward_passes(policy: Policy) -> None:
    requests = [
        build_request(policy, RED, BLUE),
        build_request(policy, tokens=4),
        build_request(policy, BLUE, Text(text="Well?"), tokens=7),
        build_request(policy, Text(text="And this?"), tokens=2),
        build_request(policy, BLUE, tokens=3),
    ]
    completions = complete(policy, requests)
    assert [len(each.ids) for each in completions] == [10, 4, 7, 2, 3]
    for request, each in zip(requests, completions, strict=True):
        assert list(each.logprobs) == pytest.approx(fresh_logprobs(policy, request, each), abs=1e-3)
        assert complete(policy, [request])[0].ids == each.ids


def test_greedy_replies_are_those_of_generate(policy: Policy) -> None:
    assert policy.vision is not None
    request = build_request(policy, RED, BLUE, sampling=GREEDY)
    prompt = torch.tensor([request.ids])
    output = policy.model.generate(
        **model_inputs(policy, request, prompt),
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=10,
        eos_token_id=None,
        suppress_tokens=sorted(policy.vision.suppressed_ids),
    )
    (completion,) = complete(policy, [request])
    assert list(completion.ids) == output[0, len(request.ids) :].tolist()


def test_the_pixels_of_an_image_matter(policy: Policy) -> None:
    request = build_request(policy, picture(24, 16, "red"), sampling=GREEDY)
    other = build_request(policy, picture(24, 16, "white"), sampling=GREEDY)
    assert request.ids == other.ids
    red, white = complete(policy, [request, other])
    assert red.logprobs != pytest.approx(white.logprobs, abs=1e-3)


def test_a_model_with_an_adapter_takes_images() -> None:
    from peft import LoraConfig, get_peft_model

    plain = untaught("qwen2_vl")
    config: Any = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    policy = replace(plain, model=get_peft_model(plain.model, config).eval())
    request = build_request(policy, RED, BLUE)
    (completion,) = complete(policy, [request])
    expected = fresh_logprobs(policy, request, completion)
    assert list(completion.logprobs) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("sampling", [SamplingParams(), GREEDY])
def test_placeholder_tokens_are_never_sampled(sampling: SamplingParams) -> None:
    """The log-probabilities are still those over the whole vocabulary."""
    policy = untaught("qwen2_vl")
    assert policy.vision is not None
    requests = [
        build_request(policy, RED, sampling=sampling),
        build_request(policy, sampling=sampling),
    ]
    bias = torch.zeros(len(policy.tokenizer))
    bias[policy.vision.image_token_id] = 6.0
    hook = policy.model.lm_head.register_forward_hook(lambda _, __, logits: logits + bias)
    try:
        completions = complete(policy, requests)
        expected = [
            fresh_logprobs(policy, *each) for each in zip(requests, completions, strict=True)
        ]
    finally:
        hook.remove()
    assert all(policy.vision.image_token_id not in each.ids for each in completions)
    for each, logprobs in zip(completions, expected, strict=True):
        assert list(each.logprobs) == pytest.approx(logprobs, abs=1e-3)
        assert max(each.logprobs) < -0.5, "the suppressed token has its share"


def test_a_reply_ends_at_its_stop_token_and_within_the_context(policy: Policy) -> None:
    request = build_request(policy, RED, sampling=GREEDY)
    (whole,) = complete(policy, [request])
    (cut,) = complete(policy, [replace(request, stop_token_ids=whole.ids[2:3])])
    assert cut.stopped and cut.ids == whole.ids[: whole.ids.index(whole.ids[2]) + 1]
    long = replace(request, ids=(1,) * (1022 - len(request.ids)) + request.ids)
    assert len(complete(policy, [long])[0].ids) == 2
