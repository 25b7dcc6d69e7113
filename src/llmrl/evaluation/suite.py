"""A suite: environments that an agent is evaluated in beside the one it was trained in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmrl.core.arguments import checked
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import options
from llmrl.core.ranges import PositiveInt
from llmrl.core.spaces import EnvSpec

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

    def check_metric(self, spec: EnvSpec) -> None:
        """See that an environment tells successes.

        Raises:
            ConfigError: it does not.
        """
        if self.metric not in spec.metrics:
            offered = ", ".join(spec.metrics) or "none"
            raise ConfigError(f"suite.metric={self.metric}: the environment has no such metric, but {offered}")


def suite_of(name: str, content: Mapping[str, Any], env: Mapping[str, Any]) -> Suite:
    """Make the suite that plain data describe, for a run with the environment `env`.

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
    wanted = {key: test for key, test in tests.items() if only is None or key in only}
    found = tuple(_test(key, test, content, common, needs, env) for key, test in wanted.items())
    if not found:
        raise ConfigError(f"{where} has no tests")
    return Suite(name, str(content["metric"]), episodes, found)


def _test(
    key: str,
    test: Mapping[str, Any],
    suite: Mapping[str, Any],
    common: Mapping[str, Any],
    needs: Mapping[str, int],
    env: Mapping[str, Any],
) -> SuiteTest:
    """One test of a suite; `common` is the run's environment `env` with the suite's number of games."""
    place = f"suite.tests.{key}"
    _known(test, _TEST_KEYS, place)
    base = common if test.get("own") else {**common, **_changes(suite.get("env"), "suite.env", env)}
    kinds = checked(test.get("kinds", suite.get("kinds", [])), list[str], f"{place}.kinds")
    changed = {**base, **_changes(test.get("env"), f"{place}.env", env)}
    own_need = checked(test.get("needs"), PositiveInt | None, f"{place}.needs")
    needed = needs if own_need is None else dict.fromkeys(kinds or [_ALL], own_need)
    rename = checked(test.get("rename", []), list[str], f"{place}.rename")
    if rename and "actions" not in env:
        raise ConfigError(f"{place}.rename: the environment has no option 'actions'; it has: {', '.join(env)}")
    reads = checked(test.get("reads", []), list[str], f"{place}.reads")
    title, what = str(test.get("title", key)), str(test.get("what", ""))
    return SuiteTest(key, title, what, changed, tuple(kinds), needed, tuple(rename), tuple(reads))


def _known(node: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    if unknown := [key for key in node if key not in keys]:
        raise ConfigError(f"{where} has no key {unknown[0]!r}; it has: {', '.join(keys)}")


def _changes(node: Any, where: str, env: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = checked({} if node is None else node, dict[str, Any], where)
    if unknown := [key for key in changes if key not in env]:
        raise ConfigError(f"{where}: the environment has no option {unknown[0]!r}; it has: {', '.join(env)}")
    return changes


def load_suite(suite: str, changes: Sequence[str], episodes: int | None) -> tuple[str, dict[str, Any]]:
    """Read a suite: its name, and its keys and values with what was asked put over them.

    Args:
        suite: its name, or a `.yaml` file.
        changes: `key=value` for keys of the suite.
        episodes: of each kind; None: as the suite says.

    Raises:
        ConfigError: there is no such suite, or it cannot be read.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    own = Path(suite).expanduser()
    shipped = options("suite")
    if suite in shipped:
        name, content = suite, shipped[suite]
    elif suite.endswith((".yaml", ".yml")):
        try:
            name, content = own.stem, yaml.safe_load(own.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"suite={suite} cannot be read: {error}") from error
    else:
        raise ConfigError(f"suite={suite}: there is {', '.join(shipped)}, or a file ending in .yaml")
    if not isinstance(content, dict):
        raise ConfigError(f"suite={suite} must be keys and values, such as tests: and episodes:")
    typed = [*changes, *([] if episodes is None else [f"episodes={episodes}"])]
    try:
        merged = OmegaConf.merge(OmegaConf.create(content), OmegaConf.from_dotlist(typed))
        plain = OmegaConf.to_container(merged, resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"suite: {error}") from error
    assert isinstance(plain, dict)
    return name, {str(key): value for key, value in plain.items()}
