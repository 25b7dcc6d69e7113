"""The sinks of a run, from the config's `loggers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.run.sink import Sink


def check_loggers(config: Mapping[str, Any], builder: Builder) -> None:
    """Raise ConfigError for an invalid option of a logger; nothing is built."""
    for name, node in _nodes(config).items():
        builder.validate(node, f"loggers.{name}")


def build_loggers(config: Mapping[str, Any], builder: Builder | None = None) -> dict[str, Sink]:
    """Return the sinks of a resolved config, by option name; they are not opened.

    Raises:
        ConfigError: an object is not a sink, has an invalid option, or needs a library that is not installed.
    """
    builder = builder or Builder(trusted=config["trusted_modules"])
    sinks = {}
    for name, node in _nodes(config).items():
        sink = builder.build(node, f"loggers.{name}")
        if sink is not None and not isinstance(sink, Sink):
            raise ConfigError(f"loggers.{name}._target_={node['_target_']} is not a sink (llmrl.run.sink.Sink)")
        if sink is not None:
            sinks[name] = sink
    return sinks


def _nodes(config: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    nodes: Mapping[str, Mapping[str, Any]] = config.get("loggers") or {}
    for name, node in nodes.items():
        if not isinstance(node, Mapping):
            path = f"loggers.{name}"
            raise ConfigError(f"{path}={node!r} must name the class of a sink, +{path}._target_=my_package.MySink")
    return nodes
