"""Hosted models of every provider through litellm."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.hosted import HostedProvider, check_address, refuses, reply_of
from llmrl.llms.images import in_parts
from llmrl.llms.litellm_fit import fitted, output_config, provider_of
from llmrl.llms.retry import RETRIABLE_STATUS, TransientError, parse_retry_after
from llmrl.llms.sampling import Effort, Sampling

BLOCK = 2000
"""Characters of a block of a long question, about 500 tokens. Anthropic looks for what it has kept in the 20 blocks
before a mark."""
LAST_MARKS = 2
"""Blocks of the last message that are marked, of the four marks that Anthropic takes: with a second one, what was kept
is found although the end of the newest block has changed."""


class LiteLLMChat(HostedProvider):
    """Chat with any model litellm knows, by its litellm name (`gpt-4o`, `anthropic/...`, `gemini/...`). No streaming.

    Prices come from the option file and not from litellm's table, which does not know every model.

    Args:
        api_base: another address for the provider's API; None is the provider's own.
        prompt_caching: mark the prefix of prompts that the next one is likely to share, for the provider's own cache;
            None: where its models need marks, as Anthropic's do.

    The others are those of `HostedProvider` and `Sampling`.
    """

    def __init__(
        self,
        model: str,
        api_key_env: str | None,
        api_base: str | None = None,
        prompt_caching: bool | None = None,
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
    ) -> None:
        sampling = Sampling(temperature, top_p, sampling_seed, stop, reasoning_effort, thinking_budget, extra_body)
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
            check_address(api_base, "llm.api_base")
        self.api_base, self.prompt_caching = api_base, prompt_caching
        self.label = f"{model} (litellm)"

    @property
    def identity(self) -> dict[str, Any]:
        return {**super().identity, "api_base": self.api_base}

    @property
    def sees(self) -> bool:
        """Whether the model takes pictures, by litellm's table."""
        return bool(_import_litellm().supports_vision(self.model))

    def check(self) -> None:
        """Raises LLMError if litellm is not installed or the key is not set, ConfigError if the model does not take a
        setting. Costs nothing: no request is made."""
        if importlib.util.find_spec("litellm") is None:
            raise LLMError(
                f"{self.label} needs the optional package litellm: pip install 'llmrl[llm]'. "
                "Without it llm=openai_compatible, llm=ollama and llm=scripted work."
            )
        super().check()
        self._settings, self._marks  # noqa: B018  (looked at for what they raise)

    @functools.cached_property
    def _settings(self) -> dict[str, Any]:
        """What litellm is given for `sampling`. Raises ConfigError if the model does not take it."""
        return fitted(_import_litellm(), self.model, self.sampling, self.max_tokens)

    @functools.cached_property
    def _claude(self) -> bool:
        """Whether the model is one of Anthropic's."""
        return provider_of(_import_litellm(), self.model) == "anthropic"

    @functools.cached_property
    def _marks(self) -> bool:
        """Whether prompts are marked. Raises ConfigError if the model takes no marks."""
        if self.prompt_caching and not self._claude:
            raise ConfigError(
                f"llm.prompt_caching=true: only Anthropic's models take marks, and {self.model} is none. Set it to "
                "null; other providers cache by themselves"
            )
        return self._claude and self.prompt_caching is not False

    def _form(self, request: ChatRequest) -> dict[str, Any]:
        """The argument that holds a reply to its schema; none where there is none."""
        form = self._response_format(request)
        if form is None or not self._claude:
            return {"response_format": form}
        # litellm would send the schema in a field of a beta, which Anthropic's API no longer lists.
        schema = {"type": "json_schema", "schema": form["json_schema"]["schema"]}
        return {"output_config": {**output_config(_import_litellm(), self.model, self._settings), "format": schema}}

    def _attempt(self, request: ChatRequest) -> ChatReply:
        litellm = _import_litellm()
        options = {
            **self._settings,
            "api_key": self._key(),
            "api_base": self.api_base,
            "seed": self.sampling.seed_of(request.repeat),
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
            # litellm raises classes of many providers' libraries. `from None`: their tracebacks may quote the key.
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
            # Not in `error.response`, which litellm makes up anew.
            headers = getattr(error, "litellm_response_headers", None) or {}
            wait = parse_retry_after(headers.get("retry-after"))
            return TransientError(message, wait, refused=_nothing_generated(error, status))
        return LLMError(message, refused=_nothing_generated(error, status))


def marked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`messages` with `cache_control` on what the next prompt is likely to begin with: the system's message, all but
    the last, and of a long last one what stands before its end.

    A message is kept up to a mark, so a long question, of which only the end changes, is sent in blocks.
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
    """`text` in pieces that end with a line, of `BLOCK` characters or a little more; where they end is decided by what
    stands before, so texts that begin alike are cut alike."""
    pieces: list[str] = []
    while (end := text.find("\n", BLOCK)) >= 0 and len(text) > end + 1:
        pieces.append(text[: end + 1])
        text = text[end + 1 :]
    return [*pieces, text]


def _marked(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def _nothing_generated(error: BaseException, status: object) -> bool:
    """Whether that is certain: the provider refused, or no connection was made, which litellm calls a status of 500."""
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
    """litellm, kept from fetching its tables over the network and from printing advice on errors."""
    for table in ("MODEL_COST_MAP", "ANTHROPIC_BETA_HEADERS", "AUTOROUTER_PRESETS", "POLICY_TEMPLATES", "BLOG_POSTS"):
        os.environ.setdefault(f"LITELLM_LOCAL_{table}", "True")
    import litellm

    litellm.suppress_debug_info = True
    return litellm
