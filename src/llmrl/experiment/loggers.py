"""The sinks of a run, from the config's `loggers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.run.sinks.sink import Sink


def build_loggers(config: Mapping[str, Any]) -> dict[str, Sink]:
    """Return the sinks of a resolved config, by the names of their options; none of them is opened.

    Raises:
        ConfigError: one is no sink, has an option that cannot be, or needs a library that is not installed.
    """
    builder = Builder(trusted=config["trusted_modules"])
    sinks = {}
    for name, node in (config.get("loggers") or {}).items():
        where = f"loggers.{name}"
        if not isinstance(node, Mapping):
            raise ConfigError(f"{where}={node!r}: give the class of a sink, +{where}._target_=my_package.MySink")
        sink = builder.build(node, where)
        if sink is not None and not isinstance(sink, Sink):
            raise ConfigError(f"{where}._target_={node['_target_']} is no sink (llmrl.run.sinks.sink.Sink)")
        if sink is not None:
            sinks[name] = sink
    return sinks
