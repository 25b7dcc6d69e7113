"""Which runs of a sweep may be rows of one process: those whose games and updates can be computed as one batch, and
those that each play and learn by themselves there, which saves what a process costs.

Everything is decided from a resolved config and from what classes declare; nothing is built but plain settings.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from llmrl.config.builder import Builder
from llmrl.config.debugging import KEY
from llmrl.experiment.batched_runs import alike
from llmrl.experiment.models import asking
from llmrl.experiment.parts import loop_kind
from llmrl.experiment.unused_sections import JUDGED
from llmrl.run.config_hash import EXCLUDED, RESOLVED
from llmrl.run.source_copies import KEY as SOURCES
from llmrl.sweeps.backends.protocol import Hardware
from llmrl.sweeps.machine import Machine

Config = Mapping[str, Any]


class Alone(StrEnum):
    """Why a run shares its process with no other, in words for a table."""

    DEBUG = "it is looked into (+debug=)"
    LOOP = "only loops that design, learn or search share a process"
    OWN = "it plays by itself, so beside others it would take as long (hardware.rows=<n> or hardware.jobs=<n> share)"
    METAGRAD = "its principal differentiates the agents' learning (principal=metagrad)"
    AGENT = "its agents do not learn by PPO alone"
    MEMORY = "its networks remember (agent.memory)"
    TEACHER = "a teacher advises its agents"
    KL = "its updates stop by KL (agent.ppo.target_kl)"
    SCALED = "its rewards are scaled (agent.ppo.scale_rewards)"
    GAMES = "games of its environment are not batched"
    MODEL = "its language model is loaded into its process"
    PROCESSES = "several processes compute it together"
    GPU = "it has a GPU"
    THREADS = "it computes with several threads (hardware.threads), whose sums depend on what is beside them"


LEARNING_NUMBERS = (
    *("learning_rate", "final_learning_rate", "decay_updates", "adam_eps", "gamma", "gae_lambda", "clip", "value_clip"),
    *("entropy_coefficient", "value_coefficient", "max_grad_norm", "advantage_eps"),
)
"""Settings of PPO that may differ from row to row, where each has a number."""

_OF_A_ROW = (
    *(key for key in EXCLUDED if "." not in key and key != "observers"),
    *("principal", "llm", "prompts_digest", "adapter_digest", SOURCES, RESOLVED),
)
"""Keys that may differ, but for what a process has once (`batched_runs.alike`): each row has its own proposer,
language model, folder and seeds."""
_OF_ITS_JUDGE = ("steps", *JUDGED)
"""Keys of `design` that may differ: how often a row proposes, and by what it is judged."""

_COPIES = 3
"""Times that what is observed in a rollout is in memory: the rollout, the minibatches, and what networks make of it."""
_NUMBERS = 8 * 4
"""Bytes of a step of an agent beside what it observes: action, reward, value and the like."""
_OF_A_RUN_GB = 0.05
"""What a row has for itself: agents and their optimizer, a checkpoint that is being written, logs."""


def row_key(config: Config, environment: Mapping[str, str] | None = None) -> str | None:
    """Return a text that two runs have in common if they may be rows of one process; None for a run that is alone in
    its own, for the reason that `why_alone` gives.

    Under a principal that governs a mechanism, the shapes of environment, agent and loop are equal, and the principal,
    the seed, the language model, `LEARNING_NUMBERS`, and the weights that agents begin with may differ. Of runs that
    learn or search, each by itself, all may differ. Hardware and variables of the process are equal in any case.

    Args:
        config: resolved, plain containers, of `llmrl-train` or `llmrl-finetune`.
        environment: variables to set in the run's process.

    Raises:
        ConfigError: a part cannot be found.
    """
    if why_alone(config) not in (None, Alone.OWN):
        return None
    kind = loop_kind(config)
    kept = _shape(config) if kind == "design" else {"loop": kind}
    shape = {**kept, "process": alike(config), "environment": dict(environment or {})}
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


def _shape(config: Config) -> dict[str, Any]:
    """All that is equal in runs whose games and updates are computed as one batch."""
    agent = {name: value for name, value in config["agent"].items() if name != "init_from_seed"}
    agent["init_from"] = agent.get("init_from") is not None
    [place] = _ppo_places(config)
    agent[place] = {
        name: "a number" if name in LEARNING_NUMBERS and value is not None else value
        for name, value in agent[place].items()
    }
    design = {name: value for name, value in config["design"].items() if name not in _OF_ITS_JUDGE}
    kept = {name: value for name, value in config.items() if name not in _OF_A_ROW}
    return {**kept, "agent": agent, "design": design}


def why_alone(config: Config) -> Alone | None:
    """Return why a run shares its process with no other, or would gain nothing by it (`Alone.OWN`); None if it may.

    Args:
        config: as `row_key` takes it.

    Raises:
        ConfigError: a part cannot be found.
    """
    if config.get(KEY):
        return Alone.DEBUG
    kind = None if "method" in config else loop_kind(config)
    if kind not in ("design", "learn", "search"):
        return Alone.LOOP
    builder = Builder(trusted=config["trusted_modules"])
    principal = config["principal"].get("_target_")
    if principal is not None and getattr(builder.locate(principal, "principal"), "needs_gradient", False):
        return Alone.METAGRAD
    if config["teacher"].get("_target_") is not None:
        return Alone.TEACHER
    if kind != "search" and (reason := _agent_alone(config, builder, batched=kind == "design")) is not None:
        return reason
    batched = getattr(builder.locate(config["env"]["_target_"], "env"), "plays_in_rows", None)
    if (kind == "design" and batched is None) or (batched is not None and not batched(config["env"])):
        return Alone.GAMES
    asks = asking(config)
    if asks and builder.needs(config["llm"], "device", "llm"):
        return Alone.MODEL
    hardware: Hardware = builder.build(config["hardware"], "hardware")
    if hardware.backend.processes > 1:
        return Alone.PROCESSES
    if (hardware.threads or hardware.cores or 0) != 1:
        return Alone.THREADS
    if _on_gpu(hardware):
        return Alone.GPU
    # Runs that wait for a language model wait at the same time.
    return None if kind == "design" or asks else Alone.OWN


def row_gb(config: Config) -> float | None:
    """Return about how much memory one more row takes in a process that has some, gigabytes; None where that is as
    much as it takes by itself, or the environment does not say how large an observation is.

    That is `_COPIES` of a rollout of all of its games, and what every row has.

    Args:
        config: as `row_key` takes it, of a run that has a key.
    """
    if loop_kind(config) != "design":
        return None
    env, design = config["env"], config["design"]
    builder = Builder(trusted=config["trusted_modules"])
    size = getattr(builder.locate(env["_target_"], "env"), "observation_bytes", None)
    steps = design["rollout_steps"] or env.get("horizon")
    if size is None or steps is None or not {"n_envs", "n_agents"} <= env.keys():
        return None
    agent_steps = env["n_envs"] * steps * env["n_agents"]
    return float(_OF_A_RUN_GB + _COPIES * agent_steps * (size(env) + _NUMBERS) / 1e9)


def _agent_alone(config: Config, builder: Builder, batched: bool) -> Alone | None:
    """Why agents cannot learn beside others, or where it is to be `batched`, in one batch with them."""
    from llmrl.algorithms.ppo import PPOSettings

    node = config["agent"]
    agent = builder.locate(node["_target_"], "agent")
    owner = next((each for each in getattr(agent, "__mro__", ()) if "learner" in vars(each)), None)
    places = _ppo_places(config)
    if owner is None or agent.update is not owner.update or len(places) != 1:
        return Alone.AGENT
    if not batched:
        return None
    remembers = getattr(agent, "remembers_by", None)
    if remembers is not None and node.get(remembers) is not None:
        return Alone.MEMORY
    settings: PPOSettings = builder.build(node[places[0]], f"agent.{places[0]}")
    if settings.target_kl is not None:
        return Alone.KL
    return Alone.SCALED if settings.scale_rewards else None


def _ppo_places(config: Config) -> list[str]:
    """Options of the agent that hold settings of PPO."""
    from llmrl.algorithms.ppo import PPOSettings

    builder = Builder(trusted=config["trusted_modules"])
    nodes = {name: x for name, x in config["agent"].items() if isinstance(x, Mapping) and x.get("_target_")}
    return [name for name, x in nodes.items() if builder.locate(x["_target_"], f"agent.{name}") is PPOSettings]


def _on_gpu(hardware: Hardware) -> bool:
    """Whether a run is computed on a GPU; where it takes one if there is one, by what this machine has."""
    if hardware.device != "auto":
        return hardware.device != "cpu"
    return hardware.gpus > 0 and _gpus_here(os.environ.get("CUDA_VISIBLE_DEVICES"))


@functools.cache
def _gpus_here(visible: str | None) -> bool:
    """Whether this machine has GPUs, of which the variable CUDA_VISIBLE_DEVICES shows those that are `visible`."""
    return bool(Machine.this().gpus)
