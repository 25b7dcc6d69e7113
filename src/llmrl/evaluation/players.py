"""Who plays in an evaluation: the student, its teacher, and what both are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import option
from llmrl.core.protocols import Policy
from llmrl.core.seeding import Seeds
from llmrl.experiment.parts import Parts

PLAYERS = ("student", "teacher", "oracle", "bot", "random")


def without_teacher(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with no teacher where the agent plays without one: a language model behind it is then not needed."""
    builder = Builder(trusted=config["trusted_modules"])
    needed = builder.needs(config["agent"], "teacher", "agent") and builder.insists(config["agent"], "teacher", "agent")
    return dict(config) if needed else {**config, "teacher": {"_target_": None}}


def build_players(names: Sequence[str], config: Mapping[str, Any], parts: Parts) -> dict[str, Policy]:
    """The policies of `names`, in their order; `config` is that of the run, with its teacher.

    The oracle speaks of the domain of the run's teacher where that was given one (`teacher.domain`).

    Raises:
        ConfigError: there is no such player, the run has no teacher that can play, or the environment no oracle.
    """
    players: dict[str, Policy] = {}
    for name in names:
        if name not in PLAYERS:
            raise ConfigError(f"policy={name}: there are {', '.join(PLAYERS)}, several with commas")
        if name == "student":
            players[name] = parts.agents[0].policy
        elif name == "random":
            from llmrl.agents.random_agent import RandomPolicy

            players[name] = RandomPolicy(parts.env.spec)
        elif name == "bot":
            from llmrl.agents.bot_agent import BotPolicy

            players[name] = BotPolicy(parts.env.spec)
        elif name == "teacher":
            if parts.teacher is None or parts.teacher.policy is None:
                raise ConfigError("policy=teacher: this run has no teacher that can play; leave it out")
            players[name] = parts.teacher.policy
        else:
            injected = {"spec": parts.env.spec, "seeds": Seeds(config["seed"]).child("oracle"), "folder": None}
            own = {key: config["teacher"][key] for key in ("domain", "parity") if key in config["teacher"]}
            node = option("teacher", "oracle") | (own if own.get("domain") is not None else {})
            oracle = Builder(injected, config["trusted_modules"]).build(node, "teacher")
            players[name] = oracle.policy
    return players
