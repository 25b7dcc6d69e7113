"""Probes: fixed prompts after which a policy's action probabilities are measured while the policy learns."""

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

BUILTIN_PROBE_LISTS_DIR = resources.files("llmrl.loops") / "probes"
log = logging.getLogger(__name__)
_PROBE_KEYS = ("name", "prompt", "goal", "observations", "actions", "intended")


@runtime_checkable
class HasActionProbabilities(Protocol):
    """Protocol of policies that read prompts and compute the probabilities of actions."""

    def probabilities(self, prompts: Sequence[str]) -> torch.Tensor:
        """Return p(action | prompt), [n_prompts, n_actions], without gradients and without random draws."""
        ...


@runtime_checkable
class WritesPrompts(Protocol):
    """Protocol of environments that can write a player's prompt for any history of observations and actions."""

    def prompt(self, goal: str, observations: Sequence[Sequence[str]], actions: Sequence[str]) -> str:
        """Return the prompt of a player with a goal after some observations and actions.

        Args:
            goal: goal of the player, a text.
            observations: sentences of each of n observations, oldest first.
            actions: names of the n - 1 actions between the observations.
        """
        ...


@dataclass(frozen=True)
class Probe:
    """A prompt after which the probabilities of actions are measured.

    Attributes:
        name: name of the probe.
        prompt: text that the player reads.
        intended: name of the correct action; None if it is unknown or not an action of the environment.
    """

    name: str
    prompt: str
    intended: str | None


class Probes:
    """Probes of a policy.

    Args:
        probes: probes with different names.
        policy: policy whose action probabilities are measured.
        action_names: name of each action, in the order of the policy's probabilities.

    Raises:
        ConfigError: the policy cannot compute the probabilities of actions after a text.
    """

    def __init__(self, probes: Sequence[Probe], policy: Policy, action_names: Sequence[str]) -> None:
        if not isinstance(policy, HasActionProbabilities):
            raise ConfigError(
                "learn.probes needs a policy that reads prompts; use agent=llm_ppo or agent=drrn, or learn.probes=null"
            )
        self.probes, self.action_names = list(probes), list(action_names)
        self.policy: HasActionProbabilities = policy

    @classmethod
    def load(cls, source: str, env: VecEnv, policy: Policy) -> Probes:
        """Return the probes of a list, with the prompts that `env` writes.

        Args:
            source: name of a list in the package, or path of a YAML file.
            env: environment whose actions are probed.
            policy: policy whose action probabilities are measured.

        Raises:
            ConfigError: the list does not exist or is invalid, or `env` or `policy` does not support it.
        """
        action_names, probe_nodes = env.spec.action_names, _read_probe_list(source)
        probes = [_build_probe(node, location, env) for location, node in probe_nodes]
        intended_actions = [
            (str(node["name"]), node["intended"]) for _, node in probe_nodes if node.get("intended") is not None
        ]
        if unknown := [f"{name} ({action})" for name, action in intended_actions if str(action) not in action_names]:
            log.warning(
                "learn.probes=%s: the `intended` action of %s is none of the actions %s, and is left out",
                *(source, ", ".join(unknown), ", ".join(action_names)),
            )
        return cls(probes, policy, action_names)

    def metrics(self) -> dict[str, float]:
        """Return the probability `probe/<name>/<action>` of each action in each probe, with underscores for spaces."""
        prompts = [probe.prompt for probe in self.probes]
        probabilities = np.asarray(self.policy.probabilities(prompts).detach().cpu(), dtype=np.float64)
        return {
            make_metric_name(probe.name, action): float(p)
            for probe, action_probabilities in zip(self.probes, probabilities, strict=True)
            for action, p in zip(self.action_names, action_probabilities, strict=True)
        }

    def write(self, folder: Path) -> None:
        """Write the probes to `probes.json`, which figures of the metrics read."""
        content = {
            "actions": self.action_names,
            "probes": [{"name": p.name, "prompt": p.prompt, "intended": p.intended} for p in self.probes],
        }
        write_json(folder / PROBES_NAME, content)


def make_metric_name(probe: str, action: str) -> str:
    """Return the name of the metric with the probability of an action in a probe."""
    return f"probe/{probe}/{action.replace(' ', '_')}"


def builtin_probe_list_names() -> list[str]:
    """Return the names of the lists of probes in the package."""
    return sorted(f.name.removesuffix(".yaml") for f in BUILTIN_PROBE_LISTS_DIR.iterdir() if f.name.endswith(".yaml"))


def _read_probe_list(source: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the probes of a list, each as its location (for error messages) and its YAML mapping."""
    import yaml

    is_file = source.endswith((".yaml", ".yml"))
    if not is_file and source not in builtin_probe_list_names():
        raise ConfigError(
            f"learn.probes={source} is unknown; use {', '.join(builtin_probe_list_names())}, or a file ending in .yaml"
        )
    path = Path(source).expanduser() if is_file else BUILTIN_PROBE_LISTS_DIR / f"{source}.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"learn.probes={source} cannot be read: {error}") from error
    if not isinstance(content, list) or not content or not all(isinstance(node, Mapping) for node in content):
        raise ConfigError(f"learn.probes={source} must be a list of probes, each with: {', '.join(_PROBE_KEYS)}")
    names = [str(node.get("name", "")) for node in content]
    for i, (name, node) in enumerate(zip(names, content, strict=True)):
        location = f"learn.probes={source}, probe {i + 1} ({name})"
        if unknown := [key for key in node if key not in _PROBE_KEYS]:
            raise ConfigError(f"{location}: {unknown[0]!r} is not a key of a probe; use {', '.join(_PROBE_KEYS)}")
        if not name or "/" in name or " " in name or names.count(name) > 1:
            raise ConfigError(f"{location}: each probe needs a unique `name` without spaces and slashes")
    return [(f"learn.probes={source}, probe {name}", node) for name, node in zip(names, content, strict=True)]


def _build_probe(node: Mapping[str, Any], location: str, env: VecEnv) -> Probe:
    action_names, intended_action = env.spec.action_names, node.get("intended")
    if ("prompt" in node) == ("goal" in node):
        raise ConfigError(f"{location}: give either a `prompt`, or a `goal` with `observations` and `actions`")
    if "prompt" in node:
        prompt = str(node["prompt"])
    else:
        observations, actions = node.get("observations") or [], node.get("actions") or []
        are_lists = isinstance(actions, list) and isinstance(observations, list)
        if not are_lists or not all(isinstance(sentences, list) for sentences in observations):
            raise ConfigError(f"{location}: `observations` must be lists of sentences, and `actions` a list of names")
        if not observations or len(actions) != len(observations) - 1:
            raise ConfigError(
                f"{location}: `observations` needs at least one list, and `actions` must be one fewer; "
                f"got {len(observations)} and {len(actions)}"
            )
        if not isinstance(env, WritesPrompts):
            raise ConfigError(
                f"{location}: env={env.spec.name} writes no prompts; give the full text as `prompt` instead"
            )
        texts = [[str(x) for x in sentences] for sentences in observations]
        try:
            prompt = env.prompt(str(node["goal"]), texts, [str(action) for action in actions])
        except ConfigError as error:
            raise ConfigError(
                f"{location}: {error}; use a file with the action names of env={env.spec.name}, or learn.probes=null"
            ) from error
    return Probe(str(node["name"]), prompt, str(intended_action) if intended_action in action_names else None)
