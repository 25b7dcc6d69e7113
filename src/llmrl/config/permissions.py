"""Permissions of a config: to run code outside llmrl, to send API keys to hosts, and to run shell commands.

A config that is composed from a command line and the user's option files gets all permissions that it needs
(`with_permissions`). A config from a run folder, which another user may have written, has only the permissions that the
user grants with `--trust` or `trusted_modules=`. They are not stored in run folders.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from typing import Any

from llmrl.core import option_files
from llmrl.core.addresses import is_loopback, parse_origin
from llmrl.core.errors import ConfigError
from llmrl.core.trust import SHELL_PERMISSION, Trust, format_trust_options, is_never_trusted

TRUSTED_KEY = "trusted_modules"
PROVIDER_ORIGINS = {
    "anthropic": "https://api.anthropic.com",
    "deepseek": "https://api.deepseek.com",
    "gemini": "https://generativelanguage.googleapis.com",
    "groq": "https://api.groq.com",
    "mistral": "https://api.mistral.ai",
    "openai": "https://api.openai.com",
    "openrouter": "https://openrouter.ai",
    "xai": "https://api.x.ai",
}
"""Origins of APIs by litellm's names of providers. The variable of a provider's key is `<PROVIDER>_API_KEY`."""
_ADDRESS_OPTIONS = ("base_url", "api_base", "tracking_uri")
"""Fields of options of `llm=` and `loggers=` with an address."""
_LITELLM_TARGET = "llmrl.llms.litellm_chat.LiteLLMChat"
_UNPREFIXED_MODEL_PATTERNS = {"openai": r"gpt-|chatgpt-|o\d", "anthropic": r"claude-"}
"""Patterns of model names that litellm accepts without `<provider>/`, by provider."""


def add_trust_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--trust` to a command that reads the configs of runs."""
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="MODULE",
        help="a package outside llmrl that the run's config may name; its code runs with your rights; or "
        "VARIABLE@https://host, a host that the key in VARIABLE may be sent to (may be repeated)",
    )


def with_permissions(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a composed config (plain data) with all permissions that it needs in `trusted_modules`.

    Modules of Python, and modules of llmrl without parts, are not added, because they are never trusted.

    Raises:
        ConfigError: an address is invalid, or `trusted_modules` is not a list of names.
    """
    granted = config[TRUSTED_KEY]
    if not isinstance(granted, list) or not all(isinstance(name, str) for name in granted):
        raise ConfigError(f"{TRUSTED_KEY}={granted} must be a list of modules, such as {TRUSTED_KEY}=[my_package]")
    packages = (name.partition(".")[0] for name in Trust(tuple(granted)).find_untrusted(find_code_names(config)))
    modules = [name for name in packages if not is_never_trusted(name)]
    shell = [SHELL_PERMISSION] * bool(find_command_line_keys(config.get("hardware") or {}, [*granted, *modules]))
    return {**config, TRUSTED_KEY: list(dict.fromkeys([*granted, *modules, *find_destinations(config), *shell]))}


def check_permissions(config: Mapping[str, Any], source: str = "the config") -> None:
    """Check that `trusted_modules` of a config permits the code and the destinations of API keys that the config names.

    Args:
        config: plain data.
        source: file with the config, for the message.

    Raises:
        ConfigError: a permission is missing; the message states how to grant it.
    """
    trust = Trust(tuple(config[TRUSTED_KEY]))
    untrusted_names = trust.find_untrusted(find_code_names(config))
    for name in untrusted_names:
        if is_never_trusted(name):
            raise ConfigError(f"{source}: {name} {trust.explain_refusal(name)}")
    if untrusted_names:
        modules = dict.fromkeys(name.split(".")[0] for name in untrusted_names)
        raise ConfigError(
            f"{source} names code outside llmrl, which would run with your rights: {', '.join(untrusted_names)}. "
            f"If you trust it, repeat the command with {format_trust_options(modules)}"
        )
    # A permission to send a key to a host includes requests without a key.
    permitted_names = {*config[TRUSTED_KEY], *(entry.rpartition("@")[2] for entry in config[TRUSTED_KEY])}
    for destination in find_destinations(config):
        if destination not in permitted_names:
            raise ConfigError(
                f"{source} would send requests to {destination.rpartition('@')[2]}, with the key in "
                f"{destination.rpartition('@')[0] or 'no variable'}; this is not the key's provider. If you trust that "
                f"host, repeat the command with {format_trust_options([destination])}"
            )


def check_command_lines(config: Mapping[str, Any]) -> None:
    """Raise ConfigError if jobs of a config would run shell commands without `SHELL_PERMISSION`."""
    keys = find_command_line_keys(config["hardware"], config[TRUSTED_KEY])
    if keys and SHELL_PERMISSION not in config[TRUSTED_KEY]:
        raise ConfigError(
            f"{', '.join(keys)} are command lines of a saved config that jobs would run with your rights; if you trust "
            f"them, repeat the command with {format_trust_options([SHELL_PERMISSION])}"
        )


def find_command_line_keys(hardware: Mapping[str, Any], trusted: list[str]) -> list[str]:
    """Return the keys of a `hardware` node with shell commands (`Backend.command_lines`) that are not the defaults.

    Raises:
        ConfigError: the target is not a backend, or is not trusted.
    """
    node = hardware.get("backend")
    if not isinstance(node, Mapping) or "_target_" not in node:
        return []  # the builder of the backend reports the error
    backend = Trust(tuple(trusted)).locate(node["_target_"], "hardware.backend._target_")
    default_by_option: Mapping[str, Any] | None = getattr(backend, "command_lines", None)
    if default_by_option is None:
        raise ConfigError(
            f"hardware.backend._target_={node['_target_']} is not a backend: derive it from "
            "llmrl.sweeps.backends.protocol.Backend (docs/extending.md)"
        )
    option_names = [name for name, value in default_by_option.items() if node.get(name) and node[name] != value]
    return [f"hardware.backend.{name}" for name in option_names]


def find_code_names(node: Any) -> Iterator[str]:
    """Yield the dotted names of modules, classes and functions in a config."""
    if isinstance(node, Mapping):
        target, name, text = node.get("_target_"), node.get("id", node.get("level")), node.get("text")
        if target is not None:
            yield str(target)
        # `env.id=module:Id` and `env.text=package.Class`; not the address of a game server, nor a file.
        if isinstance(name, str) and ":" in name and "://" not in name:
            yield name.rpartition(":")[0]
        if target is not None and isinstance(text, str) and "." in text and not text.endswith((".yaml", ".yml")):
            yield text
        for value in node.values():
            yield from find_code_names(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from find_code_names(value)


def find_destinations(config: Mapping[str, Any]) -> list[str]:
    """Return the destinations of requests of language models and loggers that need a permission.

    A destination is `VARIABLE@origin` for requests with the API key in VARIABLE, unless the origin belongs to the
    provider of this key; and `origin` for requests without a key, unless it is a provider or this machine. For a model
    without an address, the origin is the name of its provider or class.

    Raises:
        ConfigError: an address is invalid.
    """
    nodes = {"llm": config.get("llm")}
    variants = nodes["llm"].get("variants") if isinstance(nodes["llm"], Mapping) else None
    for name, changes in (variants or {}).items() if isinstance(variants, Mapping) else ():
        base_options = option_files.load_option("llm", name) if name in option_files.list_option_names("llm") else {}
        nodes[f"llm.variants.{name}"] = {**base_options, **changes} if isinstance(changes, Mapping) else base_options
    loggers = config.get("loggers")
    nodes |= {f"loggers.{name}": node for name, node in loggers.items()} if isinstance(loggers, Mapping) else {}
    destinations = (_find_destination(path, node) for path, node in nodes.items() if isinstance(node, Mapping))
    return [destination for destination in destinations if destination is not None]


def _find_destination(path: str, node: Mapping[str, Any]) -> str | None:
    """Return the destination of the requests of a part (`find_destinations`); None if it needs no permission."""
    variable = node.get("api_key_env")
    provider = _find_provider(str(node.get("model"))) if node.get("_target_") == _LITELLM_TARGET else None
    origin = None
    for field in _ADDRESS_OPTIONS:
        address = node.get(field)
        if isinstance(address, str) and (field != "tracking_uri" or re.match(r"(?i)https?:", address)):
            origin = parse_origin(address, f"{path}.{field}")
            if variable is None and provider is not None:
                variable = _get_api_key_variable(provider)  # litellm reads this variable by default
            break
    if variable is None:
        return None if origin is None or origin in PROVIDER_ORIGINS.values() or is_loopback(origin) else origin
    origin = origin or (str(node.get("_target_")) if provider is None else PROVIDER_ORIGINS.get(provider, provider))
    provider_by_origin = {url: name for name, url in PROVIDER_ORIGINS.items()}
    is_providers_key = variable == _get_api_key_variable(provider_by_origin.get(origin, origin))
    return None if is_providers_key else f"{variable}@{origin}"


def _find_provider(model: str) -> str:
    """Return litellm's name of the provider of a model; the name of the model if the provider is unknown.

    litellm itself is not called, because its import takes seconds.
    """
    provider, slash, _ = model.partition("/")
    if slash and "://" not in model:
        return provider
    return next((name for name, pattern in _UNPREFIXED_MODEL_PATTERNS.items() if re.match(pattern, model)), model)


def _get_api_key_variable(provider: str) -> str:
    return f"{re.sub('[^A-Za-z0-9]', '_', provider).upper()}_API_KEY"
