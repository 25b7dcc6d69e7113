"""The generalisation suite: what it measures, what it refuses, and what the shipped one asks for."""

import json
import math

import numpy as np
import pytest
import yaml

from errands import Errands, Reader
from experiments import compose, only_run_folder
from llmrl.analysis.proportions import mean_proportion, proportion
from llmrl.analysis.statistics import Interval
from llmrl.cli.build import Builder
from llmrl.cli.evaluate import main
from llmrl.cli.offers import options
from llmrl.cli.suite import split_words
from llmrl.cli.train import run_experiment
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.loops.suite import suite_of
from llmrl.run.trajectories import read

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
    composed = compose("agent=random", "trusted_modules=[errands]", f"seed={seed}", "play.episodes=4")
    composed["env"] = {"_target_": "errands.Errands", "n_envs": 5, "horizon": 3, "kind": "both", "replace": {}}
    composed["env"]["actions"] = "plain"
    composed["agent"] = {"_target_": "errands.ReaderAgent", "learns": False, "skill": 30.0, **agent}
    return {**composed, "output_root": str(root), "name": "errands"}


@pytest.fixture
def suite_file(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(SUITE)
    return path


def evaluated(folder):
    return json.loads((folder / "evaluation" / "suite_toy" / "results.json").read_text())


def by_name(results):
    return {test["name"]: test for test in results["tests"]}


def test_a_suite_end_to_end(tmp_path, suite_file, capsys):
    run_experiment(config(tmp_path / "runs"), [])
    run = only_run_folder(tmp_path / "runs")
    main([str(run), f"suite={suite_file}", "suite.episodes=30", "--policy", "student,random", "--trajectories"])
    printed = capsys.readouterr()
    results = evaluated(run)
    found = by_name(results)
    assert list(found) == ["same", "kinds", "words", "more"]
    student = {name: test["players"]["student"] for name, test in found.items()}
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
    chance = found["kinds"]["players"]["random"]
    assert chance["success"] == pytest.approx(1 - (2 / 3) ** 3, abs=0.15)
    assert chance["low"] < 1 - (2 / 3) ** 3 < chance["high"] and chance["episodes"] == 60
    # A test that the agent cannot take is there with the reason; who can takes it.
    assert student["more"] is None and found["more"]["players"]["random"]["success"] < 0.8
    assert found["more"]["refused"]["student"] == "the agent chooses one of 3 actions, and there are 4"
    folder = run / "evaluation" / "suite_toy"
    assert (folder / "suite.png").read_bytes().startswith(b"\x89PNG")
    table = (folder / "table.md").read_text()
    assert (
        "| as trained | student | 100.0 |" in table and "more actions, student: not played. the agent chooses" in table
    )
    lines = (folder / "table.csv").read_text().splitlines()
    assert lines[0].startswith("test,player,kind,episodes") and len(lines) == 1 + 2 * (2 + 3 + 3 + 3) - 2
    assert "4 of 4, more actions" in printed.err and "kinds apart" in printed.out
    steps = read(folder / "steps" / "words" / "fetch" / "student")
    assert set(np.unique(steps.episode)) == set(range(30)) and set(steps.kind) == {"fetch"}
    assert not any(word in text for text in steps.prompts for word in ("key", "ball", "box"))


def test_tests_do_not_depend_on_each_other(tmp_path, suite_file):
    run_experiment(config(tmp_path / "runs", skill=1.0), [])
    run = only_run_folder(tmp_path / "runs")
    main([str(run), f"suite={suite_file}"])
    whole = by_name(evaluated(run))
    main([str(run), "--suite", str(suite_file), "suite.only=[words]"])
    alone = by_name(evaluated(run))
    assert list(alone) == ["words"] and alone["words"] == whole["words"]
    shares = {kind["success"] for kind in whole["kinds"]["players"]["student"]["kinds"].values()}
    assert shares != {kind["success"] for kind in whole["words"]["players"]["student"]["kinds"].values()}
    main([str(run), f"suite={suite_file}", "suite.only=[words]", "--seed", "7"])
    assert by_name(evaluated(run))["words"]["players"] != whole["words"]["players"]


def test_an_agent_that_adapts_takes_more_actions(tmp_path, suite_file):
    run_experiment(config(tmp_path / "runs", adapts=True), [])
    run = only_run_folder(tmp_path / "runs")
    main([str(run), f"suite={suite_file}", "suite.only=[more,kinds]", "--mode", "deterministic"])
    players = {name: test["players"]["student"] for name, test in by_name(evaluated(run)).items()}
    assert players["more"]["kinds"]["fetch"]["success"] == players["kinds"]["kinds"]["fetch"]["success"] == 1.0


def test_several_runs_are_put_together(tmp_path, suite_file, capsys):
    runs = []
    for seed, skill in ((0, 0.0), (1, 30.0)):
        made = config(tmp_path / "runs", seed, skill=skill)
        run_experiment({**made, "name": f"seed{seed}"}, [])
        runs.append(only_run_folder(tmp_path / "runs" / f"seed{seed}"))
    main(
        [str(runs[0]), str(runs[1]), f"suite={suite_file}", "suite.only=[kinds,more]", "--out", str(tmp_path / "both")]
    )
    together = json.loads((tmp_path / "both" / "suite_toy" / "results.json").read_text())
    each = [json.loads((tmp_path / "both" / str(i) / "suite_toy" / "results.json").read_text()) for i in (0, 1)]
    shares = [by_name(one)["kinds"]["players"]["student"]["success"] for one in each]
    mean = by_name(together)["kinds"]["players"]["student"]
    assert mean["success"] == pytest.approx(np.mean(shares)) and mean["per_run"] == shares and shares[1] == 1.0
    assert (mean["low"], mean["high"]) == (min(shares), max(shares))
    assert by_name(together)["more"]["players"]["student"] is None
    assert "bootstrap over 2 runs" in together["intervals"] and "2 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["suite=no_such"], "there is babyai_text"),
        (
            ["suite=babyai_text"],
            "tests runs of llmrl.envs.babyai.vec_env.BabyAIEnv, and this is one of errands.Errands",
        ),
        (["suite.episodes=3"], "which suite?"),
        (["suite={file}", "suite.episode=3"], "has no key 'episode'"),
        (["suite={file}", "suite.episodes=0"], "suite.episodes=0"),
        (["suite={file}", "suite.only=[nothing]"], "there is no test 'nothing', but same, kinds"),
        (["suite={file}", "suite.env.colour=red"], "the environment has no option 'colour'"),
        (["suite={file}", "suite.metric=won"], "no such metric, but success"),
        (["suite={file}", "suite.kinds=[sleep]", "suite.only=[kinds]"], "no test could be played; env.kind=sleep"),
        (["suite={file}", "--policy", "teacher"], "a suite is played by student, random, bot"),
        (["suite={file}", "--mode", "both"], "--mode=both cannot be used with a suite"),
        (["suite={file}", "--video"], "--video cannot be used with a suite"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, suite_file, capsys, words, message):
    run_experiment(config(tmp_path / "runs"), [])
    with pytest.raises(SystemExit):
        main([str(only_run_folder(tmp_path / "runs")), *(word.format(file=suite_file) for word in words)])
    assert message in capsys.readouterr().err


def test_words_about_the_suite_are_not_taken_for_runs():
    words, rest = split_words(["outputs/x/seed=0", "suite=toy", "--seed", "3", "suite.episodes=4"])
    assert (words, rest) == (["suite=toy", "episodes=4"], ["outputs/x/seed=0", "--seed", "3"])


def test_intervals_of_shares():
    assert proportion(0, 10).low == 0 and proportion(10, 10).high == 1
    # Wilson's interval is where the score test would not reject.
    for successes, n in ((3, 20), (0, 7), (50, 100)):
        found = proportion(successes, n)
        for bound in (found.low, found.high):
            if 0 < bound < 1:
                error = math.sqrt(bound * (1 - bound) / n)
                assert abs(found.estimate - bound) / error == pytest.approx(1.959964, abs=1e-5)
    one = Interval(0.5, 0.4, 0.7)
    assert mean_proportion([one]) == one
    four = mean_proportion([one] * 4)
    assert (four.low, four.high) == (pytest.approx(0.45), pytest.approx(0.6))
    with pytest.raises(ValueError, match="of 0 episodes"):
        proportion(0, 0)


def test_the_mean_over_kinds_is_covered_as_often_as_said():
    rng, shares, covered = np.random.default_rng(0), np.array([0.9, 0.5, 0.05, 0.0, 1.0]), 0
    for _ in range(400):
        found = mean_proportion([proportion(int(rng.binomial(30, p)), 30) for p in shares])
        covered += found.low <= shares.mean() <= found.high
    assert 0.93 < covered / 400 <= 1.0


def shipped(name):
    env = compose("env=babyai_text", "agent=random")["env"]
    return suite_of(name, options("suite")[name], env)


def test_the_shipped_suite_composes_and_builds():
    """Every test, in every kind: the environment is built, starts, and shows what the test is about."""
    suite = shipped("babyai_text")
    assert [test.name for test in suite.tests][:3] == ["as_trained", "train_tasks", "test_tasks"]
    own = {"n_envs": 2}
    for test in suite.tests:
        for kind, node in test.environments():
            built = Builder({"seeds": Seeds(0)}).build({**node, **own}, "env")
            built.provide(("prompt",))
            seen = built.reset(seed=0)["prompt"].ravel().tolist()
            assert kind == "all" or set(built.kinds) == {kind}
            for old in node["replace"]:
                assert not any(old in text for text in seen), (test.name, old, seen[0])
            assert all(f": {', '.join(built.spec.action_names)}" in text for text in seen)
            built.close()
    assert all(yaml.safe_load(json.dumps(dict(test.env))) for test in suite.tests)


def test_an_option_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"suite.tests.a.env: the environment has no option 'levels'"):
        suite_of("x", {**yaml.safe_load(SUITE), "tests": {"a": {"env": {"levels": 1}}}}, config("")["env"])
    assert Errands(Seeds(0)).spec.n_actions == Reader(Errands(Seeds(0)).spec, 1.0).n_actions
