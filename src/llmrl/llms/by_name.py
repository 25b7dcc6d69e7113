"""Construction of language models from the names of options in conf/llm, without Hydra and without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmrl.core import option_files
from llmrl.core.arguments import get_signature
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.trust import NO_FURTHER_TRUST
from llmrl.llms.cache import Cache
from llmrl.llms.call_log import CallLog
from llmrl.llms.client import ChatClient
from llmrl.llms.provider import Provider


def chat_model(
    option: str, *, seed: int = 0, cache: Path | None = None, call_log: Path | None = None, **settings: Any
) -> ChatClient:
    """Return a client of the chat model `llm=<option>`, with default retries and limits.

    Args:
        option: option of `llm`, e.g. `gpt4o`, `ollama`, `scripted`.
        seed: seed of a model in this process, and seed to which cached replies belong.
        cache: folder of the cache of replies; None: no cache.
        call_log: file to which every call is appended; None: no file.
        settings: settings that replace those of the option, e.g. `temperature=0.0`.

    Raises:
        ConfigError: the option is not a chat model, or `build_model` raises it.
        LLMError: the model cannot be used (missing key or package, server down).
    """
    provider = build_model(option, seed=seed, **settings)
    if not isinstance(provider, Provider):
        raise ConfigError(f"llm={option} scores texts and does not chat; use build_model, or an option of a chat model")
    client = ChatClient(
        provider,
        Cache(cache.expanduser(), mode="readwrite") if cache is not None else None,
        CallLog(call_log.expanduser()) if call_log is not None else None,
        sample_seed=seed,
    )
    client.check()
    return client


def build_model(option: str, *, seed: int = 0, **settings: Any) -> Any:
    """Return the chat model or the scorer of texts `llm=<option>`.

    Args:
        option: option of `llm`, e.g. `openai_compatible`, `local_scorer_causal`.
        seed: seed of a model in this process.
        settings: settings that replace those of the option, and `device` of a local model (`cpu` by default).

    Raises:
        ConfigError: there is no such option, it is not a model, it has no such setting, or a required setting is
            missing.
    """
    options = option_files.list_option_names("llm")
    if option not in options:
        raise ConfigError(f"llm={option} does not exist; use one of {', '.join(options)}")
    arguments = {**option_files.load_option("llm", option), **settings}
    target = arguments.pop("_target_", None)
    if target is None:
        raise ConfigError(f"llm={option} has no _target_, so it is not a model; use another option")
    model_class = NO_FURTHER_TRUST.locate(target, f"llm={option}: _target_")
    signature = get_signature(model_class)
    parameters = signature.parameters
    # The option also contains settings of the client (cache, limits, ...), which are not parameters of the model.
    arguments = {key: value for key, value in arguments.items() if key in parameters or key in settings}
    # Arguments that `experiment` passes in a run.
    services = {"seeds": Seeds(seed).child("llm"), "device": "cpu"}
    if unknown_settings := [key for key in arguments if key not in parameters]:
        setting_names = ", ".join(key for key in parameters if key not in services)
        raise ConfigError(f"llm={option} has no setting {unknown_settings[0]!r}; use one of {setting_names}")
    if missing_settings := [key for key, value in arguments.items() if value == "???"]:
        raise ConfigError(f"llm={option} needs a value of {missing_settings[0]}; set {missing_settings[0]}=...")
    arguments |= {key: value for key, value in services.items() if key in parameters and key not in arguments}
    # `_target_: null` is an optional part of the model that is not used.
    arguments |= dict.fromkeys(
        key for key, value in arguments.items() if isinstance(value, dict) and value == {"_target_": None}
    )
    return model_class(**signature.combine_arguments(arguments))
