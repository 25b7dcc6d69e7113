"""Chat model that is computed in this process (`llm=local_chat`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.processes import ProcessGroup
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import ChatReply, ChatRequest, TokenSample
from llmrl.core.seeding import Seeds
from llmrl.llms.cache import compute_request_key
from llmrl.llms.local.generation import ReplyGenerator, SamplingSettings, TokenPrompt, make_request_generator
from llmrl.llms.local.learning import ChatLearners, LearnerFactory
from llmrl.llms.local.loading import Dtype, check_model, folder_fingerprint, load_config, load_model, load_tokenizer
from llmrl.llms.local.lora import adapter_fingerprint, check_adapter, check_base_model, load_adapter
from llmrl.llms.local.prefix_cache import PrefixCache
from llmrl.llms.local.small import SmallChatSettings, SmallModelFactory, resolve_model
from llmrl.llms.local.vllm_sampler import VLLMClient, VLLMSampler
from llmrl.llms.provider import Provider

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class LocalChatSettings(SamplingSettings):
    """Options of `LocalChat`; meanings, units and ranges are in `conf/llm/local_chat.yaml` and `_local.yaml`.

    Attributes:
        model: folder or name on the Hugging Face hub; None: `make` describes the model.
        prefix_cache_tokens: maximum number of tokens in the cache of keys and values of prefixes; 0: no cache.
        sampler: settings of a server that samples the replies; None: they are sampled in this process.
        learn: settings of a learner that trains the model from its replies; None: the model does not learn.
        make: small model that is created instead of loaded; None: `model` is loaded.
    """

    model: str | None
    revision: str | None
    adapter: str | None
    dtype: Dtype
    chat_template: str | None
    context_window: PositiveInt | None
    prefix_cache_tokens: NonNegativeInt
    sampler: VLLMSampler | None
    learn: LearnerFactory | None
    make: SmallChatSettings | None


class LocalChat(Provider):
    """Causal chat model in this process, loaded at the first request.

    Each reply is sampled with a separate random generator and is, except for rounding errors, a function of the request
    (including `repeat`) and the run's seed. Padding and batch size change the last digits of logits
    (docs/local_models.md has the sizes) and therefore, rarely, a token.

    Replies are free text: a request's schema is not enforced, so prompts must describe the format.

    Args:
        settings: options.
        device: torch device.
        seeds: the run's seed tree.
        model_factory: factory of small models; needed for `make`.

    Raises:
        ConfigError: options are incompatible, or the chat template cannot be read. At the first request: the model's
            context window is smaller than the option `context_window`.
        LLMError: a file of the adapter cannot be read.
    """

    remote = False

    def __init__(
        self, settings: LocalChatSettings, device: str, seeds: Seeds, model_factory: SmallModelFactory | None = None
    ) -> None:
        # Prices are 0, because None would mean that the price is unknown.
        super().__init__(
            max_tokens=settings.max_tokens, context_window=settings.context_window, input_price=0.0, output_price=0.0
        )
        self.settings, self.device, self._seeds = settings, device, seeds.child("local_chat")
        self._model_factory, adapter, template_path = model_factory, settings.adapter, settings.chat_template
        self.model = resolve_model(settings.model, settings.make, "chat", model_factory)
        # Caches distinguish adapters by this fingerprint. If the folder is missing, `check` raises an error.
        has_adapter = adapter is not None and Path(adapter).expanduser().is_dir()
        self._adapter_fingerprint = adapter_fingerprint(str(adapter)) if has_adapter else None
        self.label = f"{self.model if settings.make is None else settings.make.label} (local chat)"
        if adapter is not None:
            self.label = f"{self.model} + adapter {(self._adapter_fingerprint or 'missing')[:8]} (local chat)"
        try:
            self._template_text = None if template_path is None else Path(template_path).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"llm.chat_template={template_path} cannot be read: {error}") from error
        self._identity: dict[str, Any] | None = None
        self._tokenizer: Any = None
        self._model: Any = None
        self._generator: ReplyGenerator | None = None
        self._prefix_cache = PrefixCache(settings.prefix_cache_tokens)
        learners = None if settings.learn is None else settings.learn.learners(self, self._seeds)
        self.learners: ChatLearners | None = learners
        self._sampler: VLLMClient | None = None
        if settings.sampler is not None:
            if learners is None:
                raise ConfigError(
                    "llm/sampler=vllm needs llm/learn; models that do not learn are served by llm=openai_compatible"
                )
            self._sampler = VLLMClient(
                settings.sampler, self.model, lambda name, folder: learners.learner(name).write_adapter(folder)
            )

    @property
    def module(self) -> torch.nn.Module:
        """The language model with its adapter, loaded at first access."""
        if self._model is None:
            tokenizer = self.tokenizer
            model: Any = load_model("causal", self.model, self.settings.revision, self.device, self.settings.dtype)
            if self.settings.adapter is not None:
                model = load_adapter(model, self.settings.adapter, self.device)
            end_tokens: Any = (model.generation_config.eos_token_id, tokenizer.eos_token_id)
            self._end_tokens = set[int]().union(*map(_to_token_set, end_tokens))
            if not self._end_tokens:
                raise LLMError(
                    f"{self.model}: neither model nor tokenizer has an end-of-sequence token; choose another model"
                )
            # Padding is masked, so any token can be used.
            pad_token = min(self._end_tokens) if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
            # A new config, because the model's own one may contain sampling settings, which must not apply.
            model.generation_config = type(model.generation_config)(
                do_sample=False, eos_token_id=sorted(self._end_tokens), pad_token_id=pad_token
            )
            self._model = model
        return self._model

    def clear_cache(self) -> None:
        """Discard the keys and values of earlier prompts."""
        self._prefix_cache.clear()

    def discard_outdated_weights(self) -> None:
        """Discard cached keys and values, and mark adapters on the server as outdated, after a change of weights."""
        self.clear_cache()
        if self._sampler is not None:
            self._sampler.increment_adapter_version()

    @property
    def identity(self) -> dict[str, Any]:
        """Fields that determine replies, for the keys of caches; `files` is the fingerprint of the model's folder.

        Device and batch size are not included, because they change only rounding errors.
        """
        if self._identity is None:
            template = self._template_text
            self._identity = {
                "kind": "local_chat",
                "model": self.model,
                "revision": self.settings.revision,
                "files": folder_fingerprint(self.model),
                "dtype": self.settings.dtype,
                "chat_template": None if template is None else hashlib.sha256(template.encode()).hexdigest(),
                "temperature": self.settings.temperature,
                "top_p": self.settings.top_p,
                "max_tokens": self.settings.max_tokens,
            }
            if self.settings.adapter is not None:  # only if set, so that caches from before this option stay valid
                self._identity["adapter"] = self._adapter_fingerprint or adapter_fingerprint(self.settings.adapter)
        return self._identity

    def check(self) -> None:
        """Raise LLMError if a package, model or adapter is missing, or the adapter was trained on another model.

        Whether a model of the hub exists is not checked.
        """
        check_model(self.model, created_on_demand=self.settings.make is not None)
        if self.settings.adapter is not None:
            check_adapter(self.settings.adapter)
            check_base_model(self.settings.adapter, self.model, self.settings.revision, self.identity["files"])
        if self._sampler is not None:
            self._sampler.check()

    def count_tokens(self, messages: Sequence[Mapping[str, str]]) -> int:
        """Return the exact number of tokens that the model reads, including those of the chat template."""
        return len(self.encode(messages))

    def fits(self, messages: Sequence[Mapping[str, str]]) -> bool:
        _ = self.tokenizer  # sets the context window
        return super().fits(messages)

    def complete(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Return replies in the order of `requests`; `finish` is "length" for replies cut at `max_tokens`, else "stop".

        Raises:
            LLMError: the model cannot be loaded or has no chat template, a prompt and `max_tokens` exceed the context
                window, or memory is exhausted.
        """
        prompt_tokens = [self.encode(request.messages) for request in requests]
        for tokens, request in zip(prompt_tokens, requests, strict=True):
            if self.context_window is not None and len(tokens) + self.settings.max_tokens > self.context_window:
                raise LLMError(
                    f"{self.model}: a prompt of {len(tokens)} tokens (purpose {request.purpose!r}) and a reply of up "
                    f"to {self.settings.max_tokens} exceed the context window of {self.context_window}. Shorten the "
                    "prompt, lower llm.max_tokens, or choose a model with a longer window"
                )
        streams: Sequence[np.random.Generator | None] = [None] * len(requests)
        if self.settings.temperature > 0 or self._sampler is not None:  # else the most probable tokens are selected
            streams = self._make_random_generators(requests)
        prompts = [
            TokenPrompt(
                tokens,
                request.adapter,
                stream,
                # Only conversations are cached, because most other requests are not continued.
                is_conversation=any(message["role"] == "assistant" for message in request.messages),
            )
            for tokens, request, stream in zip(prompt_tokens, requests, streams, strict=True)
        ]
        if self._sampler is not None:
            _ = self.module  # sets the end tokens
            samples = self._sampler.sample(prompts, self.settings.max_tokens, self.should_stop)
            return [self._decode_reply(prompt.tokens, *sample) for prompt, sample in zip(prompts, samples, strict=True)]
        # Processes that train a model together each sample a part of the replies, and exchange them.
        processes = ProcessGroup() if self.learners is None else ProcessGroup.get_joined()
        replies = processes.all_gather_object(self._generate(prompts[processes.local_slice(len(requests))]))
        return list(chain.from_iterable(replies))

    def close(self) -> None:
        """Release the weights, except those of a learner; the next request loads them again."""
        self._prefix_cache.clear()
        if self._sampler is not None:
            self._sampler.close()
        if self.learners is None:
            self._model = self._generator = None
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.empty_cache()

    def _generate(self, prompts: Sequence[TokenPrompt]) -> list[ChatReply]:
        """Generate the replies in this process."""
        import torch

        model, learners = self.module, self.learners
        if self._generator is None:
            use_adapters = (lambda _: nullcontext()) if learners is None else learners.use_adapters
            record_log_probs = learners is not None
            self._generator = ReplyGenerator(model, self.settings, self._prefix_cache, use_adapters, record_log_probs)
        try:
            replies = self._generator.generate(prompts)
        except torch.cuda.OutOfMemoryError as error:
            self.close()
            raise LLMError(
                f"{self.model}: {self.device} has not enough memory for prompts of up to "
                f"{max(len(prompt.tokens) for prompt in prompts)} tokens with replies of up to "
                f"{self.settings.max_tokens}. Lower llm.batch_tokens ({self.settings.batch_tokens}) or llm.max_tokens"
            ) from error
        return [
            self._decode_reply(
                prompt.tokens, reply.tokens, np.array(reply.log_probs, np.float32) if reply.log_probs else None
            )
            for prompt, reply in zip(prompts, replies, strict=True)
        ]

    def _make_random_generators(self, requests: Sequence[ChatRequest]) -> list[np.random.Generator]:
        """Return the random generator of each request."""
        seeds = [self._seeds if self.learners is None else self.learners.seeds(request.adapter) for request in requests]
        # Keys do not contain the adapter, so that societies under different proposals have common random numbers.
        keys = [compute_request_key({}, replace(request, adapter="")) for request in requests]
        return [make_request_generator(*pair) for pair in zip(seeds, keys, strict=True)]

    def _decode_reply(self, prompt: Sequence[int], tokens: list[int], log_probs: np.ndarray | None) -> ChatReply:
        """Decode `tokens` up to the first end token, after which there may be padding."""
        end_index = next((i for i, token in enumerate(tokens) if token in self._end_tokens), None)
        text = self._tokenizer.decode(tokens[:end_index], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        length = len(tokens) if end_index is None else end_index + 1
        sample: TokenSample | None = None
        if log_probs is not None:
            sample = TokenSample(tuple(prompt), tuple(tokens[:length]), log_probs[:length])
        return ChatReply(
            text,
            prompt_tokens=len(prompt),
            completion_tokens=length,
            finish="length" if end_index is None else "stop",
            sample=sample,
        )

    @property
    def tokenizer(self) -> Any:
        """Tokenizer with the chat template. The first access creates a model with `make`, and sets `context_window`."""
        if self._tokenizer is None:
            if self.settings.make is not None and self._model_factory is not None:
                self._model_factory.make("chat", self.settings.make)
            tokenizer = load_tokenizer(self.model, self.settings.revision)
            if self._template_text is not None:
                tokenizer.chat_template = self._template_text
            if tokenizer.chat_template is None:
                raise LLMError(
                    f"{self.model}: its tokenizer has no chat template, so it is not a chat model. Choose one that was "
                    "trained to follow instructions, or give the template in a file: llm.chat_template=<file.jinja>"
                )
            config = load_config(self.model, self.settings.revision).get_text_config()
            model_limit = getattr(config, "max_position_embeddings", None)
            if self.context_window is not None and model_limit is not None and self.context_window > model_limit:
                raise ConfigError(
                    f"llm.context_window={self.context_window} is more than the {model_limit} tokens that {self.model} "
                    "was made for (max_position_embeddings in its config.json); lower it"
                )
            self.context_window = model_limit if self.context_window is None else self.context_window
            self._tokenizer = tokenizer
        return self._tokenizer

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the token ids of the prompt, which ends with the tokens that begin a reply.

        Raises:
            LLMError: there is no chat template, or it does not accept these messages.
        """
        return self._tokenize_rendered(self._render_template(messages, begins_reply=True))

    def encode_reply(self, messages: Sequence[Mapping[str, str]], reply: str) -> list[int]:
        """Return the token ids of `reply` as the model would generate them, including the end token.

        Raises:
            LLMError: there is no chat template, it does not accept these messages, or there is no end token.
        """
        prompt = self._render_template(messages, begins_reply=True)
        dialogue = self._render_template([*messages, {"role": "assistant", "content": reply}], begins_reply=False)
        end_token = self.tokenizer.eos_token_id
        if end_token is None:
            raise LLMError(f"{self.model}: its tokenizer has no end-of-sequence token; choose another model")
        # Some templates do not render the prompt as a prefix of the complete dialogue.
        ids = self._tokenize_rendered(dialogue[len(prompt) :] if dialogue.startswith(prompt) else reply)
        return [*ids[: ids.index(end_token)], int(end_token)] if end_token in ids else [*ids, int(end_token)]

    def _render_template(self, messages: Sequence[Mapping[str, str]], begins_reply: bool) -> str:
        """Return `messages` in the chat template, with the text that begins a reply at the end if `begins_reply`."""
        from jinja2 import TemplateError

        tokenizer = self.tokenizer
        try:
            return tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=begins_reply
            )
        except TemplateError as error:
            raise LLMError(
                f"{self.model}: its chat template does not accept messages with the roles "
                f"{', '.join(message['role'] for message in messages)}: {error}. Set llm.chat_template=<file.jinja>"
            ) from error

    def _tokenize_rendered(self, text: str) -> list[int]:
        """Tokenize text that the chat template rendered, which already contains the special tokens."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]


def _to_token_set(tokens: int | Sequence[int] | None) -> set[int]:
    if tokens is None:
        return set()
    return {tokens} if isinstance(tokens, int) else set(tokens)
