"""Chat models of many providers through litellm, and checks of settings against litellm's tables."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmrl.core.errors import ConfigError, LLMError
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.hosted import HostedProvider, HostedSettings, check_address, is_refusal_status, parse_message
from llmrl.llms.images import to_content_parts
from llmrl.llms.retry import RETRIABLE_STATUSES, TransientError, parse_retry_after

logger = logging.getLogger(__name__)

_BUDGET_FIELDS = ("budget_tokens", "thinkingBudget", "thinking_budget")
_EFFORT_FIELDS = ("reasoning_effort", "effort", "thinkingLevel")
"""Fields of providers' requests that contain a thinking budget (tokens) or a level of effort."""
MIN_ANTHROPIC_BUDGET = 1024
"""Minimum thinking budget of Anthropic's models, in tokens."""
_OPTION_BY_ARGUMENT = {"seed": "sampling_seed", "thinking": "thinking_budget"}
"""Options of llm= by argument of `litellm.completion`, where their names differ."""


def _contains_effort(request: dict[str, Any], effort: str) -> bool:
    """Return whether a request expresses `effort` by a level, a thinking budget, or thinking switched on or off."""
    fields = list(_nested_fields(request))
    if levels := [value for name, value in fields if name in _EFFORT_FIELDS]:
        return effort in levels
    if _list_thinking_budgets(request):
        return True
    switch = next((value for name, value in fields if name == "type" and value in ("enabled", "disabled")), None)
    return {"enabled": effort == "high", "disabled": effort == "none", None: effort == "none"}[switch]


def _list_thinking_budgets(request: dict[str, Any]) -> list[int]:
    """Return the thinking budgets in a request, in tokens."""
    return [value for name, value in _nested_fields(request) if name in _BUDGET_FIELDS and isinstance(value, int)]


def _nested_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of all fields of nested mappings."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield str(name), inner
            yield from _nested_fields(inner)


MIN_BLOCK_LENGTH = 2000
"""Minimum number of characters of a block of a long message, about 500 tokens.

Anthropic compares only the 20 blocks before a cache mark with its cache, so blocks must not be short.
"""
N_CACHE_MARKS = 2
"""Number of marked blocks in the last message; Anthropic accepts four cache marks in a request.

The mark on the earlier block still matches the cache if the later block has changed.
"""


@dataclass(frozen=True)
class LiteLLMSettings(HostedSettings):
    """Options of `LiteLLMChat`; meanings, units and ranges are in `conf/llm/_hosted.yaml`."""

    api_base: str | None


class LiteLLMChat(HostedProvider):
    """Chat model with a litellm name (`gpt-4o`, `anthropic/...`, `gemini/...`), without streaming.

    Prices are settings, because litellm's table of prices does not contain every model.
    """

    settings: LiteLLMSettings

    def __init__(self, settings: LiteLLMSettings) -> None:
        super().__init__(settings)
        if settings.api_base is not None:
            check_address(settings.api_base, settings.plain_http, "llm.api_base")
        self.label = f"{settings.model} (litellm)"

    @property
    def identity(self) -> dict[str, Any]:
        return {**self.settings.identity, "api_base": self.settings.api_base}

    @property
    def accepts_images(self) -> bool:
        """True if the model accepts images according to litellm's table."""
        return bool(_import_litellm().supports_vision(self.settings.model))

    def check(self) -> None:
        """Raise LLMError if litellm or the key is missing, ConfigError for an unsupported setting; send no request."""
        if importlib.util.find_spec("litellm") is None:
            raise LLMError(
                f"{self.label} needs the optional package litellm: pip install 'llmrl[llm]'. "
                "Without it llm=openai_compatible, llm=ollama and llm=scripted work."
            )
        super().check()
        self._completion_arguments  # noqa: B018  (accessed because it may raise)

    @functools.cached_property
    def _provider(self) -> str:
        """Name of the provider in litellm, e.g. `anthropic`. Raises ConfigError if litellm finds no provider."""
        litellm = _import_litellm()
        try:
            return str(litellm.get_llm_provider(self.settings.model)[1])
        except litellm.exceptions.BadRequestError:
            raise ConfigError(
                f"llm.model={self.settings.model}: litellm does not know the provider of this model; write "
                "<provider>/<model>, e.g. anthropic/claude-haiku-4-5"
            ) from None

    @property
    def _is_anthropic(self) -> bool:
        """True for Anthropic's models, whose requests have special fields for schemas, thinking and caching."""
        return self._provider == "anthropic"

    @functools.cached_property
    def _completion_arguments(self) -> dict[str, Any]:
        """Arguments of `litellm.completion` for the settings, except the seed.

        If a reasoning model accepts no thinking budget, `thinking_budget` only increases the limit on its tokens.

        Raises:
            ConfigError: the model does not support a setting.
        """
        settings = self.settings
        options: dict[str, Any] = {
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "stop": None if settings.stop is None else list(settings.stop),
            "reasoning_effort": settings.reasoning_effort,
            "max_tokens": self.max_reply_tokens,
        }
        arguments: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        seed_argument = {} if settings.sampling_seed is None else {"seed": settings.sampling_seed}
        request = self._build_request_parameters(arguments | seed_argument)
        if settings.reasoning_effort is not None and not _contains_effort(request, settings.reasoning_effort):
            problem = "it would be sent as another effort, or not at all; use another one or null"
            raise self._setting_error("reasoning_effort", settings.reasoning_effort, problem)
        max_tokens = arguments.get("max_tokens")
        if max_tokens is not None and (budget := max(_list_thinking_budgets(request), default=0)) >= max_tokens:
            problem = f"it means {budget} tokens of thought, which llm.max_tokens={max_tokens} includes; increase it"
            raise self._setting_error("reasoning_effort", settings.reasoning_effort, problem)
        if settings.thinking_budget is not None:
            arguments |= self._build_thinking_argument(arguments, settings.thinking_budget)
        if settings.extra_body:
            if self._is_anthropic:
                problem = "litellm does not pass further fields to Anthropic; set it to null"
                raise self._setting_error("extra_body", "{...}", problem)
            arguments["extra_body"] = dict(settings.extra_body)
        return arguments

    def _build_thinking_argument(self, arguments: dict[str, Any], budget: int) -> dict[str, Any]:
        """Return the argument for a thinking budget of `budget` tokens; {} if the model's API has no such argument."""
        model = self.settings.model
        if not _import_litellm().supports_reasoning(model):
            raise self._setting_error("thinking_budget", budget, "it does not reason before it answers; set it to null")
        thinking = {"type": "enabled", "budget_tokens": budget}
        other_arguments = {name: value for name, value in arguments.items() if name != "reasoning_effort"}
        try:
            request = self._build_request_parameters({**other_arguments, "thinking": thinking})
        except ConfigError:
            request = {}
        if budget not in _list_thinking_budgets(request):
            logger.info("%s accepts no thinking budget; its token limit applies to thoughts and answer together", model)
            return {}
        if "reasoning_effort" in arguments:
            problem = "it accepts only one of this and llm.reasoning_effort; set one of them to null"
            raise self._setting_error("thinking_budget", budget, problem)
        if self._is_anthropic:
            if budget < MIN_ANTHROPIC_BUDGET:
                raise self._setting_error("thinking_budget", budget, f"the minimum is {MIN_ANTHROPIC_BUDGET}")
            if (temperature := arguments.get("temperature")) not in (None, 1.0):
                raise self._setting_error("temperature", temperature, "with a thinking budget it accepts only 1")
        return {"thinking": thinking}

    def _build_request_parameters(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of the request that litellm would send to the provider for `arguments`."""
        litellm, model = _import_litellm(), self.settings.model
        target = {"model": model.removeprefix(f"{self._provider}/"), "custom_llm_provider": self._provider}
        try:
            return dict(litellm.utils.get_optional_params(**target, **arguments))
        except (litellm.UnsupportedParamsError, litellm.exceptions.BadRequestError) as error:
            supported = set(litellm.get_supported_openai_params(**target) or ())
            for name, value in arguments.items():
                if name not in supported:
                    raise self._setting_error(_OPTION_BY_ARGUMENT.get(name, name), value, "set it to null") from None
            reason = str(error).partition(" To drop")[0].partition("Error: ")[2]
            raise ConfigError(f"{model} does not accept this combination of settings: {reason}") from None

    def _setting_error(self, setting: str, value: object, reason: str) -> ConfigError:
        """Return the error for a setting that the model does not accept."""
        return ConfigError(f"{self.settings.model} does not accept llm.{setting}={value}: {reason}")

    def _build_schema_argument(self, request: ChatRequest) -> dict[str, Any]:
        """Return the argument that requests a reply with the schema of `request`; it is None without a schema."""
        response_format = self._response_format(request)
        if response_format is None or not self._is_anthropic:
            return {"response_format": response_format}
        # litellm would use a field of a beta version, which the documentation of Anthropic's API no longer contains.
        schema = {"type": "json_schema", "schema": response_format["json_schema"]["schema"]}
        # Some models have their effort in the same argument.
        effort = self._build_request_parameters(self._completion_arguments).get("output_config") or {}
        return {"output_config": {**effort, "format": schema}}

    @property
    def account_label(self) -> str:
        label = super().account_label
        return label if self.settings.api_base is None else f"{label}, {self.settings.api_base}"

    def _attempt(self, request: ChatRequest) -> ChatReply:
        litellm = _import_litellm()
        options = {
            **self._completion_arguments,
            "api_key": self._api_key(),
            "api_base": self.settings.api_base,
            "seed": self.settings.request_seed(request.repeat),
            **self._build_schema_argument(request),
        }
        try:
            # No retries by litellm: `Endpoint` retries, and litellm would ignore Retry-After.
            response = litellm.completion(
                model=self.settings.model,
                messages=[
                    to_content_parts(message)
                    for message in (mark_cache_prefix(request.messages) if self._is_anthropic else request.messages)
                ],
                timeout=self.settings.timeout,
                num_retries=0,
                max_retries=0,
                stream=False,
                **{name: value for name, value in options.items() if value is not None},
            )
            choice = response.choices[0]
            message = choice.message.model_dump()
        except Exception as error:  # noqa: BLE001
            # litellm raises exceptions of many libraries. `from None`, because they may contain the key.
            raise self._convert_error(error) from None
        usage = getattr(response, "usage", None)
        finish = self._redact(getattr(choice, "finish_reason", None) or "")
        return parse_message(message, usage.model_dump() if usage is not None else {}, finish)

    def _convert_error(self, error: Exception) -> LLMError:
        """Return an LLMError for an exception of litellm, or a TransientError if another attempt may succeed."""
        message = f"{self.label}: {type(error).__name__}: {self._redact(error)}"
        status = getattr(error, "status_code", None)
        # An answer without choices causes an IndexError, a broken connection an error without a status.
        name = type(error).__name__
        if status in RETRIABLE_STATUSES or isinstance(error, IndexError) or "Timeout" in name or "Connection" in name:
            # Not the headers of `error.response`, which litellm may have created without the server's headers.
            wait = parse_retry_after((getattr(error, "litellm_response_headers", None) or {}).get("retry-after"))
            return TransientError(message, wait, refused=_is_unprocessed(error, status))
        return LLMError(message, refused=_is_unprocessed(error, status))


def mark_cache_prefix(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return `messages` with `cache_control` marks on blocks up to which the next prompt is probably equal.

    Marks are on the system message, the message before the last, and blocks near the end of a long last message. The
    provider caches all blocks up to a mark. A long last message is split into blocks, because in the next prompt
    probably only its end is different.
    """
    last_index = len(messages) - 1
    marked_messages: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        if i == last_index and len(blocks := split_blocks(message["content"])) > 1:
            cache_blocks = [_make_cached_block(block) for block in blocks[-1 - N_CACHE_MARKS : -1]]
            text_parts = [{"type": "text", "text": block} for block in blocks]
            content = [*text_parts[: len(blocks) - 1 - len(cache_blocks)], *cache_blocks, text_parts[-1]]
            marked_messages.append({**message, "content": content})
        elif i != last_index and (message["role"] == "system" or i == last_index - 1):
            marked_messages.append({**message, "content": [_make_cached_block(message["content"])]})
        else:
            marked_messages.append(dict(message))
    return marked_messages


def split_blocks(text: str) -> list[str]:
    """Split `text` at line ends into blocks of at least `MIN_BLOCK_LENGTH` characters; the last one may be shorter.

    Texts with a common prefix have equal first blocks.
    """
    blocks: list[str] = []
    while (end := text.find("\n", MIN_BLOCK_LENGTH)) >= 0 and len(text) > end + 1:
        blocks.append(text[: end + 1])
        text = text[end + 1 :]
    return [*blocks, text]


def _make_cached_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def _is_unprocessed(error: BaseException, status: object) -> bool:
    """Return whether the provider has certainly generated nothing.

    This is so if it refused the request, or if there was no connection, for which litellm reports the status 500.
    """
    if isinstance(status, int) and is_refusal_status(status):
        return True
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        if type(cause).__name__ in ("ConnectError", "ConnectTimeout", "ClientConnectorError"):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _import_litellm() -> Any:
    """Import litellm without its downloads of tables and its messages about errors."""
    for table in ("MODEL_COST_MAP", "ANTHROPIC_BETA_HEADERS", "AUTOROUTER_PRESETS", "POLICY_TEMPLATES", "BLOG_POSTS"):
        os.environ.setdefault(f"LITELLM_LOCAL_{table}", "True")
    import litellm

    litellm.suppress_debug_info = True
    # litellm would log warnings about parameters at every call; failures raise exceptions.
    logging.getLogger("LiteLLM").setLevel(logging.ERROR)
    return litellm
