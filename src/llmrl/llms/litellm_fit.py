"""Check of sampling settings against litellm's tables, before anything is sent.

litellm refuses some settings that a model does not support, and silently drops or replaces others. This module refuses
all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.llms.sampling import SamplingSettings

logger = logging.getLogger(__name__)

_BUDGET_FIELDS = ("budget_tokens", "thinkingBudget", "thinking_budget")
_EFFORT_FIELDS = ("reasoning_effort", "effort", "thinkingLevel")
MIN_ANTHROPIC_BUDGET = 1024
"""Minimum thinking budget of Anthropic's models, in tokens."""
_OPTION_NAMES = {"seed": "sampling_seed", "thinking": "thinking_budget", "max_tokens": "max_tokens"}


def provider_name(litellm: Any, model: str) -> str:
    """Return litellm's name of a model's provider, e.g. `anthropic`.

    Raises:
        ConfigError: litellm does not know the model.
    """
    try:
        return str(litellm.get_llm_provider(model)[1])
    except litellm.exceptions.BadRequestError:
        raise ConfigError(
            f"llm.model={model}: litellm does not know the provider of this model; write <provider>/<model>, e.g. "
            "anthropic/claude-haiku-4-5"
        ) from None


def completion_arguments(
    litellm: Any, model: str, sampling: SamplingSettings, max_tokens: int | None
) -> dict[str, Any]:
    """Return the arguments of `litellm.completion` for the settings in `sampling`, except the seed.

    If a reasoning model accepts no thinking budget, `thinking_budget` is only part of its token limit.

    Raises:
        ConfigError: the model does not support a setting, which the message names.
    """
    provider = provider_name(litellm, model)
    options: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop": None if sampling.stop is None else list(sampling.stop),
        "reasoning_effort": sampling.reasoning_effort,
        "max_tokens": sampling.max_tokens_with_thoughts(max_tokens),
    }
    settings: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    seed = {} if sampling.sampling_seed is None else {"seed": sampling.sampling_seed}
    request = _request_parameters(litellm, model, provider, settings | seed)
    if sampling.reasoning_effort is not None and not _has_effort(request, sampling.reasoning_effort):
        raise _rejection(
            model,
            "reasoning_effort",
            sampling.reasoning_effort,
            "it would be sent as another effort, or not at all; use another one or null",
        )
    limit = settings.get("max_tokens")
    if limit is not None and (budget := max(_thinking_budgets(request), default=0)) >= limit:
        raise _rejection(
            model,
            "reasoning_effort",
            sampling.reasoning_effort,
            f"it means {budget} tokens of thought, which llm.max_tokens={limit} includes; increase llm.max_tokens",
        )
    if sampling.thinking_budget is not None:
        settings |= _thinking_argument(litellm, model, provider, settings, sampling.thinking_budget)
    if sampling.extra_body:
        if provider == "anthropic":
            raise _rejection(
                model, "extra_body", "{...}", "litellm does not pass further fields to Anthropic; set it to null"
            )
        settings["extra_body"] = dict(sampling.extra_body)
    return settings


def output_config(litellm: Any, model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return litellm's `output_config` for Anthropic: the effort of models that think adaptively."""
    return dict(_request_parameters(litellm, model, provider_name(litellm, model), settings).get("output_config") or {})


def _thinking_argument(
    litellm: Any, model: str, provider: str, settings: dict[str, Any], budget: int
) -> dict[str, Any]:
    """Return the argument for a thinking budget; {} if the model's API has none."""
    if not litellm.supports_reasoning(model):
        raise _rejection(model, "thinking_budget", budget, "it does not reason before it answers; set it to null")
    thinking = {"type": "enabled", "budget_tokens": budget}
    base_settings = {name: value for name, value in settings.items() if name != "reasoning_effort"}
    try:
        request = _request_parameters(litellm, model, provider, {**base_settings, "thinking": thinking})
    except ConfigError:
        request = {}
    if budget not in _thinking_budgets(request):
        logger.info("%s accepts no thinking budget; its token limit applies to thoughts and answer together", model)
        return {}
    if "reasoning_effort" in settings:
        raise _rejection(
            model,
            "thinking_budget",
            budget,
            "it accepts only one of this and llm.reasoning_effort; set one of them to null",
        )
    if provider == "anthropic":
        if budget < MIN_ANTHROPIC_BUDGET:
            raise _rejection(model, "thinking_budget", budget, f"the minimum is {MIN_ANTHROPIC_BUDGET}")
        if settings.get("temperature") not in (None, 1.0):
            raise _rejection(model, "temperature", settings["temperature"], "with a thinking budget it accepts only 1")
    return {"thinking": thinking}


def _request_parameters(litellm: Any, model: str, provider: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that a provider would be sent for settings."""
    name = model.removeprefix(f"{provider}/")
    try:
        parameters = litellm.utils.get_optional_params(model=name, custom_llm_provider=provider, **settings)
    except (litellm.UnsupportedParamsError, litellm.exceptions.BadRequestError) as error:
        supported = set(litellm.get_supported_openai_params(model=name, custom_llm_provider=provider) or ())
        for setting, value in settings.items():
            if setting not in supported:
                raise _rejection(model, _OPTION_NAMES.get(setting, setting), value, "set it to null") from None
        reason = str(error).partition(" To drop")[0].partition("Error: ")[2]
        raise ConfigError(f"{model} does not accept this combination of settings: {reason}") from None
    return dict(parameters)


def _has_effort(request: dict[str, Any], effort: str) -> bool:
    """Return whether a request expresses an effort, as a level, a thinking budget, or a switch."""
    fields = list(_fields(request))
    if levels := [value for name, value in fields if name in _EFFORT_FIELDS]:
        return effort in levels
    if _thinking_budgets(request):
        return True
    switch = next((value for name, value in fields if name == "type" and value in ("enabled", "disabled")), None)
    return {"enabled": effort == "high", "disabled": effort == "none", None: effort == "none"}[switch]


def _thinking_budgets(request: dict[str, Any]) -> list[int]:
    """Return the thinking budgets in a request, in tokens."""
    return [value for name, value in _fields(request) if name in _BUDGET_FIELDS and isinstance(value, int)]


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield all names and values of nested mappings."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield str(name), inner
            yield from _fields(inner)


def _rejection(model: str, setting: str, value: object, reason: str) -> ConfigError:
    """Return the error for a setting that a model does not accept."""
    return ConfigError(f"{model} does not accept llm.{setting}={value}: {reason}")
