"""The hosts to which a config sends API keys, and the check that the user has approved them.

An address or a key's variable from a file (option file, preset, config of a run folder) is used if the variable
belongs to the host (`ORIGINS`) or if the user has approved the pair: by typing both options, in this command or an
earlier one (`llmrl.core.trust.user_file`), or with `trusted_modules=[VARIABLE@https://host]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmrl.core import option_files
from llmrl.core.addresses import is_loopback, origin_of
from llmrl.core.errors import ConfigError
from llmrl.core.trust import approved_destinations, how_to_trust, record_destinations

KEY = "trusted_modules"
ORIGINS = {
    "anthropic": "https://api.anthropic.com",
    "deepseek": "https://api.deepseek.com",
    "gemini": "https://generativelanguage.googleapis.com",
    "groq": "https://api.groq.com",
    "mistral": "https://api.mistral.ai",
    "openai": "https://api.openai.com",
    "openrouter": "https://openrouter.ai",
    "xai": "https://api.x.ai",
}
"""Provider, as litellm names it -> origin of its API. The provider's key is `<PROVIDER>_API_KEY`."""
ADDRESSES = ("base_url", "api_base", "tracking_uri")
"""Fields of options of `llm=` and `loggers=` that hold an address."""
VARIABLE = "api_key_env"
_LITELLM = "llmrl.llms.litellm_chat.LiteLLMChat"
_UNPREFIXED = {"openai": r"gpt-|chatgpt-|o\d", "anthropic": r"claude-"}
"""Provider -> pattern of the names of models that litellm accepts without `<provider>/`."""


@dataclass(frozen=True)
class Destination:
    """Origin that a part of a config sends requests to, and the key that it sends with them.

    Attributes:
        node: dotted path of the part's options, e.g. `llm`.
        field: name of the option with the address; None: the part has no address, and its code determines the host.
        origin: scheme, host and port, e.g. `https://api.openai.com`; without a known address the name of the provider
            or of the class.
        variable: environment variable that holds the key; None: no key is sent.
    """

    node: str
    field: str | None
    origin: str
    variable: str | None

    @property
    def entry(self) -> str:
        """Text that approves the destination in `trusted_modules` and in the user's file."""
        return self.origin if self.variable is None else f"{self.variable}@{self.origin}"

    @property
    def belongs(self) -> bool:
        """True if the key belongs to the host. Without a key, true if the host is a known one or this machine."""
        if self.variable is None:
            return self.origin in ORIGINS.values() or is_loopback(self.origin)
        providers = {origin: provider for provider, origin in ORIGINS.items()}
        return self.variable == _key_variable(providers.get(self.origin, self.origin))

    def is_approved(self, entries: Sequence[str]) -> bool:
        """Return whether requests may be sent, given the approved entries.

        A request without a key may be sent to a host that is approved with a key.
        """
        hosts = {entry.rpartition("@")[2] for entry in entries} if self.variable is None else entries
        return self.belongs or self.entry in hosts

    def is_typed(self, keys: set[str]) -> bool:
        """Return whether the user has typed the destination, given the keys of typed overrides.

        The address need not be typed if the host is the provider's own or this machine.
        """
        address = self.field is not None and f"{self.node}.{self.field}" in keys
        if self.variable is None:
            return address
        is_default_host = self.field is None or self.origin in ORIGINS.values() or is_loopback(self.origin)
        return f"{self.node}.{VARIABLE}" in keys and (address or is_default_host)


def destinations(config: Mapping[str, Any]) -> Iterator[Destination]:
    """Yield the destinations of the language models and loggers of a config (plain data).

    Raises:
        ConfigError: an address is invalid.
    """
    nodes = {"llm": config.get("llm")}
    player_nodes = nodes["llm"].get("variants") if isinstance(nodes["llm"], Mapping) else None
    for name, changes in (player_nodes or {}).items() if isinstance(player_nodes, Mapping) else ():
        base_options = option_files.option("llm", name) if name in option_files.names("llm") else {}
        nodes[f"llm.variants.{name}"] = {**base_options, **changes} if isinstance(changes, Mapping) else base_options
    loggers = config.get("loggers")
    nodes |= {f"loggers.{name}": node for name, node in loggers.items()} if isinstance(loggers, Mapping) else {}
    for path, node in nodes.items():
        if isinstance(node, Mapping) and (destination := _destination(path, node)) is not None:
            yield destination


def typed_entries(config: Mapping[str, Any], keys: set[str]) -> list[str]:
    """Return the entries of the destinations that the user has typed, and record them for later commands.

    Args:
        config: composed, plain data.
        keys: keys of the overrides that the user has typed.
    """
    explicit = [destination for destination in destinations(config) if destination.is_typed(keys)]
    record_destinations([destination.entry for destination in explicit if not destination.is_approved(())])
    return [destination.entry for destination in explicit]


def with_approvals(config: Mapping[str, Any], keys: set[str] | None = None) -> dict[str, Any]:
    """Return a config whose `trusted_modules` hold the approvals of its destinations, so that jobs have them.

    Args:
        config: plain data, with `trusted_modules`.
        keys: keys of overrides that the user has typed.

    Raises:
        ConfigError: a file names a destination that the user has not approved.
    """
    approved_entries = list(config[KEY])
    for destination in destinations(config):
        if not destination.is_approved(approved_entries) and not destination.is_typed(keys or set()):
            if not destination.is_approved(approved_destinations()):
                raise ConfigError(_refusal(destination))
            approved_entries.append(destination.entry)
    return {**config, KEY: approved_entries}


def _destination(path: str, node: Mapping[str, Any]) -> Destination | None:
    variable = node.get(VARIABLE)
    provider = _find_provider(str(node.get("model"))) if node.get("_target_") == _LITELLM else None
    for field in ADDRESSES:
        address = node.get(field)
        if not isinstance(address, str) or (field == "tracking_uri" and not re.match(r"(?i)https?:", address)):
            continue
        if variable is None and provider is not None:
            variable = _key_variable(provider)  # litellm reads this variable by default
        return Destination(path, field, origin_of(address, f"{path}.{field}"), variable)
    if variable is None:
        return None
    return Destination(
        path, None, str(node.get("_target_")) if provider is None else ORIGINS.get(provider, provider), variable
    )


def _find_provider(model: str) -> str:
    """Return litellm's name of the provider of a model; the model's own name if it is unknown.

    litellm itself is not used, because its import takes seconds.
    """
    provider, slash, _ = model.partition("/")
    if slash and "://" not in model:
        return provider
    return next((name for name, pattern in _UNPREFIXED.items() if re.match(pattern, model)), model)


def _key_variable(provider: str) -> str:
    return f"{re.sub('[^A-Za-z0-9]', '_', provider).upper()}_API_KEY"


def _refusal(destination: Destination) -> str:
    node, variable = destination.node, destination.variable
    options = [f"{node}.{destination.field}"] * (destination.field is not None)
    options += [f"{node}.{VARIABLE}"] * (variable is not None)
    content = "requests" if variable is None else f"the key in the environment variable {variable}"
    return (
        f"{' and '.join(options)} in an option file or a saved config would send {content} to {destination.origin}, "
        "which is neither the provider's own host nor approved by you. If you trust that host, set "
        f"{' and '.join(f'{option}=...' for option in options)} on the command line, or approve it with "
        f"{how_to_trust([destination.entry])}"
    )
