"""Suites of tests: environments other than that of its training in which an agent is evaluated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmrl.core.arguments import validate_argument
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options
from llmrl.core.ranges import PositiveInt
from llmrl.core.spaces import EnvSpec

_TEST_KEYS = ("title", "description", "own", "env", "kinds", "needs", "rename", "reads")
_SUITE_KEYS = ("environment", "metric", "episodes", "n_envs", "only", "kinds", "needs", "env", "tests")
_ALL_KINDS = "all"
"""Name of the only kind of task in tests without kinds."""


@dataclass(frozen=True)
class SuiteTest:
    """One test of a suite.

    Attributes:
        name: name in files.
        title: name in tables.
        description: description for readers.
        env: options of the run's environment with the changes of the test.
        kinds: kinds of task (values of `env.kind`), each with the same number of episodes; empty: `env.kind` is not
            changed.
        needs: minimum number of actions by kind; in tests without kinds, by `all`.
        rename: names that replace those of the run's first actions.
        reads: channels that the test changes; agents that read none of them do not play. Empty: all agents play.
    """

    name: str
    title: str
    description: str
    env: Mapping[str, Any]
    kinds: tuple[str, ...]
    needs: Mapping[str, int] = field(default_factory=dict)
    rename: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    def environment(self, actions: Sequence[str]) -> dict[str, Any]:
        """Return the options of the environment, for a run whose actions have the names `actions`."""
        if not self.rename:
            return dict(self.env)
        # A run with fewer actions than new names gets only as many names as it has actions.
        return {**self.env, "actions": [*self.rename[: len(actions)], *actions[len(self.rename) :]]}

    def environments(self, actions: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
        """Return pairs (kind, options of its environment); a test without kinds has one pair, with the kind `all`."""
        if not self.kinds:
            return [(_ALL_KINDS, self.environment(actions))]
        return [(kind, {**self.environment(actions), "kind": kind}) for kind in self.kinds]

    def check_possible(self, kind: str, run_spec: EnvSpec, spec: EnvSpec) -> None:
        """Check that the environments of the run and the test have enough actions for a kind of task.

        Args:
            kind: kind of task.
            run_spec: specification of the environment in which the run was trained.
            spec: specification of the environment of the test.

        Raises:
            ConfigError: the kind needs more actions than one of the environments has.
        """
        min_actions = self.needs.get(kind, 0)
        n_actions = min(run_spec.n_actions, spec.n_actions)
        if n_actions < min_actions:
            raise ConfigError(
                f"{'it' if kind == _ALL_KINDS else kind} needs {min_actions} actions, and there are {n_actions}"
            )


@dataclass(frozen=True)
class Suite:
    """Tests with common settings.

    Attributes:
        name: name of the suite.
        metric: metric of the environment that is > 0 in successful episodes.
        episodes: number of episodes of each kind of task.
        tests: tests in the order in which they are played.
    """

    name: str
    metric: str
    episodes: int
    tests: tuple[SuiteTest, ...]

    def check_metric(self, spec: EnvSpec) -> None:
        """Raise ConfigError unless an environment has the metric of the suite."""
        if self.metric not in spec.metrics:
            metric_names = ", ".join(spec.metrics) or "none"
            raise ConfigError(f"suite.metric={self.metric} is unknown; the environment has {metric_names}")


def parse_suite(name: str, content: Mapping[str, Any], env: Mapping[str, Any]) -> Suite:
    """Create a suite from the content of its file, for a run with the environment options `env`.

    Raises:
        ConfigError: a key or a value is invalid, or the suite is for runs of another environment.
    """
    location = f"suite={name}"
    _check_keys(content, _SUITE_KEYS, location)
    if missing_keys := [key for key in ("environment", "metric", "tests") if key not in content]:
        raise ConfigError(f"{location} has no {missing_keys[0]!r}; it needs environment, metric and tests")
    if content["environment"] != env["_target_"]:
        raise ConfigError(f"{location} is for runs of {content['environment']}, and this is a run of {env['_target_']}")
    episodes = validate_argument(content.get("episodes", 100), PositiveInt, "suite.episodes")
    n_envs = validate_argument(content.get("n_envs"), PositiveInt | None, "suite.n_envs")
    common_env = {**env, **({} if n_envs is None else {"n_envs": n_envs})}
    only = validate_argument(content.get("only"), list[str] | None, "suite.only")
    needs = validate_argument(content.get("needs", {}), dict[str, int], "suite.needs")
    tests: dict[str, dict[str, Any]] = validate_argument(content["tests"], dict[str, dict[str, Any]], "suite.tests")
    if unknown := [test_name for test_name in only or () if test_name not in tests]:
        raise ConfigError(f"suite.only: there is no test {unknown[0]!r}; use {', '.join(tests)}")
    selected_tests = {key: test for key, test in tests.items() if only is None or key in only}
    suite_tests = tuple(_parse_test(key, test, content, common_env, needs, env) for key, test in selected_tests.items())
    if not suite_tests:
        raise ConfigError(f"{location} has no tests")
    return Suite(name, str(content["metric"]), episodes, suite_tests)


def _parse_test(
    key: str,
    test: Mapping[str, Any],
    suite: Mapping[str, Any],
    common_env: Mapping[str, Any],
    needs: Mapping[str, int],
    env: Mapping[str, Any],
) -> SuiteTest:
    """Create the test `key` of a suite from its content `test`, for a run with the environment options `env`.

    `common_env` is `env` with the suite's number of games, and `needs` the suite's minimum number of actions by kind.
    """
    location = f"suite.tests.{key}"
    _check_keys(test, _TEST_KEYS, location)
    base_env = common_env if test.get("own") else {**common_env, **_parse_changes(suite.get("env"), "suite.env", env)}
    kinds = validate_argument(test.get("kinds", suite.get("kinds", [])), list[str], f"{location}.kinds")
    env_options = {**base_env, **_parse_changes(test.get("env"), f"{location}.env", env)}
    n_needed_actions = validate_argument(test.get("needs"), PositiveInt | None, f"{location}.needs")
    min_actions = needs if n_needed_actions is None else dict.fromkeys(kinds or [_ALL_KINDS], n_needed_actions)
    rename = validate_argument(test.get("rename", []), list[str], f"{location}.rename")
    if rename and "actions" not in env:
        raise ConfigError(f"{location}.rename: the environment has no option 'actions'; it has: {', '.join(env)}")
    reads = validate_argument(test.get("reads", []), list[str], f"{location}.reads")
    title, description = str(test.get("title", key)), str(test.get("description", ""))
    return SuiteTest(key, title, description, env_options, tuple(kinds), min_actions, tuple(rename), tuple(reads))


def _check_keys(node: Mapping[str, Any], keys: Sequence[str], location: str) -> None:
    if unknown := [key for key in node if key not in keys]:
        raise ConfigError(f"{location} has no key {unknown[0]!r}; it has: {', '.join(keys)}")


def _parse_changes(node: Any, location: str, env: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = validate_argument({} if node is None else node, dict[str, Any], location)
    if unknown := [key for key in changes if key not in env]:
        raise ConfigError(f"{location}: the environment has no option {unknown[0]!r}; it has: {', '.join(env)}")
    return changes


def load_suite(suite: str, changes: Sequence[str], episodes: int | None) -> tuple[str, dict[str, Any]]:
    """Read a suite; return its name, and its content with changes.

    Args:
        suite: name of a suite, or path of a `.yaml` file.
        changes: texts `key=value` that override keys of the suite.
        episodes: number of episodes of each kind of task; None: the number in the suite.

    Raises:
        ConfigError: the suite does not exist or cannot be read, or a change is invalid.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    path = Path(suite).expanduser()
    builtin_suites = load_options("suite")
    if suite in builtin_suites:
        name, content = suite, builtin_suites[suite]
    elif suite.endswith((".yaml", ".yml")):
        try:
            name, content = path.stem, yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"suite={suite} cannot be read: {error}") from error
    else:
        raise ConfigError(f"suite={suite} is unknown; use {', '.join(builtin_suites)}, or a file ending in .yaml")
    if not isinstance(content, dict):
        raise ConfigError(f"suite={suite} must contain keys and values, such as tests: and episodes:")
    overrides = [*changes, *([] if episodes is None else [f"episodes={episodes}"])]
    try:
        merged = OmegaConf.merge(OmegaConf.create(content), OmegaConf.from_dotlist(overrides))
        suite_content = OmegaConf.to_container(merged, resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"suite: {error}") from error
    assert isinstance(suite_content, dict)
    return name, {str(key): value for key, value in suite_content.items()}
