"""The function that builds the environment of a config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core.errors import LlmrlError
from llmrl.core.protocols import VecEnv
from llmrl.core.ram import require_memory_for_games
from llmrl.envs.env_errors import build_engine_error, name_env_in_errors


def build_env(node: Mapping[str, Any], builder: Builder) -> VecEnv:
    """Build the environment of a config's node `env`, with its name in the messages of errors that it raises later.

    Args:
        node: options of the environment.
        builder: builder with the environment's services.

    Raises:
        ConfigError: an invalid option, or more games than fit into memory.
        EngineError: the environment cannot be built for another reason.
    """
    require_memory_for_games(node.get("n_envs"))
    try:
        env: VecEnv = builder.build(node, "env")
    except LlmrlError:
        raise
    except Exception as error:
        raise build_engine_error(str(node.get("_target_")), "its constructor", error) from error
    return name_env_in_errors(env)
