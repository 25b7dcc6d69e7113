"""The generalization suite: its measures, its errors, and the suite of the package."""

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

import llmrl
from errands import Errands, Reader
from experiments import compose, find_run_folder, run_experiment
from llmrl.cli.evaluate import main, split_suite_options
from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.envs.babyai.language import LANGUAGES, list_action_names
from llmrl.evaluation.suite import parse_suite
from llmrl.run.trajectories import read_trajectories

SUITE = """
environment: errands.Errands
metric: success
episodes: 12
kinds: [fetch, wait]
env: {kind: both, replace: {}}
tests:
  same: {title: as trained, own: true, kinds: []}
  kinds: {title: kinds apart}
  words: {title: other words, env: {replace: {key: chair, ball: table, box: car}}}
  more: {title: more actions, env: {actions: more}}
"""


def config(root, seed=0, **agent):
    run_config = compose("agent=random", "trusted_modules=[errands]", f"seed={seed}", "play.episodes=4")
    run_config["env"] = {"_target_": "errands.Errands", "n_envs": 5, "horizon": 3, "kind": "both", "replace": {}}
    run_config["env"]["actions"] = "plain"
    run_config["agent"] = {"_target_": "errands.ReaderAgent", "learns": False, "skill": 30.0, **agent}
    return {**run_config, "output_root": str(root), "name": "errands"}


@pytest.fixture
def suite_file(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """Return the folder of a run that tests only read."""
    root = tmp_path_factory.mktemp("runs")
    run_experiment(config(root), [])
    return find_run_folder(root)


def run_suite(folder):
    return json.loads((folder / "evaluation" / "suite_toy" / "results.json").read_text())


def index_by_name(results):
    return {test["name"]: test for test in results["tests"]}


@pytest.mark.slow
def test_suite_end_to_end(tmp_path, suite_file, capsys):
    run_experiment(config(tmp_path / "runs"), [])
    run = find_run_folder(tmp_path / "runs")
    main(
        [
            "--trust",
            "errands",
            str(run),
            f"suite={suite_file}",
            "suite.episodes=30",
            "--policy",
            "student,random",
            "--trajectories",
        ]
    )
    printout = capsys.readouterr()
    results = run_suite(run)
    suite_results = index_by_name(results)
    assert list(suite_results) == ["same", "kinds", "words", "more"]
    student = {name: test["players"]["student"] for name, test in suite_results.items()}
    # It reads what to take at once, or after one of three steps at which it could only guess.
    assert student["kinds"]["kinds"]["fetch"] == {
        **{"episodes": 30, "successes": 30, "success": 1.0, "return": 1.0, "length": 1.0},
        **{"low": pytest.approx(1 / (1 + 1.959964**2 / 30)), "high": 1.0},
    }
    wait = student["kinds"]["kinds"]["wait"]
    assert wait["success"] == 1.0 and 1.4 < wait["length"] < 1.95
    assert student["same"]["kinds"].keys() == {"all"}
    # Of things whose names it does not know, it takes any.
    assert student["words"]["success"] == pytest.approx(1 - (2 / 3) ** 3, abs=0.15)
    chance = suite_results["kinds"]["players"]["random"]
    assert chance["success"] == pytest.approx(1 - (2 / 3) ** 3, abs=0.15)
    assert chance["low"] < 1 - (2 / 3) ** 3 < chance["high"] and chance["episodes"] == 60
    # A test that the agent cannot take is there with the reason; who can takes it.
    assert student["more"] is None and suite_results["more"]["players"]["random"]["success"] < 0.8
    assert re.search("3 actions.* 4$", suite_results["more"]["refused"]["student"])
    folder = run / "evaluation" / "suite_toy"
    table = (folder / "table.md").read_text()
    assert "| as trained | student | 100.0 |" in table and suite_results["more"]["refused"]["student"] in table
    lines = (folder / "table.csv").read_text().splitlines()
    assert lines[0].startswith("test,player,kind,episodes") and len(lines) == 1 + 2 * (2 + 3 + 3 + 3) - 2
    assert "4 of 4, more actions" in printout.err and "kinds apart" in printout.out
    steps = read_trajectories(folder / "steps" / "words" / "fetch" / "student")
    assert set(np.unique(steps.episode)) == set(range(30)) and set(steps.kind) == {"fetch"}
    assert not any(word in text for text in steps.prompts for word in ("key", "ball", "box"))


@pytest.mark.slow
def test_tests_are_independent(tmp_path, suite_file):
    run_experiment(config(tmp_path / "runs", skill=1.0), [])
    run = find_run_folder(tmp_path / "runs")
    main(["--trust", "errands", str(run), f"suite={suite_file}"])
    reference = index_by_name(run_suite(run))
    main(["--trust", "errands", str(run), f"suite={suite_file}", "suite.only=[words]"])
    single = index_by_name(run_suite(run))
    assert list(single) == ["words"] and single["words"] == reference["words"]
    shares = {kind["success"] for kind in reference["kinds"]["players"]["student"]["kinds"].values()}
    assert shares != {kind["success"] for kind in reference["words"]["players"]["student"]["kinds"].values()}
    main(["--trust", "errands", str(run), f"suite={suite_file}", "suite.only=[words]", "--seed", "7"])
    assert index_by_name(run_suite(run))["words"]["players"] != reference["words"]["players"]


@pytest.mark.slow
def test_adapting_agent_uses_extra_actions(tmp_path, suite_file):
    run_experiment(config(tmp_path / "runs", adapts=True), [])
    run = find_run_folder(tmp_path / "runs")
    main(["--trust", "errands", str(run), f"suite={suite_file}", "suite.only=[more,kinds]", "--mode", "deterministic"])
    players = {name: test["players"]["student"] for name, test in index_by_name(run_suite(run)).items()}
    assert players["more"]["kinds"]["fetch"]["success"] == players["kinds"]["kinds"]["fetch"]["success"] == 1.0


@pytest.mark.slow
def test_suite_from_python(tmp_path, suite_file):
    run_experiment(config(tmp_path / "runs"), [])
    run = find_run_folder(tmp_path / "runs")
    results = llmrl.evaluate(
        run, suite=str(suite_file), suite_options={"only": ["same"], "episodes": 4}, trusted=["errands"]
    )
    assert [test["name"] for test in results["tests"]] == ["same"] and results["episodes"] == 4
    assert results["run"] == str(run) and (Path(results["out"]) / "table.csv").exists()
    with pytest.raises(ConfigError, match="video"):
        llmrl.evaluate(run, suite=str(suite_file), video=True, trusted=["errands"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["suite=no_such"], "babyai_text"),
        (
            ["suite=babyai_text"],
            "llmrl.envs.babyai.vec_env",
        ),
        (["suite.episodes=3"], "suite=<name>"),
        (["suite={file}", "suite.episode=3"], "'episode'"),
        (["suite={file}", "suite.episodes=0"], "suite.episodes=0"),
        (["suite={file}", "suite.only=[nothing]"], "'nothing'"),
        (["suite={file}", "suite.env.hue=red"], "'hue'"),
        (["suite={file}", "suite.metric=won"], "suite.metric=won"),
        (["suite={file}", "suite.kinds=[sleep]", "suite.only=[kinds]"], "env.kind=sleep"),
        (["suite={file}", "--policy", "teacher"], "student, random, bot"),
        (["suite={file}", "--mode", "both"], "mode=both"),
        (["suite={file}", "--video"], "video"),
        (["suite={file}", "--mechanism", "none"], "mechanism"),
        (["suite={file}", "--adapt"], "adapt"),
        (["suite={file}", "--env", "hue=red"], "env"),
    ],
)
def test_rejects_invalid_suites(finished_run, suite_file, capsys, words, message):
    with pytest.raises(SystemExit):
        main(
            [
                "--trust",
                "errands",
                str(finished_run),
                *(word.format(file=suite_file) for word in words),
            ]
        )
    assert message in capsys.readouterr().err


def test_suite_options_are_not_runs():
    suite_options, arguments = split_suite_options(["outputs/x/s0", "suite=toy", "--seed", "3", "suite.episodes=4"])
    assert (suite_options, arguments) == (["suite=toy", "episodes=4"], ["outputs/x/s0", "--seed", "3"])


def package_suite(name):
    env = compose("env=babyai_text", "agent=random")["env"]
    return parse_suite(name, load_options("suite")[name], env)


@pytest.mark.slow
def test_package_suite_composes_and_builds():
    """Build and reset the environment of each test in each kind, and check its prompts."""
    suite = package_suite("babyai_text")
    assert [test.name for test in suite.tests][:3] == ["as_trained", "train_tasks", "test_tasks"]
    env_options = {"n_envs": 2}
    names = list_action_names("en", "canonical")
    for test in suite.tests:
        for kind, node in test.build_options_by_kind(names):
            env = Builder({"seeds": Seeds(0)}).build({**node, **env_options}, "env")
            env.provide(("prompt",))
            prompts = env.reset(seed=0)["prompt"].ravel().tolist()
            assert kind == "all" or set(env.kinds) == {kind}
            for old in node["replace"]:
                assert not any(old in text for text in prompts), (test.name, old, prompts[0])
            assert all(f": {', '.join(env.spec.action_names)}" in text for text in prompts)
            env.close()
    assert all(yaml.safe_load(json.dumps(dict(test.env_options))) for test in suite.tests)


def spec(n_actions, names="abcdefghi"):
    return EnvSpec("some", 1, 1, {}, n_actions, tuple(names[:n_actions]), 10)


def test_skips_unsupported_kinds():
    tests = {test.name: test for test in package_suite("babyai_text").tests}
    possible = {}
    for n in (3, 4, 5, 6):
        possible[n] = []
        for kind in tests["train_tasks"].kinds:
            with contextlib.suppress(ConfigError):
                tests["train_tasks"].check_possible(kind, spec(n), spec(n))
                possible[n].append(kind)
    assert possible[3] == ["goto"] and possible[4] == ["goto", "pickup", "seq"]
    assert possible[5] == ["goto", "pickup", "putnext", "seq"] and possible[6] == list(tests["train_tasks"].kinds)
    # The test may offer more than what the run was trained with.
    with pytest.raises(ConfigError, match=r"pickup.*4.*3"):
        tests["more_actions"].check_possible("pickup", spec(3), spec(9))
    with pytest.raises(ConfigError, match=r"4 actions.* 3$"):
        tests["new_composition"].check_possible("all", spec(3), spec(3))
    tests["goto"].check_possible("all", spec(3), spec(3))
    tests["as_trained"].check_possible("all", spec(3), spec(3))


def test_new_names_keep_action_count():
    tests = {test.name: test for test in package_suite("babyai_text").tests}
    for name, words in (("synonym_actions", "synonyms"), ("shift_actions", "synonyms_shift")):
        for action_set in ("restricted", "canonical"):
            names = list_action_names("en", action_set)
            suite_results = tests[name].build_env_options(names)["actions"]
            # The words are those of the environment's own sets.
            assert suite_results == list(LANGUAGES["en"].action_sets[words][: len(names)])
        assert tests[name].build_env_options(list_action_names("en", "augmented"))["actions"][6:] == [
            "sleep",
            "do nothing",
            "think",
        ]
        assert {node["actions"][0] for _, node in tests[name].build_options_by_kind(names)} == {suite_results[0]}
    assert tests["goto"].build_env_options(names)["actions"] == "canonical"


def test_error_names_missing_option():
    with pytest.raises(ConfigError, match=r"suite.tests.a.env.*'levels'"):
        parse_suite("x", {**yaml.safe_load(SUITE), "tests": {"a": {"env": {"levels": 1}}}}, config("")["env"])
    no_actions = {key: value for key, value in config("")["env"].items() if key != "actions"}
    with pytest.raises(ConfigError, match=r"suite.tests.a.rename.*'actions'"):
        parse_suite("x", {**yaml.safe_load(SUITE), "env": {}, "tests": {"a": {"rename": ["b"]}}}, no_actions)
    assert Errands(Seeds(0)).spec.n_actions == Reader(Errands(Seeds(0)).spec, 1.0).n_actions
