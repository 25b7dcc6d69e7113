"""Studies of teachers: treatments build in all environments and agree with their names and the documentation."""

import json
import re
import shlex
from pathlib import Path

import pytest

from experiments import compose, find_run_folder, run
from llmrl.agents.ppo_agent import PPOAgent
from llmrl.agents.teacher_agent import TeacherAgent
from llmrl.config.treatments import list_studies_by_treatment
from llmrl.core.option_files import get_root, read_file
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.experiment.resources import RunResources
from llmrl.loops.learn import LearnLoop
from llmrl.loops.play import PlayLoop
from llmrl.teachers.debate import Debate
from llmrl.teachers.llm_planner import LLMPlanner
from llmrl.teachers.offline_planner import OfflinePlanner
from llmrl.teachers.planners import OraclePlanner
from llmrl.teachers.schedules import Constant, LinearFloorCutoff
from some import mark_long_except

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROOMS = ("simple_doorkey", "lava_doorkey", "colored_doorkey", "two_door")
PARTICLES = ("simple_spread", "simple_reference", "simple_speaker_listener", "simple_tag")
SHIPPED_SCHEDULE = LinearFloorCutoff(**read_file(get_root() / "treatment" / "_schedule.yaml")["teacher"]["schedule"])
SCHEDULES = {
    "llm4teach": LinearFloorCutoff(),
    "taught_constant": Constant(0.26),
    "taught_flawed": LinearFloorCutoff(1.0, 0.1, 120, 180),
}
STUDENTS = ("alone", "taught", *SCHEDULES)
STUDENT, TEAM_STUDENT = ("taught",), ("team_taught", "env=simple_spread")
RUNS = [
    *((name, f"env={room}") for name in (*STUDENTS, "teacher_plays") for room in ROOMS),
    *((name, f"env={world}") for name in ("team", "team_taught", "rules_play") for world in PARTICLES),
    *((name, "agent=student_lstm", "env=two_door") for name in STUDENTS),
    (*STUDENT, "teacher=oracle"),
    (*STUDENT, "teacher=llm"),
    (*STUDENT, "teacher=llm", "teacher.samples=1"),
    (*STUDENT, "teacher.mode=hard"),
    ("team", "agent=ippo", "env=simple_spread"),
    (*TEAM_STUDENT, "teacher=llm"),
    (*TEAM_STUDENT, "teacher=llm", "teacher.sharing=mixture"),
    (*TEAM_STUDENT, "teacher=llm", "teacher.debate_rounds=1"),
]
"""A treatment, and what is typed beside it."""


def words(treatment, *extra):
    """`("team", "env=simple_tag")` -> overrides of a run."""
    study = "rooms" if "teacher/rooms" in list_studies_by_treatment()[treatment] else "teams"
    return (f"experiment=teacher/{study}", f"treatment={treatment}", *extra)


@pytest.mark.slow
@pytest.mark.parametrize("case", mark_long_except(RUNS[::11], RUNS), ids=" ".join)
def test_treatment_builds(case):
    treatment, *extra = case
    config = compose(*words(*case))
    check_values(config)
    parts = build_parts(config, RunResources(config, build_used_model).model)
    try:
        loop = build_loop(config, parts)
        assert config["name"] == parts.env.spec.name
        agent, teacher = parts.agents[0], parts.teacher
        if treatment in ("teacher_plays", "rules_play"):
            assert isinstance(agent, TeacherAgent) and isinstance(loop, PlayLoop) and loop.n_episodes == 1000
            return
        assert isinstance(loop, LearnLoop)
        assert isinstance(agent, PPOAgent)
        assert agent.policy.recurrent == ("agent=student_lstm" in extra)
        assert agent.policy.list_networks()[0][0].has_central_critic == (
            treatment.startswith("team") and "agent=ippo" not in extra
        )
        if treatment in ("alone", "team"):
            assert teacher is None
            return
        uses_rules = "teacher=oracle" in extra or treatment == "team_taught"
        planner = LLMPlanner if "teacher=llm" in extra else OraclePlanner if uses_rules else OfflinePlanner
        assert isinstance(teacher.plan_policy.planner, Debate if "teacher.debate_rounds=1" in extra else planner)
        assert teacher.schedule == SCHEDULES.get(treatment, SHIPPED_SCHEDULE)
        assert teacher.plan_policy.mode == (
            "hard" if "teacher.mode=hard" in extra or treatment == "llm4teach" else "soft"
        )
        assert teacher.plan_policy.sharing == ("mixture" if "teacher.sharing=mixture" in extra else "own")
        assert teacher.plan_policy.domain.parity == (treatment in ("taught_flawed", "llm4teach"))
        assert loop.n_updates > getattr(teacher.schedule, "cutoff", 0), "the student is never alone"
    finally:
        parts.close()


def test_treatment_changes_only_documented_keys():
    """Two runs of a room differ where their names do."""
    student = compose(*words("taught"))
    for case, group in (
        (("alone",), {"teacher"}),
        (("taught", "agent=student_lstm"), {"agent"}),
        (("taught", "teacher.mode=hard"), {"teacher"}),
        (("taught", "teacher=llm"), {"teacher"}),
        (("taught_constant",), {"teacher"}),
    ):
        config = compose(*words(*case))
        assert {name for name in student if student[name] != config[name]} == group


@pytest.mark.parametrize(
    "treatment",
    mark_long_except(["alone", "taught"], ["alone", "taught", "taught_flawed", "taught_constant"]),
)
def test_noise_does_not_dominate_sparse_teacher(treatment):
    normalized = {room: compose(*words(treatment, f"env={room}")) for room in ROOMS}
    normalized = {room: config["agent"]["ppo"]["normalize_advantage"] for room, config in normalized.items()}
    assert normalized == dict.fromkeys(ROOMS, True) | {"colored_doorkey": False}


def test_schedules_have_equal_weight():
    updates = range(196)
    default_sum = sum(map(SHIPPED_SCHEDULE, updates))
    assert sum(map(SCHEDULES["taught_constant"], updates)) == pytest.approx(default_sum, rel=0.1)


@pytest.mark.slow
def test_reference_students_match_paper():
    config = compose(*words("llm4teach"))
    ppo, learn = config["agent"]["ppo"], config["learn"]
    assert (ppo["learning_rate"], ppo["final_learning_rate"], ppo["gae_lambda"]) == (1e-3, None, 1.0)
    assert all(compose(*words("llm4teach", f"env={room}"))["agent"] == config["agent"] for room in ROOMS)
    assert learn["env_steps"] // (learn["rollout_steps"] * config["env"]["n_envs"]) == 4000


def test_teacher_can_use_llm():
    paper_options = ("teacher=llm", "teacher.parser=published", "teacher.prompt=published")
    teacher = compose(*words("llm4teach", *paper_options))["teacher"]
    assert (teacher["parity"], teacher["mode"], teacher["parser"]) == (True, "hard", "published")


def test_plan_model_is_selectable():
    config = compose(*words("taught", "teacher=llm", "llm=gpt4o_mini"))
    assert config["llm"]["_target_"].endswith("LiteLLMChat") and config["teacher"]["_target_"].endswith("llm_teacher")


def test_custom_schedule_on_command_line():
    """The first of two overrides makes room for the second."""
    node = "{_target_:llmrl.teachers.schedules.Constant,weight:0.5}"
    config = compose("env=simple_doorkey", "teacher=oracle", "teacher.schedule=null", f"teacher.schedule={node}")
    check_values(config)
    assert config["teacher"]["schedule"] == {"_target_": "llmrl.teachers.schedules.Constant", "weight": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    mark_long_except(
        ["rooms", "particle_worlds"], ["policy_teacher", "rooms", "particle_worlds", "agents", "extending"]
    ),
)
def test_commands_in_the_documentation_compose(page):
    """Includes commands of training runs that require neither another run nor a custom package."""
    n_commands = 0
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for block in re.findall(r"^```\w*$(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            is_external = any(word in line for word in ("--config-dir", "<run", "env=coins", "my_package"))
            if not line.startswith("llmrl-train ") or is_external:
                continue
            overrides = [
                word
                for word in shlex.split(line, comments=True)[1:]
                if not word.startswith(("--", "hardware=", "seed="))
            ]
            # Of what is swept, the first of each.
            check_values(compose(*[re.sub(r"^((?:experiment|treatment|env)=[^,]+),.*", r"\1", w) for w in overrides]))
            n_commands += 1
    assert n_commands


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run_", "logged"),
    [
        (("taught",), {"teacher/weight", "teacher/cross_entropy", "teacher/fallbacks"}),
        pytest.param(
            ("llm4teach", "env=lava_doorkey", "agent.ppo.minibatch_size=32"),
            {"teacher/weight", "teacher/agreement"},
            marks=pytest.mark.long,
        ),
        (("taught", "env=two_door", "agent=student_lstm"), {"teacher/weight", "teacher/queries"}),
        pytest.param(("alone", "env=colored_doorkey"), set(), marks=pytest.mark.long),
        (("taught", "teacher=llm", "teacher.samples=1"), {"teacher/requested_states", "llm/calls"}),
        pytest.param(("taught_constant",), {"teacher/weight"}, marks=pytest.mark.long),
        (("teacher_plays", "env=lava_doorkey"), set()),
        (TEAM_STUDENT, {"teacher/weight", "teacher/states"}),
        pytest.param(
            (*TEAM_STUDENT, "teacher=llm", "teacher.debate_rounds=1"),
            {"teacher/weight", "teacher/requested_states", "teacher/debate_changes"},
            marks=pytest.mark.long,
        ),
        pytest.param(("team", "env=simple_tag"), set(), marks=pytest.mark.long),
    ],
    ids=lambda case: case[0] if isinstance(case, tuple) else "",
)
def test_treatment_runs(run_, logged, tmp_path):
    """Two updates, an evaluation, and the numbers that the documentation promises."""
    small = (
        "env.n_envs=4",
        "learn.rollout_steps=10",
        "learn.env_steps=80",
        "learn.evaluate_episodes=4",
        "play.episodes=6",
    )
    run(*words(*run_), *small, f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["episodes"] == 6 if "teacher_plays" in run_ else summary["updates"] == 2
    names = set().union(*rows)
    assert logged <= names and ("teacher/weight" in names) == bool(logged)
    page = (ROOT / "docs" / "policy_teacher.md").read_text()
    assert not [name for name in names if name.startswith("teacher/") and f"`{name}`" not in page]
