"""Probes: how likely a policy's actions are in situations that stay the same while it learns."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Policy, VecEnv
from llmrl.run.artifacts import PROBES_NAME
from llmrl.run.files import write_json

if TYPE_CHECKING:
    import torch

SHIPPED = resources.files("llmrl.loops") / "probes"
log = logging.getLogger(__name__)
_KEYS = ("name", "prompt", "goal", "observations", "actions", "intended")


@runtime_checkable
class HasActionProbabilities(Protocol):
    """A policy that reads prompts, and tells how likely its actions are after one."""

    def probabilities(self, prompts: Sequence[str]) -> torch.Tensor:
        """p(action | prompt), [n_prompts, n_actions], without gradients, and without drawing anything."""
        ...


@runtime_checkable
class WritesPrompts(Protocol):
    """An environment that puts any situation into the words of its prompts."""

    def prompt(self, goal: str, observations: Sequence[Sequence[str]], actions: Sequence[str]) -> str:
        """The prompt of a player with this goal that has seen `observations` (sentences each), oldest first, and done
        `actions` between them, one fewer."""
        ...


@dataclass(frozen=True)
class Probe:
    """A situation: its name, what a player reads in it, and the action it should take where that is known."""

    name: str
    prompt: str
    intended: str | None


class Probes:
    """Some probes of a policy.

    Args:
        probes: their names differ.
        policy: who is asked.
        action_names: of its actions.

    Raises:
        ConfigError: the policy cannot say how likely its actions are after a text.
    """

    def __init__(self, probes: Sequence[Probe], policy: Policy, action_names: Sequence[str]) -> None:
        if not isinstance(policy, HasActionProbabilities):
            raise ConfigError(
                "learn.probes asks how likely actions are after a text, which only policies that read prompts can "
                "tell; use agent=llm_ppo or agent=drrn, or learn.probes=null"
            )
        self.probes, self.action_names = list(probes), list(action_names)
        self.policy: HasActionProbabilities = policy

    @classmethod
    def load(cls, which: str, env: VecEnv, policy: Policy) -> Probes:
        """The probes of a list that is shipped, or of a file, in the words of `env`.

        Raises:
            ConfigError: there is no such list, it is not one of probes, or `env` or `policy` cannot be used with it.
        """
        names, entries = env.spec.action_names, _entries(which)
        probes = [_probe(entry, where, env) for where, entry in entries]
        asked = [(str(entry["name"]), entry["intended"]) for _, entry in entries if entry.get("intended") is not None]
        # With other actions than the list was written for, what would be right is not known.
        if unknown := [f"{name} ({intended})" for name, intended in asked if str(intended) not in names]:
            log.warning(
                "learn.probes=%s: what is `intended` in %s is none of the actions %s, and is left out there",
                *(which, ", ".join(unknown), ", ".join(names)),
            )
        return cls(probes, policy, names)

    def metrics(self) -> dict[str, float]:
        """`probe/<name>/<action>` for each probe and action, spaces as underscores; their sum is 1 for each probe."""
        found = self.policy.probabilities([probe.prompt for probe in self.probes])
        table = np.asarray(found.detach().cpu(), dtype=np.float64)
        return {
            metric_name(probe.name, action): float(p)
            for probe, row in zip(self.probes, table, strict=True)
            for action, p in zip(self.action_names, row, strict=True)
        }

    def write(self, folder: Path) -> None:
        """`probes.json`: what was asked, for who looks at the metrics later."""
        content = {
            "actions": self.action_names,
            "probes": [{"name": p.name, "prompt": p.prompt, "intended": p.intended} for p in self.probes],
        }
        write_json(folder / PROBES_NAME, content)


def metric_name(probe: str, action: str) -> str:
    """Of the probability of an action in a probe."""
    return f"probe/{probe}/{action.replace(' ', '_')}"


def shipped() -> list[str]:
    """The names of the lists that come with the package."""
    return sorted(f.name.removesuffix(".yaml") for f in SHIPPED.iterdir() if f.name.endswith(".yaml"))


def _entries(which: str) -> list[tuple[str, Mapping[str, Any]]]:
    """(where it stands, the entry) of each probe of a list."""
    import yaml

    own = which.endswith((".yaml", ".yml"))
    if not own and which not in shipped():
        raise ConfigError(f"learn.probes={which}: there is {', '.join(shipped())}, or a file ending in .yaml")
    path = Path(which).expanduser() if own else SHIPPED / f"{which}.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"learn.probes={which} cannot be read: {error}") from error
    if not isinstance(content, list) or not content or not all(isinstance(entry, Mapping) for entry in content):
        raise ConfigError(f"learn.probes={which} must be a list of probes, each with: {', '.join(_KEYS)}")
    names = [str(entry.get("name", "")) for entry in content]
    for i, (name, entry) in enumerate(zip(names, content, strict=True)):
        where = f"learn.probes={which}, probe {i + 1} ({name})"
        if unknown := [key for key in entry if key not in _KEYS]:
            raise ConfigError(f"{where}: there is no key {unknown[0]!r}, but {', '.join(_KEYS)}")
        if not name or "/" in name or " " in name or names.count(name) > 1:
            raise ConfigError(f"{where}: each probe needs a `name` of its own, without spaces and slashes")
    return [(f"learn.probes={which}, probe {name}", entry) for name, entry in zip(names, content, strict=True)]


def _probe(entry: Mapping[str, Any], where: str, env: VecEnv) -> Probe:
    names, intended = env.spec.action_names, entry.get("intended")
    if ("prompt" in entry) == ("goal" in entry):
        raise ConfigError(f"{where}: give either a `prompt`, or a `goal` with `observations` and `actions`")
    if "prompt" in entry:
        prompt = str(entry["prompt"])
    else:
        observations, actions = entry.get("observations") or [], entry.get("actions") or []
        lists = isinstance(actions, list) and isinstance(observations, list)
        if not lists or not all(isinstance(each, list) for each in observations):
            raise ConfigError(f"{where}: `observations` must be lists of sentences, and `actions` a list of names")
        if not observations or len(actions) != len(observations) - 1:
            raise ConfigError(
                f"{where}: `observations` must be lists of sentences, at least one, and `actions` what was done "
                f"between them, one fewer; got {len(observations)} and {len(actions)}"
            )
        if not isinstance(env, WritesPrompts):
            raise ConfigError(f"{where}: env={env.spec.name} writes no prompts; give the whole `prompt` instead")
        told, done = [[str(x) for x in each] for each in observations], [str(action) for action in actions]
        try:
            prompt = env.prompt(str(entry["goal"]), told, done)
        except ConfigError as error:
            raise ConfigError(
                f"{where}: {error}; use a file whose `actions` are named as env={env.spec.name} names them, or "
                "learn.probes=null"
            ) from error
    return Probe(str(entry["name"]), prompt, str(intended) if intended in names else None)
