"""Suites of tests: environments in which an agent is evaluated, other than that of its training."""

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
        env_options: options of the run's environment with the changes of the test.
        kinds: kinds of task (values of `env.kind`), each with the same number of episodes; empty: `env.kind` is not
            changed.
        min_actions: kind -> minimum number of actions; in tests without kinds, the kind is `all`.
        new_action_names: names that replace those of the run's first actions.
        changed_channels: channels that the test changes; agents that read none of them do not play. Empty: all play.
    """

    name: str
    title: str
    description: str
    env_options: Mapping[str, Any]
    kinds: tuple[str, ...]
    min_actions: Mapping[str, int] = field(default_factory=dict)
    new_action_names: tuple[str, ...] = ()
    changed_channels: tuple[str, ...] = ()

    def build_env_options(self, action_names: Sequence[str]) -> dict[str, Any]:
        """Return the options of the environment, for a run with the actions `action_names`."""
        if not self.new_action_names:
            return dict(self.env_options)
        new_names = self.new_action_names[: len(action_names)]
        return {**self.env_options, "actions": [*new_names, *action_names[len(new_names) :]]}

    def build_options_by_kind(self, action_names: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
        """Return pairs (kind, options of its environment); a test without kinds has one pair, with the kind `all`."""
        if not self.kinds:
            return [(_ALL_KINDS, self.build_env_options(action_names))]
        return [(kind, {**self.build_env_options(action_names), "kind": kind}) for kind in self.kinds]

    def check_possible(self, kind: str, run_spec: EnvSpec, test_spec: EnvSpec) -> None:
        """Check that the environments of the run and the test have enough actions for a kind of task.

        Args:
            kind: kind of task.
            run_spec: specification of the environment in which the run was trained.
            test_spec: specification of the environment of the test.

        Raises:
            ConfigError: the kind needs more actions than one of the environments has.
        """
        n_needed_actions = self.min_actions.get(kind, 0)
        n_actions = min(run_spec.n_actions, test_spec.n_actions)
        if n_actions < n_needed_actions:
            raise ConfigError(
                f"{'it' if kind == _ALL_KINDS else kind} needs {n_needed_actions} actions, and there are {n_actions}"
            )


@dataclass(frozen=True)
class Suite:
    """Tests with common settings.

    Attributes:
        name: name of the suite.
        metric: metric of the environment that is > 0 in successful episodes.
        n_episodes: number of episodes of each kind of task.
        tests: tests in the order in which they are played.
    """

    name: str
    metric: str
    n_episodes: int
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
    choices = validate_argument(content.get("only"), list[str] | None, "suite.only")
    min_actions = validate_argument(content.get("needs", {}), dict[str, int], "suite.needs")
    tests: dict[str, dict[str, Any]] = validate_argument(content["tests"], dict[str, dict[str, Any]], "suite.tests")
    if unknown := [test_name for test_name in choices or () if test_name not in tests]:
        raise ConfigError(f"suite.only: there is no test {unknown[0]!r}; use {', '.join(tests)}")
    selected_names = [key for key in tests if choices is None or key in choices]
    if not selected_names:
        raise ConfigError(f"{location} has no tests")
    parsed_tests = [_parse_test(key, tests[key], content, common_env, min_actions, env) for key in selected_names]
    return Suite(name, str(content["metric"]), episodes, tuple(parsed_tests))


def _parse_test(
    key: str,
    test: Mapping[str, Any],
    suite: Mapping[str, Any],
    common_env: Mapping[str, Any],
    min_actions: Mapping[str, int],
    env: Mapping[str, Any],
) -> SuiteTest:
    """Create the test `key` of a suite from its content `test`, for a run with the environment options `env`.

    `common_env` is `env` with the suite's number of games, and `min_actions` is that of the suite. A test
    with the key `own` does not get the changes in the suite's key `env`.
    """
    location = f"suite.tests.{key}"
    _check_keys(test, _TEST_KEYS, location)
    base_env = common_env if test.get("own") else {**common_env, **_parse_changes(suite.get("env"), "suite.env", env)}
    kinds = validate_argument(test.get("kinds", suite.get("kinds", [])), list[str], f"{location}.kinds")
    env_options = {**base_env, **_parse_changes(test.get("env"), f"{location}.env", env)}
    n_needed_actions = validate_argument(test.get("needs"), PositiveInt | None, f"{location}.needs")
    if n_needed_actions is not None:
        min_actions = dict.fromkeys(kinds or [_ALL_KINDS], n_needed_actions)
    new_action_names = validate_argument(test.get("rename", []), list[str], f"{location}.rename")
    if new_action_names and "actions" not in env:
        raise ConfigError(f"{location}.rename: the environment has no option 'actions'; it has: {', '.join(env)}")
    changed_channels = validate_argument(test.get("reads", []), list[str], f"{location}.reads")
    title, description = str(test.get("title", key)), str(test.get("description", ""))
    names, channels = tuple(new_action_names), tuple(changed_channels)
    return SuiteTest(key, title, description, env_options, tuple(kinds), min_actions, names, channels)


def _check_keys(content: Mapping[str, Any], keys: Sequence[str], location: str) -> None:
    if unknown := [key for key in content if key not in keys]:
        raise ConfigError(f"{location} has no key {unknown[0]!r}; it has: {', '.join(keys)}")


def _parse_changes(content: Any, location: str, env: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of the environment options `env`; raise ConfigError if an option does not exist."""
    changes: dict[str, Any] = validate_argument({} if content is None else content, dict[str, Any], location)
    if unknown := [key for key in changes if key not in env]:
        raise ConfigError(f"{location}: the environment has no option {unknown[0]!r}; it has: {', '.join(env)}")
    return changes


def load_suite(choice: str, changes: Sequence[str], episodes: int | None) -> tuple[str, dict[str, Any]]:
    """Read a suite; return its name, and its content with changes.

    Args:
        choice: name of a suite, or path of a `.yaml` file.
        changes: texts `key=value` that override keys of the suite.
        episodes: number of episodes of each kind of task; None: the number in the suite.

    Raises:
        ConfigError: the suite does not exist or cannot be read, or a change is invalid.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    path = Path(choice).expanduser()
    builtin_suites = load_options("suite")
    if choice in builtin_suites:
        name, content = choice, builtin_suites[choice]
    elif choice.endswith((".yaml", ".yml")):
        try:
            name, content = path.stem, yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"suite={choice} cannot be read: {error}") from error
    else:
        raise ConfigError(f"suite={choice} is unknown; use {', '.join(builtin_suites)}, or a file ending in .yaml")
    if not isinstance(content, dict):
        raise ConfigError(f"suite={choice} must contain keys and values, such as tests: and episodes:")
    overrides = [*changes, *([] if episodes is None else [f"episodes={episodes}"])]
    try:
        merged = OmegaConf.merge(OmegaConf.create(content), OmegaConf.from_dotlist(overrides))
        suite_content = OmegaConf.to_container(merged, resolve=True)
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        raise ConfigError(f"suite: {error}") from error
    assert isinstance(suite_content, dict)
    return name, {str(key): value for key, value in suite_content.items()}
