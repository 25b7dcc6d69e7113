"""`agent=llm_ppo` and imitation with two processes, which give the same run as one process."""

import sys

import pytest

import commands
from experiments import are_rows_close, find_run_folder, load_comparable_metrics, run
from llmrl.run.artifacts import load_saved_state
from tiny_models import make_model_for_env

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
    "learn.evaluation_interval=3",
    "env.horizon=8",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folders = {kind: tmp_path_factory.mktemp("models") / kind for kind in ("causal", "seq2seq")}
    size = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 320}
    for kind, folder in folders.items():
        make_model_for_env(folder, *ENV, kind=kind, **size)
    return folders


def run_with_two_and_one(tmp_path, overrides):
    """Return the folders of a run by two processes, and of a run by one process."""
    arguments = [sys.executable, "-m", "llmrl.cli.train", *overrides, f"output_root={tmp_path / 'two'}"]
    for child in commands.start_ranks(arguments):
        output, _ = child.communicate(timeout=500)
        assert child.returncode == 0, output
    run(*overrides, f"output_root={tmp_path / 'one'}")
    return tuple(find_run_folder(tmp_path / name) for name in ("two", "one"))


def check_equal(first, second):
    """Compare the weights and the state of the optimizer."""
    ([weights, optimizer], [other_weights, other_optimizer]) = first, second
    assert weights.keys() == other_weights.keys()
    for name, actual in weights.items():
        # Some 20 steps of Adam, 1e-3 each, went the same way.
        assert (actual - other_weights[name]).abs().max() < 1e-4, name
    assert optimizer["param_groups"] == other_optimizer["param_groups"]
    assert optimizer["state"].keys() == other_optimizer["state"].keys()
    for i, actual in optimizer["state"].items():
        assert (actual["exp_avg"] - other_optimizer["state"][i]["exp_avg"]).abs().max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [
        pytest.param("causal", ("agent.kl_coefficient=0.1",), marks=pytest.mark.long),
        ("causal", ()),
        pytest.param("seq2seq", (), marks=pytest.mark.long),
        pytest.param("causal", ("agent.tune=lora", "agent.kl_coefficient=0.1"), marks=pytest.mark.long),
    ],
    ids=["kl", "plain", "seq2seq", "lora"],
)
def test_two_processes_match_single_process(tmp_path, models, kind, algorithm):
    overrides = (*PPO, f"llm=local_scorer_{kind}", f"llm.model={models[kind]}", "llm.batch_tokens=300", *algorithm)
    two, single = run_with_two_and_one(tmp_path, overrides)
    rows = list(zip(load_comparable_metrics(two), load_comparable_metrics(single), strict=True))
    assert len(rows) == 4
    for actual, desired in rows:
        # Which texts are read beside which, and so how much padding there is, is not the same.
        assert (actual.pop("language/tokens", 0) > 0) == (desired.pop("language/tokens", 0) > 0)
    assert are_rows_close([actual for actual, _ in rows], [desired for _, desired in rows], rel=1e-3)
    agents = [load_saved_state(folder)[1]["agents"][0] for folder in (two, single)]
    check_equal(*((agent["policy"], *agent["learner"]["optimizers"]) for agent in agents))
    # Nothing was computed between the last update and the checkpoint.
    assert agents[0]["tokens"] == agents[1]["tokens"] == 0


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_match_single_process_imitation(tmp_path, models):
    run(*ENV, "agent=bot", "play.episodes=6", "play.trajectories=true", f"output_root={tmp_path / 'bot'}")
    bot = find_run_folder(tmp_path / "bot")
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
    two, single = run_with_two_and_one(tmp_path, overrides)
    assert are_rows_close(load_comparable_metrics(two), load_comparable_metrics(single), rel=1e-3)
    agents = [load_saved_state(folder)[1]["agents"][0] for folder in (two, single)]
    check_equal(*((agent["policy"], agent["cloning"]["optimizer"]) for agent in agents))
