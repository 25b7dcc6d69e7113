"""Whatever a run is busy with when it is told to stop: it has ended soon after, and goes on to the same numbers."""

import importlib
import signal
import time

import pytest

from experiments import find_run_folder, load_comparable_metrics, run
from llmrl.llms.scripted import ScriptedChat
from llmrl.run.artifacts import load_saved_state
from llmrl.run.ownership import read_owner
from llmrl.run.signals import Stopped
from llmrl.run.status import read_status
from some import mark_long_except
from stalling import TOTAL_STALL_S, StallingMethod, shorten_stop_timeouts

ROOMS = ("env=escape_room", "env.n_envs=4")
LEARN = (
    *ROOMS,
    "learn.rollout_steps=5",
    "learn.env_steps=400",
    "learn.evaluate_episodes=40",
    "learn.evaluation_interval=4",
)
DESIGN = (
    *ROOMS,
    "principal=random",
    "design.evaluations=1",
    "design.steps=3",
    "design.adapt_rounds=2",
    "design.validate_episodes=4",
)
GP = (*DESIGN, "principal=gp", "principal.initial=2")
PLAY = (*ROOMS, "agent=random", "play.episodes=12")
SEARCH = ("env=cartpole", "agent=linear", "principal=random", "search.iterations=3", "search.candidates=2")
SEARCH += ("search.episodes=2", "search.evaluate_episodes=4", "hardware.cores=1", "env.horizon=30")

ROOM, STEP = "llmrl.envs.escape_room.EscapeRoom", "llmrl.algorithms.optimizer_step.OptimizerStep"
STACKED = "llmrl.algorithms.societies.batched_trainer.StackedOptimizerStep"

STALLS = {
    "learn, a rollout": (LEARN, ROOM, "step", 30, False),
    "learn, one step of a game": (LEARN, ROOM, "step", 30, True),
    "learn, an update": (LEARN, STEP, "step", 12, False),
    "learn, an evaluation": (LEARN, ROOM, "step", 22, False),
    "learn, the last evaluation": ((*LEARN, "learn.evaluation_interval=0"), ROOM, "step", 101, False),
    "learn, a build": (LEARN, ROOM, "__init__", 0, True),
    "learn, what is written at the end": (LEARN, "llmrl.loops.learn", "write_trained_results", 0, True),
    "design, an update": (DESIGN, STACKED, "step", 2, False),
    "design, an update that waits": (DESIGN, STACKED, "step", 2, True),
    "design, validation": (DESIGN, ROOM, "step", 12, False),
    "design, the fit of a Gaussian process": (
        GP,
        "llmrl.principals.gp.GaussianProcessPrincipal",
        "_fit_model",
        0,
        True,
    ),
    "design, what has to be known first": ((*DESIGN, "design.references=1"), ROOM, "step", 30, False),
    "play, one step": (PLAY, ROOM, "step", 7, True),
    "search, episodes": (SEARCH, "llmrl.envs.gym.evaluator.EpisodeRunner", "play", 2, True),
}

ESSENTIAL = (
    "learn, one step of a game",
    "design, an update that waits",
    "search, episodes",
)


def located(path):
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def all_metrics(root):
    """Return the metrics of a run and of the runs that it depends on."""
    metrics = {
        path.parent.relative_to(root): load_comparable_metrics(path.parent) for path in root.rglob("metrics.jsonl")
    }
    assert metrics
    return metrics


@pytest.mark.slow
@pytest.mark.parametrize("case", mark_long_except(ESSENTIAL, STALLS))
def test_stalling_run_stops_with_full_state(tmp_path, monkeypatch, case):
    overrides, owner, method, at, full_stall = STALLS[case]
    with monkeypatch.context() as patch:
        shorten_stop_timeouts(patch)
        stall = StallingMethod(patch, located(owner), method, at, full_stall)
        with pytest.raises(Stopped) as stop:
            run(*overrides, f"output_root={tmp_path / 'stopped'}")
        assert time.monotonic() - stall.signaled < TOTAL_STALL_S / 2
    assert stop.value.exit_code == 128 + signal.SIGTERM
    folders = [path.parent for path in (tmp_path / "stopped").rglob("status.json")]
    assert {read_status(folder).state for folder in folders} == {"preempted"}
    assert not [folder for folder in folders if read_owner(folder)]
    run(*overrides, f"output_root={tmp_path / 'stopped'}")
    run(*overrides, f"output_root={tmp_path / 'whole'}")
    assert all_metrics(tmp_path / "stopped") == all_metrics(tmp_path / "whole")


LLM_OVERRIDES = {
    "a principal": (*DESIGN, "principal=llm"),
    "a player": ("env=nim", "env.n_envs=2", "agent=llm_player", "play.episodes=4", "env.horizon=6"),
}


@pytest.mark.slow
@pytest.mark.parametrize("player", mark_long_except(["a player"], LLM_OVERRIDES))
def test_state_is_saved_ahead_of_local_reply(tmp_path, monkeypatch, player):
    overrides = (*LLM_OVERRIDES[player], "llm=scripted", "checkpoint_seconds=1000")
    with monkeypatch.context() as patch:
        shorten_stop_timeouts(patch)
        stall = StallingMethod(patch, ScriptedChat, "complete", at=1, whole=True)
        with pytest.raises(Stopped, match="is saved"):
            run(*overrides, f"output_root={tmp_path / 'stopped'}")
        assert time.monotonic() - stall.signaled < TOTAL_STALL_S / 2
    assert load_saved_state(find_run_folder(tmp_path / "stopped"))[0] > 0
    run(*overrides, f"output_root={tmp_path / 'stopped'}")
    run(*overrides, f"output_root={tmp_path / 'whole'}")
    first, two = (
        [{k: v for k, v in row.items() if not k.startswith("usage/")} for row in load_comparable_metrics(folder)]
        for folder in (find_run_folder(tmp_path / name) for name in ("stopped", "whole"))
    )
    assert first == two
