"""Whether a model takes the settings it is to be asked with, by litellm's own tables, before anything is sent.

litellm refuses some settings that a model does not take, and drops or replaces others without a word. Here all of them
are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.llms.sampling import SamplingSettings

logger = logging.getLogger(__name__)

_BUDGETS = ("budget_tokens", "thinkingBudget", "thinking_budget")
_EFFORTS = ("reasoning_effort", "effort", "thinkingLevel")
LEAST_CLAUDE_BUDGET = 1024
"""Tokens of thought, the fewest that Anthropic takes."""
_NAMED = {"seed": "sampling_seed", "thinking": "thinking_budget", "max_tokens": "max_tokens"}


def provider_of(litellm: Any, model: str) -> str:
    """Name that litellm knows a model's provider by, e.g. `anthropic`.

    Raises:
        ConfigError: litellm knows no such model.
    """
    try:
        return str(litellm.get_llm_provider(model)[1])
    except litellm.exceptions.BadRequestError:
        raise ConfigError(
            f"llm.model={model}: litellm does not know whose model this is; write <provider>/<model>, such as "
            "anthropic/claude-haiku-4-5"
        ) from None


def fitted(litellm: Any, model: str, sampling: SamplingSettings, max_tokens: int | None) -> dict[str, Any]:
    """The arguments of `litellm.completion` that say what `sampling` does, but for the seed.

    A model that reasons and takes no budget in tokens has room for `thinking_budget` in its limit, and no more.

    Raises:
        ConfigError: the model does not take a setting; says which.
    """
    provider = provider_of(litellm, model)
    wanted: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop": None if sampling.stop is None else list(sampling.stop),
        "reasoning_effort": sampling.reasoning_effort,
        "max_tokens": sampling.longest(max_tokens),
    }
    settings: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    sent = _sent(litellm, model, provider, settings | ({} if sampling.seed is None else {"seed": sampling.seed}))
    if sampling.reasoning_effort is not None and not _holds_effort(sent, sampling.reasoning_effort):
        raise _refused(
            model, "reasoning_effort", sampling.reasoning_effort, "it would be sent as another one, or not at all"
        )
    longest = settings.get("max_tokens")
    if longest is not None and (thought := max(_budgets(sent), default=0)) >= longest:
        raise _refused(
            model,
            "reasoning_effort",
            sampling.reasoning_effort,
            f"it stands for {thought} tokens of thought, and llm.max_tokens={longest} is to hold these and the answer",
        )
    if sampling.thinking_budget is not None:
        settings |= _budget(litellm, model, provider, settings, sampling.thinking_budget)
    if sampling.extra_body:
        if provider == "anthropic":
            raise _refused(model, "extra_body", "{...}", "litellm hands no further fields on to Anthropic")
        settings["extra_body"] = dict(sampling.extra_body)
    return settings


def output_config(litellm: Any, model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What litellm puts into Anthropic's field of that name: the effort of models that think adaptively."""
    return dict(_sent(litellm, model, provider_of(litellm, model), settings).get("output_config") or {})


def _budget(litellm: Any, model: str, provider: str, settings: dict[str, Any], budget: int) -> dict[str, Any]:
    """The argument that holds a model to a budget of thoughts; none where its API has no field for one."""
    if not litellm.supports_reasoning(model):
        raise _refused(model, "thinking_budget", budget, "it does not reason before it answers")
    thinking = {"type": "enabled", "budget_tokens": budget}
    without = {name: value for name, value in settings.items() if name != "reasoning_effort"}
    try:
        sent = _sent(litellm, model, provider, {**without, "thinking": thinking})
    except ConfigError:
        sent = {}
    if budget not in _budgets(sent):
        logger.info("%s takes no budget of thoughts: its limit is that of thought and answer together", model)
        return {}
    if "reasoning_effort" in settings:
        raise _refused(model, "thinking_budget", budget, "with llm.reasoning_effort, of which it takes only one")
    if provider == "anthropic":
        if budget < LEAST_CLAUDE_BUDGET:
            raise _refused(model, "thinking_budget", budget, f"it takes {LEAST_CLAUDE_BUDGET} or more")
        if settings.get("temperature") not in (None, 1.0):
            raise _refused(model, "temperature", settings["temperature"], "while it thinks it takes only 1")
    return {"thinking": thinking}


def _sent(litellm: Any, model: str, provider: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What a provider would be sent for settings."""
    name = model.removeprefix(f"{provider}/")
    try:
        sent = litellm.utils.get_optional_params(model=name, custom_llm_provider=provider, **settings)
    except (litellm.UnsupportedParamsError, litellm.exceptions.BadRequestError) as error:
        known = set(litellm.get_supported_openai_params(model=name, custom_llm_provider=provider) or ())
        for setting, value in settings.items():
            if setting not in known:
                raise _refused(model, _NAMED.get(setting, setting), value, "set it to null") from None
        why = str(error).partition(" To drop")[0].partition("Error: ")[2]
        raise ConfigError(f"{model} does not take these settings together: {why}") from None
    return dict(sent)


def _holds_effort(sent: dict[str, Any], effort: str) -> bool:
    """Whether what is sent says as much: the same level, a budget that stands for it, or to think or not to."""
    fields = list(_fields(sent))
    if levels := [value for name, value in fields if name in _EFFORTS]:
        return effort in levels
    if _budgets(sent):
        return True
    switch = next((value for name, value in fields if name == "type" and value in ("enabled", "disabled")), None)
    return {"enabled": effort == "high", "disabled": effort == "none", None: effort == "none"}[switch]


def _budgets(sent: dict[str, Any]) -> list[int]:
    """Tokens of thought that a request grants."""
    return [value for name, value in _fields(sent) if name in _BUDGETS and isinstance(value, int)]


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """All names and values, however deep."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield str(name), inside
            yield from _fields(inside)


def _refused(model: str, setting: str, value: object, why: str) -> ConfigError:
    return ConfigError(f"{model} does not take llm.{setting}={value}: {why}")
