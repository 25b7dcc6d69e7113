"""Client of hosted models of every provider, through litellm."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.batches.batch_api import BatchWire, wire_of
from llmrl.llms.batches.batch_queue import Desk
from llmrl.llms.batches.litellm_requests import Kept, Prepared, client_of
from llmrl.llms.hosted import HostedProvider, check_address, refuses, reply_of
from llmrl.llms.images import in_parts
from llmrl.llms.litellm_fit import fitted, output_config, provider_of
from llmrl.llms.retry import RETRIABLE_STATUS, TransientError, parse_retry_after
from llmrl.llms.sampling import Effort, SamplingSettings

BLOCK = 2000
"""Characters of a block of a long message, about 500 tokens. Anthropic searches its cache in the 20 blocks before a
cache mark."""
HALF_PRICE = 0.5
"""Share of their prices that OpenAI and Anthropic charge for batches."""
LAST_MARKS = 2
"""Marked blocks of the last message, of the four cache marks that Anthropic accepts. With a second mark the cache is
found even if the end of the newest block has changed."""
MOST_TOLD = 1000
"""Most distinct lines of litellm's log that are passed on, each once."""


class LiteLLMChat(HostedProvider):
    """Chat model with a litellm name (`gpt-4o`, `anthropic/...`, `gemini/...`), without streaming.

    Prices come from the option file and not from litellm's table, which does not know every model.

    Args:
        api_base: another address of the provider's API; None: the provider's own.
        plain_http: whether `api_base` may be an http address of another machine.
        prompt_caching: mark the prefix of prompts that the next one is likely to share, for the provider's own cache;
            None: only for models that need marks, which are Anthropic's.
        batch: use the provider's batch API, at half the price.
        batch_gather: seconds without a new request after which the requests of all runs are sent.
        batch_poll: seconds between two status requests of a batch.

    The other arguments are those of `HostedProvider` and `SamplingSettings`.
    """

    def __init__(
        self,
        model: str,
        api_key_env: str | None,
        api_base: str | None = None,
        prompt_caching: bool | None = None,
        batch: bool = False,
        batch_gather: NonNegativeFloat = 2.0,
        batch_poll: PositiveFloat = 60.0,
        structured: bool = True,
        temperature: NonNegativeFloat | None = 1.0,
        top_p: UnitInterval | None = None,
        sampling_seed: NonNegativeInt | None = None,
        stop: list[str] | None = None,
        reasoning_effort: Effort | None = None,
        thinking_budget: PositiveInt | None = None,
        feed_thoughts: bool = False,
        extra_body: dict[str, Any] | None = None,
        max_tokens: PositiveInt | None = None,
        timeout: PositiveFloat = 120.0,
        context_window: PositiveInt | None = None,
        input_price: NonNegativeFloat | None = None,
        cached_input_price: NonNegativeFloat | None = None,
        cache_write_price: NonNegativeFloat | None = None,
        output_price: NonNegativeFloat | None = None,
        plain_http: bool = False,
    ) -> None:
        sampling = SamplingSettings(
            temperature, top_p, sampling_seed, stop, reasoning_effort, thinking_budget, extra_body
        )
        super().__init__(
            model,
            api_key_env,
            structured,
            sampling,
            timeout,
            feed_thoughts,
            max_tokens=max_tokens,
            context_window=context_window,
            input_price=input_price,
            cached_input_price=cached_input_price,
            cache_write_price=cache_write_price,
            output_price=output_price,
        )
        if api_base is not None:
            check_address(api_base, plain_http, "llm.api_base")
        self.api_base, self.prompt_caching = api_base, prompt_caching
        self.label = f"{model} (litellm)"
        self.batch, self.batch_gather, self.batch_poll = batch, batch_gather, batch_poll
        self.price_share = HALF_PRICE if batch else 1.0

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "api_base": self.api_base}

    @property
    def sees(self) -> bool:
        """Whether the model accepts images, according to litellm's table."""
        return bool(_import_litellm().supports_vision(self.model))

    def check(self) -> None:
        """Raise LLMError if litellm is not installed or the key is not set, ConfigError if the model does not support
        a setting. Costs nothing: no request is made."""
        if importlib.util.find_spec("litellm") is None:
            raise LLMError(
                f"{self.label} needs the optional package litellm: pip install 'llmrl[llm]'. "
                "Without it llm=openai_compatible, llm=ollama and llm=scripted work."
            )
        super().check()
        self._settings, self._marks  # noqa: B018  (looked at for what they raise)
        if self.batch:
            self._wire  # noqa: B018  (likewise)

    @functools.cached_property
    def _settings(self) -> dict[str, Any]:
        """Arguments of litellm for `sampling`. Raises ConfigError if the model does not support them."""
        return fitted(_import_litellm(), self.model, self.sampling, self.max_tokens)

    @functools.cached_property
    def _claude(self) -> bool:
        """Whether the model is one of Anthropic's."""
        return provider_of(_import_litellm(), self.model) == "anthropic"

    @functools.cached_property
    def _marks(self) -> bool:
        """Whether prompts are marked. Raises ConfigError if the model does not accept marks."""
        if self.prompt_caching and not self._claude:
            raise ConfigError(
                f"llm.prompt_caching=true: only Anthropic's models take marks, and {self.model} is none. Set it to "
                "null; other providers cache by themselves"
            )
        return self._claude and self.prompt_caching is not False

    def _form(self, request: ChatRequest) -> dict[str, Any]:
        """Return the argument that requests the schema of a reply, if the request has one."""
        form = self._response_format(request)
        if form is None or not self._claude:
            return {"response_format": form}
        # litellm would send the schema in a field of a beta, which Anthropic's API no longer lists.
        schema = {"type": "json_schema", "schema": form["json_schema"]["schema"]}
        return {"output_config": {**output_config(_import_litellm(), self.model, self._settings), "format": schema}}

    @functools.cached_property
    def _wire(self) -> BatchWire:
        """Batch API of the provider. Raises ConfigError if none is known."""
        provider = provider_of(_import_litellm(), self.model)
        if (wire := wire_of(provider, self.timeout)) is None:
            raise ConfigError(f"llm.batch=true: {self.label} has no batch API that is known here; set it to false")
        return wire

    @property
    def account(self) -> str:
        return super().account if self.api_base is None else f"{super().account}, {self.api_base}"

    def desk(self, folder: Path) -> Desk:
        return Desk.of(self._wire, self.account, folder, self.batch_gather, self.batch_poll)

    def prepare(self, request: ChatRequest) -> Prepared:
        kept = Kept()
        try:
            self._through(request, kept)
        except LLMError:
            if kept.request is None:
                raise
        assert kept.request is not None
        return kept.request

    def reply_in(self, request: ChatRequest, answer: Mapping[str, Any]) -> ChatReply:
        return self._through(request, Kept(answer))

    def _through(self, request: ChatRequest, transport: Kept) -> ChatReply:
        """Return the reply that `transport` gives to a request."""
        provider = provider_of(_import_litellm(), self.model)
        return self._completion(request, client_of(provider, transport, self._key(), self.api_base))

    def _attempt(self, request: ChatRequest) -> ChatReply:
        return self._completion(request)

    def _completion(self, request: ChatRequest, client: Any = None) -> ChatReply:
        """Call litellm once, with `client` if given, and return the reply."""
        litellm = _import_litellm()
        options = {
            **self._settings,
            "api_key": self._key(),
            "api_base": self.api_base,
            "seed": self.sampling.seed_of(request.repeat),
            "client": client,
            **self._form(request),
        }
        try:
            # Retries are ours: litellm's own would multiply with them and ignore Retry-After.
            answer = litellm.completion(
                model=self.model,
                messages=[in_parts(each) for each in (marked(request.messages) if self._marks else request.messages)],
                timeout=self.timeout,
                num_retries=0,
                max_retries=0,
                stream=False,
                **{name: value for name, value in options.items() if value is not None},
            )
            choice = answer.choices[0]
            message = choice.message.model_dump()
        except Exception as error:  # noqa: BLE001
            # litellm raises exceptions of many libraries. `from None`: their tracebacks may quote the key.
            raise self._translate(error) from None
        usage = getattr(answer, "usage", None)
        finish = self._redact(getattr(choice, "finish_reason", None) or "")
        return reply_of(message, usage.model_dump() if usage is not None else {}, finish)

    def _translate(self, error: Exception) -> LLMError:
        message = f"{self.label}: {type(error).__name__}: {self._redact(error)}"
        status = getattr(error, "status_code", None)
        # An answer without choices arrives as an IndexError, a cut connection as an error without a status.
        name = type(error).__name__
        if status in RETRIABLE_STATUS or isinstance(error, IndexError) or "Timeout" in name or "Connection" in name:
            # Not from `error.response`, which litellm creates itself.
            headers = getattr(error, "litellm_response_headers", None) or {}
            wait = parse_retry_after(headers.get("retry-after"))
            return TransientError(message, wait, refused=_nothing_generated(error, status))
        return LLMError(message, refused=_nothing_generated(error, status))


def marked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `messages` with `cache_control` marks on the prefix that the next prompt is likely to share.

    Marked are the system message, the message before the last, and blocks of a long last message before its end. The
    provider caches up to a mark, so a long last message, of which only the end changes, is split into blocks.
    """
    last = len(messages) - 1
    sent: list[dict[str, Any]] = []
    for i, each in enumerate(messages):
        if i == last and len(parts := blocks(each["content"])) > 1:
            begun = [_marked(part) for part in parts[-1 - LAST_MARKS : -1]]
            plain = [{"type": "text", "text": part} for part in parts]
            content = [*plain[: len(parts) - 1 - len(begun)], *begun, plain[-1]]
            sent.append({**each, "content": content})
        elif i != last and (each["role"] == "system" or i == last - 1):
            sent.append({**each, "content": [_marked(each["content"])]})
        else:
            sent.append(dict(each))
    return sent


def blocks(text: str) -> list[str]:
    """Split `text` at ends of lines into pieces of `BLOCK` characters or slightly more, so that texts with a common
    beginning have equal first pieces."""
    pieces: list[str] = []
    while (end := text.find("\n", BLOCK)) >= 0 and len(text) > end + 1:
        pieces.append(text[: end + 1])
        text = text[end + 1 :]
    return [*pieces, text]


def _marked(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def _nothing_generated(error: BaseException, status: object) -> bool:
    """Return whether certainly nothing was generated: the provider refused, or there was no connection (which litellm
    reports as status 500)."""
    if isinstance(status, int) and refuses(status):
        return True
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if type(cause).__name__ in ("ConnectError", "ConnectTimeout", "ClientConnectorError"):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _import_litellm() -> Any:
    """Import litellm without downloads of its tables and without printed advice on errors."""
    for table in ("MODEL_COST_MAP", "ANTHROPIC_BETA_HEADERS", "AUTOROUTER_PRESETS", "POLICY_TEMPLATES", "BLOG_POSTS"):
        os.environ.setdefault(f"LITELLM_LOCAL_{table}", "True")
    import litellm

    litellm.suppress_debug_info = True
    told = logging.getLogger("LiteLLM")
    if _told_once not in told.filters:
        told.addFilter(_told_once)
    return litellm


_told: set[str] = set()


def _told_once(record: logging.LogRecord) -> bool:
    """Filter repeated lines of litellm's log, which warns of a model's parameters at every call."""
    line = record.getMessage()
    if line in _told or len(_told) == MOST_TOLD:
        return False
    _told.add(line)
    return True
