"""A suite of tests of one player: what it may change, and how a test is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.analysis.proportions import proportion
from llmrl.core.arguments import checked
from llmrl.core.errors import ConfigError
from llmrl.core.limits import PositiveInt
from llmrl.core.protocols import Agent, Policy, VecEnv
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.learners.rollout import Collector
from llmrl.loops.playing import play_episodes
from llmrl.loops.recording import recorded

_TEST_KEYS = ("title", "what", "own", "env", "kinds")
_SUITE_KEYS = ("environment", "metric", "episodes", "n_envs", "only", "kinds", "env", "tests")


@dataclass(frozen=True)
class SuiteTest:
    """One test.

    Attributes:
        name, title, what: of it, for files, tables and readers.
        env: the run's environment with what the test changes.
        kinds: of task, `env.kind`, each in as many episodes; empty: the environment's `kind` is left alone.
    """

    name: str
    title: str
    what: str
    env: Mapping[str, Any]
    kinds: tuple[str, ...]

    def environments(self) -> list[tuple[str, dict[str, Any]]]:
        """(kind, config of its environment), in the order of the kinds; of no kind, one named `all`."""
        if not self.kinds:
            return [("all", dict(self.env))]
        return [(kind, {**self.env, "kind": kind}) for kind in self.kinds]


@dataclass(frozen=True)
class Suite:
    """Tests, and what all of them have in common: the metric that is 1 in a success, episodes of each kind."""

    name: str
    metric: str
    episodes: int
    tests: tuple[SuiteTest, ...]


def suite_of(name: str, content: Mapping[str, Any], env: Mapping[str, Any]) -> Suite:
    """The suite that plain data describe, for a run with the environment `env`.

    Raises:
        ConfigError: a key or a value makes no sense, or the suite is for runs of another environment.
    """
    where = f"suite={name}"
    _known(content, _SUITE_KEYS, where)
    if lacking := [key for key in ("environment", "metric", "tests") if key not in content]:
        raise ConfigError(f"{where} has no {lacking[0]!r}; it needs environment, metric and tests")
    if content["environment"] != env["_target_"]:
        raise ConfigError(f"{where} tests runs of {content['environment']}, and this is one of {env['_target_']}")
    episodes = checked(content.get("episodes", 100), PositiveInt, "suite.episodes")
    n_envs = checked(content.get("n_envs"), PositiveInt | None, "suite.n_envs")
    common = {**env, **({} if n_envs is None else {"n_envs": n_envs})}
    only = checked(content.get("only"), list[str] | None, "suite.only")
    tests: dict[str, dict[str, Any]] = checked(content["tests"], dict[str, dict[str, Any]], "suite.tests")
    if unknown := [each for each in only or () if each not in tests]:
        raise ConfigError(f"suite.only: there is no test {unknown[0]!r}, but {', '.join(tests)}")
    found = []
    for key, test in tests.items():
        if only is not None and key not in only:
            continue
        place = f"suite.tests.{key}"
        _known(test, _TEST_KEYS, place)
        base = common if test.get("own") else {**common, **_changes(content.get("env"), "suite.env", env)}
        kinds = checked(test.get("kinds", content.get("kinds", [])), list[str], f"{place}.kinds")
        changed = {**base, **_changes(test.get("env"), f"{place}.env", env)}
        found.append(SuiteTest(key, str(test.get("title", key)), str(test.get("what", "")), changed, tuple(kinds)))
    if not found:
        raise ConfigError(f"{where} has no tests")
    return Suite(name, str(content["metric"]), episodes, tuple(found))


def _known(node: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    if unknown := [key for key in node if key not in keys]:
        raise ConfigError(f"{where} has no key {unknown[0]!r}; it has: {', '.join(keys)}")


def _changes(node: Any, where: str, env: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = checked({} if node is None else node, dict[str, Any], where)
    if unknown := [key for key in changes if key not in env]:
        raise ConfigError(f"{where}: the environment has no option {unknown[0]!r}; it has: {', '.join(env)}")
    return changes


def fit(agent: Agent, own: EnvSpec, spec: EnvSpec) -> None:
    """Let an agent that was built for `own` play in `spec`.

    Raises:
        ConfigError: it cannot: it has too few actions, or reads what looks otherwise there.
    """
    for name in agent.policy.channels:
        if name not in spec.observation:
            raise ConfigError(f"the agent reads the channel {name!r}, which is not there")
        here, there = own.observation[name], spec.observation[name]
        if (here.shape, here.dtype, here.codes) != (there.shape, there.dtype, there.codes):
            raise ConfigError(
                f"the agent reads the channel {name!r}, which has other numbers there than in its training"
            )
    adapt = getattr(agent, "adapt", None)
    if adapt is not None:
        adapt(spec)
    elif spec.n_actions != own.n_actions:
        raise ConfigError(f"the agent chooses one of {own.n_actions} actions, and there are {spec.n_actions}")


def play_kind(
    env: VecEnv,
    policy: Policy,
    device: str,
    suite: Suite,
    seeds: Seeds,
    greedy: bool,
    trajectories: Path | None = None,
) -> dict[str, Any]:
    """Play the episodes of one kind of task; what they say: `episodes`, `successes`, `success` with Wilson's 95%
    interval `low`, `high`, mean `return` (of the level's own rewards) and mean `length`.

    Args:
        env: of the test; its metrics name the suite's.
        policy, device: who plays.
        suite: says how many episodes, and what is a success.
        seeds: of these episodes.
        greedy: take the likeliest action.
        trajectories: folder to write the steps into; None: they are not kept.

    Raises:
        ConfigError: the environment does not tell successes, or does not offer what the policy reads.
    """
    if suite.metric not in env.spec.metrics:
        offered = ", ".join(env.spec.metrics) or "none"
        raise ConfigError(f"suite.metric={suite.metric}: the environment has no such metric, but {offered}")
    with recorded(env, policy, trajectories) as player:
        episodes = play_episodes(Collector(env, player, device), suite.episodes, seeds, greedy, exactly=True)
    successes = sum(episode.summaries[suite.metric] > 0 for episode in episodes)
    share = proportion(successes, len(episodes))
    return {
        "episodes": len(episodes),
        "successes": successes,
        "success": share.estimate,
        "low": share.low,
        "high": share.high,
        "return": float(np.mean([episode.base_returns.mean() for episode in episodes])),
        "length": float(np.mean([episode.length for episode in episodes])),
    }
