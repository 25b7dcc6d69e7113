"""A suite of tests of one player: what it may change, and how a test is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from llmrl.loops.trajectory_writers import written_down

_TEST_KEYS = ("title", "what", "own", "env", "kinds", "needs", "rename", "reads")
_SUITE_KEYS = ("environment", "metric", "episodes", "n_envs", "only", "kinds", "needs", "env", "tests")
_ALL = "all"
"""The kind of tests that have none."""


@dataclass(frozen=True)
class SuiteTest:
    """One test.

    Attributes:
        name, title, what: of it, for files, tables and readers.
        env: the run's environment with what the test changes.
        kinds: of task, `env.kind`, each in as many episodes; empty: the environment's `kind` is left alone.
        needs: kind -> actions there must be for it to be possible; of tests without kinds, `all` -> actions.
        rename: names in place of those of the run's own first actions.
        reads: channels that the test changes: it says nothing of agents that read none of them; empty: of all agents.
    """

    name: str
    title: str
    what: str
    env: Mapping[str, Any]
    kinds: tuple[str, ...]
    needs: Mapping[str, int] = field(default_factory=dict)
    rename: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    def environment(self, actions: Sequence[str]) -> dict[str, Any]:
        """The config of its environment, of whatever kind, for a run whose actions have these names."""
        if not self.rename:
            return dict(self.env)
        # As many as the run has: a test of other names is none of more actions.
        return {**self.env, "actions": [*self.rename[: len(actions)], *actions[len(self.rename) :]]}

    def environments(self, actions: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
        """(kind, config of its environment), in the order of the kinds; of no kind, one named `all`."""
        if not self.kinds:
            return [(_ALL, self.environment(actions))]
        return [(kind, {**self.environment(actions), "kind": kind}) for kind in self.kinds]

    def check_possible(self, kind: str, own: EnvSpec, spec: EnvSpec) -> None:
        """See that nobody is tested on what cannot be done: in `spec`, or in `own`, where the run was trained.

        Raises:
            ConfigError: the kind needs more actions than there are.
        """
        needed = self.needs.get(kind, 0)
        fewest = min(own.n_actions, spec.n_actions)
        if fewest < needed:
            raise ConfigError(f"{'it' if kind == _ALL else kind} needs {needed} actions, and there are {fewest}")


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
    needs = checked(content.get("needs", {}), dict[str, int], "suite.needs")
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
        own_need = checked(test.get("needs"), PositiveInt | None, f"{place}.needs")
        needed = needs if own_need is None else dict.fromkeys(kinds or [_ALL], own_need)
        rename = checked(test.get("rename", []), list[str], f"{place}.rename")
        if rename and "actions" not in env:
            raise ConfigError(f"{place}.rename: the environment has no option 'actions'; it has: {', '.join(env)}")
        reads = checked(test.get("reads", []), list[str], f"{place}.reads")
        title, what = str(test.get("title", key)), str(test.get("what", ""))
        found.append(SuiteTest(key, title, what, changed, tuple(kinds), needed, tuple(rename), tuple(reads)))
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


def fit(agent: Agent, own: EnvSpec, spec: EnvSpec, reads: Sequence[str] = ()) -> None:
    """Let an agent that was built for `own` play in `spec`.

    Args:
        agent: who is to play.
        own, spec: of the environment it was built for, and of the test's.
        reads: the channels that the test changes; empty: it is a test of everybody.

    Raises:
        ConfigError: it cannot: it has too few actions, or reads what looks otherwise there. Or it would see nothing of
            what is tested, and its number would be one of another test.
    """
    if reads and not set(reads) & set(agent.policy.channels):
        raise ConfigError(
            f"the test changes nothing for this agent: it reads {', '.join(agent.policy.channels)}, not "
            f"{' or '.join(reads)}"
        )
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
    with written_down(env, policy, trajectories) as observers:
        collector = Collector(env, policy, device, observers=observers)
        episodes = play_episodes(collector, suite.episodes, seeds, greedy, exactly=True)
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
