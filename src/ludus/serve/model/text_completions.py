"""`/v1/completions`: text that continues prompts, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from ludus.data.tool_schema import JsonObject
from ludus.policy.runtime import run_off_loop
from ludus.serve.model.api_errors import ApiError
from ludus.serve.model.concurrent_choices import PutEvent, sample_choices, stream_choices
from ludus.serve.model.generator import Generation, Generator, OnText, Prompt, SamplingPlan
from ludus.serve.model.reply_formats import (
    CompletionEvents,
    envelope,
    text_logprobs,
    usage,
)
from ludus.serve.model.request_schema import CompletionBody


@dataclass(slots=True)
class TextCall:
    """A request that has places in the queue, and whose prompts fit."""

    body: CompletionBody
    plan: SamplingPlan
    prompts: list[Prompt]
    stack: AsyncExitStack

    @property
    def session_ids(self) -> list[str]:
        """Text completions are not recorded."""
        return []

    @property
    def choice_prompts(self) -> list[Prompt]:
        """The prompt of each choice: `n` for each prompt."""
        return [prompt for prompt in self.prompts for _ in range(self.body.n)]

    def usage(self, generations: Sequence[Generation]) -> JsonObject:
        completion_tokens = sum(len(each.completion.ids) for each in generations)
        return usage(sum(len(prompt.ids) for prompt in self.prompts), completion_tokens)


class TextCompletions:
    """Answers requests without a chat template. They are not recorded."""

    body_type = CompletionBody

    def __init__(self, generator: Generator, model: str) -> None:
        self._generator, self._model = generator, model
        self._tokenizer = generator.runtime.policy.tokenizer

    async def open(self, body: CompletionBody, session_id: str | None) -> TextCall:
        """Take places in the queue and tokenize the prompts, or raise what is wrong with them."""
        async with AsyncExitStack() as stack:
            num_prompts = len(await run_off_loop(lambda: body.prompts))
            stack.enter_context(self._generator.admission.admit(max(1, num_prompts) * body.n))
            prompts = await run_off_loop(lambda: list(map(self._tokenize, body.prompts)))
            if not prompts:
                raise ApiError("The prompt is empty.", param="prompt")
            plan = self._generator.plan(body, prompts)
            return TextCall(body, plan, prompts, stack.pop_all())
        raise AssertionError  # The stack swallows no exception.

    def _tokenize(self, prompt: str | list[int]) -> Prompt:
        if isinstance(prompt, str):
            self._generator.prompt_limit.check([prompt], param="prompt")
            return Prompt(tuple(self._tokenizer(prompt)["input_ids"]))
        if not all(0 <= token_id < len(self._tokenizer) for token_id in prompt):
            raise ApiError("A token id of the prompt is not in the vocabulary.", param="prompt")
        return Prompt(tuple(prompt))

    async def complete(self, call: TextCall) -> JsonObject:
        generations = await sample_choices(
            [self._generate(call, index) for index in range(len(call.choice_prompts))]
        )
        choices = []
        for index, generation in enumerate(generations):
            completion = generation.completion
            text = generation.text
            if text is None:
                text = self._tokenizer.decode(
                    list(completion.ids),
                    skip_special_tokens=True,
                    clean_up_tokenization_spaces=False,
                )
            choices.append(
                self._choice_to_json(
                    call,
                    index,
                    text,
                    completion.ids,
                    completion.logprobs,
                    finish=generation.finish_reason,
                )
            )
        response = envelope("text_completion", "cmpl", self._model)
        return {**response, "choices": choices, "usage": call.usage(generations)}

    def stream(self, call: TextCall) -> AsyncGenerator[bytes, None]:
        """Sample all choices, and yield server-sent events as tokens arrive."""
        events = CompletionEvents(envelope("text_completion", "cmpl", self._model))
        with_usage = call.body.stream_options.include_usage
        return stream_choices(
            [
                partial(self._stream_choice, call, index, events)
                for index in range(len(call.choice_prompts))
            ],
            at_end=lambda generations: events.end(call.usage(generations) if with_usage else None),
            on_error=events.error,
        )

    async def _stream_choice(
        self, call: TextCall, index: int, events: CompletionEvents, put_event: PutEvent
    ) -> Generation:
        length = 0

        def on_text(text: str, ids: Sequence[int], logprobs: Sequence[float]) -> None:
            nonlocal length
            choice = self._choice_to_json(call, index, text, ids, logprobs, offset=length)
            put_event(events.chunk(choice))
            length += len(text)

        generation = await self._generate(call, index, on_text)
        finish = generation.finish_reason
        put_event(events.chunk(self._choice_to_json(call, index, "", (), (), finish=finish)))
        return generation

    async def _generate(
        self, call: TextCall, index: int, on_text: OnText | None = None
    ) -> Generation:
        return await self._generator.generate(
            call.choice_prompts[index],
            call.plan,
            index=index,
            on_text=on_text,
            skip_special_tokens=True,
        )

    def _choice_to_json(
        self,
        call: TextCall,
        index: int,
        text: str,
        ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        offset: int = 0,
        finish: str | None = None,
    ) -> JsonObject:
        fields: JsonObject = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish,
        }
        if call.body.logprobs is not None:
            fields["logprobs"] = text_logprobs(
                self._tokenizer,
                ids,
                logprobs,
                offset=offset,
                as_ids=call.body.return_tokens_as_token_ids,
            )
        if call.body.return_token_ids:
            fields["token_ids"] = list(ids)
        return fields
