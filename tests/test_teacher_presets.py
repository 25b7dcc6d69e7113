"""The presets of conf/experiment/teacher: every one composes, builds, and is what its name and the pages say."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

import llmrl.conf
from experiments import compose, only_run_folder, run
from llmrl.agents.ppo_agent import PPOAgent
from llmrl.agents.teacher_agent import TeacherAgent
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.loops.learn import LearnLoop
from llmrl.loops.play import PlayLoop
from llmrl.teachers.debate import Debate
from llmrl.teachers.llm_planner import LLMPlanner
from llmrl.teachers.offline import OfflinePlanner
from llmrl.teachers.planners import OraclePlanner
from llmrl.teachers.schedules import Constant, Exponential, LinearFloorCutoff

ROOT = Path(__file__).parents[1]
FOLDER = Path(llmrl.conf.__file__).parent / "experiment" / "teacher"
PRESETS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
ROOMS = {"simple": "simple_doorkey", "lava": "lava_doorkey", "colored": "colored_doorkey", "two_door": "two_door"}
PARTICLES = {
    "spread": "simple_spread",
    "reference": "simple_reference",
    "speaker_listener": "simple_speaker_listener",
    "tag": "simple_tag",
}
TASKS = ROOMS | PARTICLES
OURS = LinearFloorCutoff(**yaml.safe_load((FOLDER / "parts" / "schedule.yaml").read_text())["teacher"]["schedule"])
PLANNERS = {
    "llm": LLMPlanner,
    "llm_1": LLMPlanner,
    "oracle": OraclePlanner,
    "mappo_taught": OraclePlanner,
    "mappo_taught_llm": LLMPlanner,
    "mappo_taught_mixture": LLMPlanner,
    "mappo_taught_debate": Debate,
}
SCHEDULES = {
    "published": LinearFloorCutoff(),
    "constant": Constant(0.26),
    "exponential": Exponential(1.0, 0.98, 0.1, 150),
    "parity": LinearFloorCutoff(1.0, 0.1, 120, 180),
}


def split(preset):
    """`two_door_taught_mlp` -> two_door, taught_mlp."""
    task = next(task for task in TASKS if preset.startswith(f"{task}_"))
    return task, preset.removeprefix(f"{task}_")


@pytest.mark.parametrize("preset", PRESETS)
def test_it_composes_and_builds(preset):
    task, what = split(preset)
    config = compose(f"experiment=teacher/{preset}")
    check_values(config)
    assert config["name"] == TASKS[task]
    parts = build_parts(config, build_llm(config, None, check=False))
    try:
        loop = build_loop(config, parts)
        assert parts.env.spec.name == TASKS[task]
        agent, teacher = parts.agents[0], parts.teacher
        if what == "teacher":
            assert isinstance(agent, TeacherAgent) and isinstance(loop, PlayLoop) and loop.episodes == 1000
            return
        assert isinstance(loop, LearnLoop)
        assert isinstance(agent, PPOAgent)
        assert agent.policy.recurrent == ("lstm" in what)
        assert agent.policy.groups()[0][0].central == ("mappo" in what)
        if "alone" in what or what in ("ippo", "mappo"):
            assert teacher is None
            return
        assert isinstance(teacher.guide.planner, PLANNERS.get(what, OfflinePlanner))
        assert teacher.schedule == SCHEDULES.get(what, OURS)
        assert teacher.guide.mode == ("hard" if what in ("hard", "published") else "soft")
        assert teacher.guide.sharing == ("mixture" if "mixture" in what else "own")
        assert teacher.guide.domain.parity == (what in ("parity", "published"))
        assert loop.updates > getattr(teacher.schedule, "cutoff", 0), "the student is never alone"
    finally:
        parts.close()


def test_what_a_preset_adds_is_all_it_adds():
    """Two presets of a task differ where their names do."""
    taught = compose("experiment=teacher/simple_taught_mlp")
    for what, group in (
        ("alone_mlp", {"teacher"}),
        ("taught_lstm", {"agent"}),
        ("hard", {"teacher"}),
        ("llm", {"teacher"}),
        ("oracle", {"teacher"}),
        ("constant", {"teacher"}),
        ("exponential", {"teacher"}),
    ):
        other = compose(f"experiment=teacher/simple_{what}")
        assert {name for name in taught if taught[name] != other[name]} == group
    one, ten = (compose(f"experiment=teacher/simple_{what}")["teacher"] for what in ("llm_1", "llm"))
    assert ten == one | {"samples": 10} and one["samples"] == 1


def test_schedules_that_are_compared_weigh_alike():
    updates = range(196)
    ours = sum(map(OURS, updates))
    for what in ("constant", "exponential"):
        assert sum(map(SCHEDULES[what], updates)) == pytest.approx(ours, rel=0.1)


def test_published_students_learn_as_published():
    config = compose("experiment=teacher/simple_published")
    ppo, learn = config["agent"]["ppo"], config["learn"]
    assert (ppo["learning_rate"], ppo["final_learning_rate"], ppo["gae_lambda"]) == (1e-3, None, 1.0)
    assert all(compose(f"experiment=teacher/{task}_published")["agent"] == config["agent"] for task in ROOMS)
    assert learn["env_steps"] // (learn["rollout_steps"] * config["env"]["n_envs"]) == 4000


def test_the_model_behind_a_preset_can_be_chosen():
    config = compose("experiment=teacher/simple_llm", "llm=gpt4o_mini")
    assert config["llm"]["_target_"].endswith("LiteLLMChat") and config["teacher"]["_target_"].endswith("llm_teacher")


def test_a_schedule_of_another_kind_on_the_command_line():
    """The first of two overrides makes room for the second."""
    node = "{_target_:llmrl.teachers.schedules.Constant,weight:0.5}"
    config = compose("env=simple_doorkey", "teacher=oracle", "teacher.schedule=null", f"teacher.schedule={node}")
    check_values(config)
    assert config["teacher"]["schedule"] == {"_target_": "llmrl.teachers.schedules.Constant", "weight": 0.5}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_presets(task):
    each = {"taught_mlp", "taught_lstm", "alone_mlp", "alone_lstm", "teacher", "published", "llm"}
    wanted = each if task in ROOMS else {"mappo", "mappo_taught", "teacher"}
    assert {f"{task}_{what}" for what in wanted} <= set(PRESETS)


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yaml")), ids=lambda path: path.stem)
def test_its_file_says_what_it_is(path):
    text = path.read_text()
    first, second, *_ = text.splitlines()
    assert first == "# @package _global_" and second.startswith("# ")
    if path.parent == FOLDER:
        assert f"\n#   llmrl-train experiment=teacher/{path.stem}\n" in text


def test_presets_named_in_the_documentation_exist():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    named = {name for group in re.findall(r"experiment=([\w/,]+)", text) for name in group.split(",")}
    own = {name.removeprefix("teacher/") for name in named if re.match("teacher/.", name)}
    own |= set(re.findall(rf"`((?:{'|'.join(ROOMS)})_(?:taught|alone)[a-z_]+)`", text))
    assert own and own <= set(PRESETS)


@pytest.mark.parametrize("page", ["policy_teacher", "rooms", "particle_worlds", "agents", "extending"])
def test_commands_in_the_documentation_compose(page):
    """Those of training runs that need neither another run nor somebody's own package."""
    found = 0
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for block in re.findall(r"^```\w*$(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith("llmrl-train ") or "--config-dir" in line or "<run" in line:
                continue
            words = [
                word
                for word in shlex.split(line, comments=True)[1:]
                if not word.startswith(("--", "hardware=", "seed="))
            ]
            words = [re.sub(r"^(experiment=[^,]+),.*", r"\1", word) for word in words]
            check_values(compose(*words))
            found += 1
    assert found


@pytest.mark.parametrize(
    ("preset", "logged"),
    [
        ("simple_taught_mlp", {"teacher/weight", "teacher/cross_entropy", "teacher/fallbacks"}),
        ("lava_published", {"teacher/weight", "teacher/agreement"}),
        ("two_door_taught_lstm", {"teacher/weight", "teacher/queries"}),
        ("colored_alone_mlp", set()),
        ("simple_llm_1", {"teacher/asked", "llm/calls"}),
        ("simple_exponential", {"teacher/weight"}),
        ("lava_teacher", set()),
        ("spread_mappo_taught", {"teacher/weight", "teacher/states"}),
        ("spread_mappo_taught_debate", {"teacher/weight", "teacher/asked", "teacher/debate_changes"}),
        ("tag_mappo", set()),
    ],
)
def test_it_runs(preset, logged, tmp_path):
    """Two updates, an evaluation, and the numbers that the documentation promises."""
    small = (
        "env.n_envs=4",
        "learn.rollout_steps=10",
        "learn.env_steps=80",
        "learn.evaluate_episodes=4",
        "play.episodes=6",
    )
    if preset.endswith("_published"):  # these learn from full minibatches alone
        small += ("agent.ppo.minibatch_size=32",)
    run(f"experiment=teacher/{preset}", *small, f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["episodes"] == 6 if preset.endswith("teacher") else summary["updates"] == 2
    names = set().union(*rows)
    assert logged <= names and ("teacher/weight" in names) == bool(logged)
    page = (ROOT / "docs" / "policy_teacher.md").read_text()
    assert not [name for name in names if name.startswith("teacher/") and f"`{name}`" not in page]
