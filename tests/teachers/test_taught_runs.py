"""Taught students through the command line's own code: runs, failures of the planner's model, evaluations."""

import csv
import json

import pytest

from experiments import compose, find_run_folder, load_comparable_metrics, run, run_experiment
from fake_openai_server import FakeOpenAIServer
from llmrl.cli import evaluate
from llmrl.config.input_digests import with_digests
from llmrl.core.errors import ConfigError, LLMError
from llmrl.run.artifacts import load_saved_state
from llmrl.teachers.plans import PlanStep
from llmrl.teachers.rooms.room_domains import SimpleDoorKeyDomain

SMALL = (
    *("env=simple_doorkey", "env.n_envs=4", "env.horizon=40", "agent=ppo", "agent.features=8", "learn.rollout_steps=5"),
    *("learn.evaluation_interval=0", "learn.evaluate_episodes=4", "checkpoint_seconds=0"),
)
PLAN = json.dumps({"reasoning": "", "plan": [{"skill": "explore", "object": ""}]})


def model(server):
    return (
        *("llm=openai_compatible", f"llm.base_url={server.url}", "llm.model=fake-model", "llm.retry.retries=0"),
        *("teacher=llm", "teacher.samples=2"),
    )


def evaluate_folder(folder, *arguments):
    return evaluate.evaluate(evaluate.build_parser().parse_args([str(folder), *arguments]))


class Dying:
    """Answers a few questions and then none any more."""

    def __init__(self, get_server, answers):
        self.server_of, self.left = get_server, answers

    def __call__(self, messages):
        self.left -= 1
        if self.left <= 0:
            self.server_of().faults += ["500"] * 1000
        return PLAN


class TestModelFailure:
    STEPS = ("learn.env_steps=320",)

    @pytest.mark.slow
    def test_failure_stops_run_resumably(self, tmp_path):
        with FakeOpenAIServer(lambda messages: PLAN) as server:
            run(*SMALL, *self.STEPS, *model(server), f"output_root={tmp_path / 'whole'}")
            n_requests = len(server.exchanges)
        reference = load_comparable_metrics(find_run_folder(tmp_path / "whole"))
        with FakeOpenAIServer(None) as server:
            server.reply = Dying(lambda: server, answers=4)
            overrides = (*SMALL, *self.STEPS, *model(server), f"output_root={tmp_path / 'died'}")
            with pytest.raises(LLMError):
                run(*overrides)
            folder = find_run_folder(tmp_path / "died")
            assert json.loads((folder / "status.json").read_text())["state"] == "failed"
            iteration = load_saved_state(folder)[0]
            assert 0 < iteration < 16, "it should have died on the way"
            server.faults.clear()
            server.reply = lambda messages: PLAN
            n_answers = len([e for e in server.exchanges if e.fault is None])
            run(*overrides)
            after = len([e for e in server.exchanges if e.fault is None])
        assert after <= n_requests, "a question was paid twice"
        assert after > n_answers

        def drop_spending(rows):
            return [{k: v for k, v in row.items() if not k.startswith("usage/")} for row in rows]

        assert drop_spending(load_comparable_metrics(folder)) == drop_spending(reference)

    @pytest.mark.slow
    def test_fallback_replaces_model(self, tmp_path):
        with FakeOpenAIServer(None) as server:
            server.reply = Dying(lambda: server, answers=4)
            run(*SMALL, *self.STEPS, *model(server), "llm.failures=fall_back", f"output_root={tmp_path}")
        last = load_comparable_metrics(find_run_folder(tmp_path))[-2]
        assert last["teacher/fallbacks"] > 0 and last["teacher/weight"] > 0


@pytest.mark.slow
def test_no_question_after_the_cutoff(tmp_path):
    schedule = ("teacher.schedule.start=1", "teacher.schedule.anneal=5", "teacher.schedule.cutoff=10")
    run(*SMALL, "learn.env_steps=400", "teacher=llm", "llm=scripted", *schedule, f"output_root={tmp_path}")
    rows = [row for row in load_comparable_metrics(find_run_folder(tmp_path)) if "teacher/weight" in row]
    assert len(rows) == 20
    assert [row["teacher/weight"] > 0 for row in rows] == [True] * 10 + [False] * 10
    assert rows[9]["teacher/queries"] == rows[-1]["teacher/queries"] == 10 * 5 * 4
    assert rows[9]["llm/calls"] == rows[-1]["llm/calls"] > 0
    assert "teacher/cross_entropy" in rows[9] and "teacher/cross_entropy" not in rows[-1]


@pytest.fixture(scope="module")
def student_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("taught")
    run(*SMALL, "learn.env_steps=200", "teacher=llm", "llm=scripted", f"output_root={root}")
    return find_run_folder(root)


class TestEvaluation:
    @pytest.mark.slow
    def test_players_are_listed_together(self, student_run, tmp_path):
        out = tmp_path / "out"
        results = evaluate_folder(
            student_run,
            "--policy",
            "student,teacher,oracle,random",
            "--mode",
            "both",
            "--episodes",
            "16",
            "--out",
            str(out),
        )
        assert len(results["players"]) == 8
        table = {(p["policy"], p["mode"]): p["table"]["success"] for p in results["players"]}
        assert table["oracle", "deterministic"]["mean"] > 0.5 > table["random", "stochastic"]["mean"]
        assert table["teacher", "stochastic"]["mean"] > 0.5
        assert all(row["low"] <= row["mean"] <= row["high"] for row in table.values())
        rows = list(csv.DictReader((out / "episodes.csv").open()))
        assert len(rows) == 8 * 16 and {row["policy"] for row in rows} == {"student", "teacher", "oracle", "random"}

    @pytest.mark.slow
    def test_default_is_hundred_episodes(self, student_run, tmp_path):
        assert evaluate_folder(student_run, "--policy", "oracle", "--out", str(tmp_path / "out"))["episodes"] == 100

    @pytest.mark.slow
    def test_evaluation_is_deterministic(self, student_run, tmp_path):
        options = ("--policy", "oracle", "--mode", "deterministic", "--episodes", "16")
        first, second = (evaluate_folder(student_run, *options, "--out", str(tmp_path / name)) for name in "ab")
        assert first["per_episode"] == second["per_episode"]

    @pytest.mark.slow
    def test_video_with_thoughts(self, student_run, tmp_path):
        import imageio.v3 as iio

        for policy in ("student,teacher", "random"):
            out = tmp_path / policy
            arguments = ("--video", "--video-steps", "4", "--episodes", "4", "--out", str(out))
            results = evaluate_folder(student_run, "--policy", policy, *arguments)
            frames = iio.imread(out / "videos" / "world.gif", index=None)
            assert frames.shape[2] > frames.shape[1] and len(results["videos"]) == 2
            panel = frames[0][:, frames.shape[1] :]
            assert (panel != 255).any(), "nothing is drawn beside the game"

    def test_student_needs_no_model(self, tmp_path):
        with FakeOpenAIServer(lambda messages: PLAN) as server:
            run(*SMALL, "learn.env_steps=40", *model(server), f"output_root={tmp_path}")
        # The server is gone.
        assert evaluate_folder(find_run_folder(tmp_path), "--episodes", "4")["episodes"] == 4

    def test_no_episodes_are_no_evaluation(self, student_run):
        with pytest.raises(ConfigError, match="episodes=0"):
            evaluate_folder(student_run, "--episodes", "0")

    @pytest.mark.slow
    @pytest.mark.parametrize(("policy", "says"), [("student,pupil", "use student"), ("teacher", "no teacher")])
    def test_missing_players(self, tmp_path, policy, says):
        run(*SMALL, "learn.env_steps=20", f"output_root={tmp_path}")
        with pytest.raises(ConfigError, match=says):
            evaluate_folder(find_run_folder(tmp_path), "--policy", policy)


class Sitting(SimpleDoorKeyDomain):
    """A domain whose rule is to do nothing worth while."""

    def best_plan(self, sentence):
        return (PlanStep("explore"),)


def test_oracle_uses_run_domain(tmp_path):
    changes = (
        "teacher=oracle",
        "teacher.domain={_target_: test_taught_runs.Sitting}",
        "trusted_modules=[test_taught_runs]",
    )
    run(*SMALL, "learn.env_steps=20", *changes, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    trust = ("--trust", "test_taught_runs")
    results = evaluate_folder(folder, "--policy", "oracle", "--episodes", "20", "--out", str(tmp_path / "out"), *trust)
    assert results["table"]["success"]["mean"] < 0.5, "who only explores opens no door"


class TestCustomPlanTable:
    def overrides(self, tmp_path, plan):
        table = tmp_path / "mine.json"
        table.write_text(
            json.dumps({"domain": "simple_doorkey", "plans": {"Agent sees <nothing>, holds <nothing>.": {plan: 1.0}}})
        )
        return (
            *SMALL,
            "learn.env_steps=20",
            "teacher=offline",
            f"teacher.table={table}",
            f"output_root={tmp_path}/out",
        )

    def test_table_changes_hash(self, tmp_path):
        for plan, runs in (("explore", 1), ("explore", 1), ("explore, explore", 2)):
            run(*self.overrides(tmp_path, plan))
            assert len(list((tmp_path / "out" / "simple_doorkey").iterdir())) == runs

    def test_changed_table_raises(self, tmp_path):
        overrides = self.overrides(tmp_path, "explore")
        submitted = with_digests(compose(*overrides))
        assert with_digests(submitted) == submitted
        self.overrides(tmp_path, "explore, explore")
        with pytest.raises(ConfigError, match=r"mine.json"):
            run_experiment(submitted, list(overrides))
        (tmp_path / "mine.json").unlink()
        with pytest.raises(ConfigError, match=r"mine\.json.*No such|No such.*mine\.json"):
            with_digests(compose(*overrides))

    @pytest.mark.parametrize("overrides", [("teacher=offline",), ("teacher=offline", "teacher.table=published"), ()])
    def test_unrelated_runs_keep_hash(self, overrides):
        config = compose(*SMALL, *overrides)
        assert with_digests(config) == config


class TestTeacherPlan:
    SCHEDULE = ("teacher.schedule.start=1", "teacher.schedule.anneal=5", "teacher.schedule.cutoff=10")

    def plan(self, capsys, *overrides):
        run(*SMALL, *overrides, "dry_run=true")
        return " ".join(capsys.readouterr().out.replace("│", " ").split())

    def test_plan_lists_table(self, capsys):
        text = self.plan(capsys, "learn.env_steps=400", "teacher=offline", *self.SCHEDULE)
        assert "planner: the table corrected, domain: simple_doorkey, mode: soft, parity: false" in text
        assert "LinearFloorCutoff(start=1.0, floor=0.1, anneal=5, cutoff=10)" in text
        assert "teaches in 10 of the 20 updates" in text

    def test_plan_lists_model(self, capsys):
        world = ("env=simple_spread", "env.n_envs=2", "agent=ppo", "teacher=llm", "llm=scripted")
        run(*world, "teacher.debate_rounds=2", "teacher.samples=3", "learn.env_steps=100", "dry_run=true")
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert "samples: 3, debate rounds: 2" in text and "sharing: own" in text

    def test_plan_lists_no_teacher(self, capsys):
        assert "teacher none" in self.plan(capsys, "learn.env_steps=400")


def test_teacher_plays(tmp_path):
    overrides = ("env=simple_doorkey", "agent=teacher", "env.n_envs=8", "play.episodes=16")
    result = run(*overrides, "teacher=offline", f"output_root={tmp_path}")
    assert result > 0.8
    with pytest.raises(ConfigError, match="agent=teacher"):
        run(*overrides, f"output_root={tmp_path}")


def test_frozen_agents_cannot_be_students(tmp_path):
    with pytest.raises(ConfigError, match=r"agent\.freeze=all.*teacher=none"):
        run(*SMALL, "agent.freeze=all", "teacher=oracle", f"output_root={tmp_path}")
