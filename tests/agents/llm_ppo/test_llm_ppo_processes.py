"""`agent=llm_ppo`, and one that imitates, by two processes: the run that one process makes."""

import os
import subprocess
import sys

import pytest

from experiments import comparable_metrics, only_run_folder, rows_alike, run
from llmrl.core.processes import VARIABLES
from llmrl.run.artifacts import saved_state

ENV = ("env=goto_red_ball", "env.actions=restricted", "env.history=1", "env.n_envs=3")
PPO = (
    *ENV,
    "agent=llm_ppo",
    "agent.head_hidden=[8]",
    "agent.ppo.learning_rate=1e-3",
    "agent.ppo.minibatch_size=7",
    "agent.ppo.epochs=2",
    "agent.piece_tokens=600",
    "learn.rollout_steps=6",
    "learn.env_steps=54",
    "learn.evaluate_episodes=1",
    "learn.evaluate_every=3",
    "env.horizon=8",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    from llmrl.cli.llm import main

    made = {kind: tmp_path_factory.mktemp("models") / kind for kind in ("causal", "seq2seq")}
    size = ("--width", "16", "--layers", "1", "--heads", "2", "--vocabulary", "320")
    for kind, folder in made.items():
        main(["make", str(folder), *ENV, *size, "--kind", kind])
    return made


def by_two_and_by_one(tmp_path, overrides, divided):
    """The folders of a run by two processes, which may divide the weights, and by one."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "-m", "llmrl.cli.train", *overrides, *divided, f"output_root={tmp_path / 'two'}"],
        env={name: value for name, value in os.environ.items() if name not in VARIABLES},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    run(*overrides, f"output_root={tmp_path / 'one'}")
    return tuple(only_run_folder(tmp_path / name) for name in ("two", "one"))


def check_alike(first, second):
    """Weights, and the optimiser as one process has it, so that one can go on with what two had divided."""
    ([weights, optimizer], [others, other]) = first, second
    assert weights.keys() == others.keys()
    for name, x in weights.items():
        # Some 20 steps of Adam, 1e-3 each, went the same way.
        assert (x - others[name]).abs().max() < 1e-4, name
    assert optimizer["param_groups"] == other["param_groups"]
    assert optimizer["state"].keys() == other["state"].keys()
    for i, x in optimizer["state"].items():
        assert (x["exp_avg"] - other["state"][i]["exp_avg"]).abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "own", "divided"),
    [
        pytest.param("causal", ("agent.kl_coefficient=0.1",), False, marks=pytest.mark.long),
        ("causal", (), True),
        pytest.param("seq2seq", (), True, marks=pytest.mark.long),
        pytest.param("causal", ("agent.tune=lora", "agent.kl_coefficient=0.1"), False, marks=pytest.mark.long),
        pytest.param("causal", ("agent.tune=lora", "agent.kl_coefficient=0.1"), True, marks=pytest.mark.long),
    ],
    ids=["whole", "divided", "divided-seq2seq", "whole-lora", "divided-lora"],
)
def test_two_processes_learn_what_one_does(tmp_path, models, kind, own, divided):
    overrides = (*PPO, f"llm=local_scorer_{kind}", f"llm.model={models[kind]}", "llm.batch_tokens=300", *own)
    two, one = by_two_and_by_one(tmp_path, overrides, ["agent.divided=true"] if divided else [])
    rows = list(zip(comparable_metrics(two), comparable_metrics(one), strict=True))
    assert len(rows) == 4
    for a, b in rows:
        # Which texts are read beside which, and so how much padding there is, is not the same.
        assert (a.pop("language/tokens", 0) > 0) == (b.pop("language/tokens", 0) > 0)
    assert rows_alike([a for a, _ in rows], [b for _, b in rows], rel=1e-3)
    agents = [saved_state(folder)[1]["agents"][0] for folder in (two, one)]
    check_alike(*((agent["policy"], *agent["learner"]["optimizers"]) for agent in agents))
    # Nothing was computed between the last update and the checkpoint.
    assert agents[0]["tokens"] == agents[1]["tokens"] == 0


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_imitate_as_one_does(tmp_path, models):
    run(*ENV, "agent=bot", "play.episodes=6", "play.trajectories=true", f"output_root={tmp_path / 'bot'}")
    bot = only_run_folder(tmp_path / "bot")
    overrides = (
        *ENV,
        "agent=bc",
        f"agent.data='{bot}'",
        "agent.limit=24",
        "agent.held_out=0.2",
        "agent.cloning.batch_size=5",
        "agent.cloning.learning_rate=1e-3",
        "agent.student.head_hidden=[8]",
        "llm=local_scorer_causal",
        f"llm.model={models['causal']}",
        "llm.batch_tokens=300",
        "clone.epochs=3",
        "clone.evaluate_episodes=1",
        "env.horizon=8",
    )
    two, one = by_two_and_by_one(tmp_path, overrides, ["agent.student.divided=true"])
    assert rows_alike(comparable_metrics(two), comparable_metrics(one), rel=1e-3)
    agents = [saved_state(folder)[1]["agents"][0] for folder in (two, one)]
    check_alike(*((agent["policy"], agent["cloning"]["optimizer"]) for agent in agents))
