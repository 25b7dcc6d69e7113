"""`agent=llm_ppo` by two processes: the run that one process makes."""

import os
import subprocess
import sys

import pytest

from experiments import comparable_metrics, only_run_folder, run
from llmrl.core.processes import VARIABLES
from llmrl.run.content import saved_state

ENV = ("env=goto_red_ball", "env.actions=restricted", "env.history=1", "env.n_envs=3")
RUN = (
    *ENV,
    "agent=llm_ppo",
    "agent.head_hidden=[8]",
    "agent.ppo.learning_rate=1e-3",
    "agent.ppo.minibatch_size=7",
    "agent.ppo.epochs=2",
    "agent.piece_tokens=600",
    "llm=local_scorer_causal",
    "learn.rollout_steps=6",
    "learn.env_steps=54",
    "learn.evaluate_episodes=1",
    "env.horizon=8",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "own", [("agent.kl_coefficient=0.1",), ("agent.divided=true", "llm.batch_tokens=300")], ids=["whole", "divided"]
)
def test_two_processes_learn_what_one_does(tmp_path, own):
    from llmrl.cli.llm import main

    model = tmp_path / "model"
    main(["make", str(model), *ENV, "--width", "16", "--layers", "1", "--heads", "2", "--vocabulary", "320"])
    overrides = (*RUN, f"llm.model={model}")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "-m", "llmrl.cli.train", *overrides, *own, f"output_root={tmp_path / 'two'}"],
        env={name: value for name, value in os.environ.items() if name not in VARIABLES},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    alone = [override for override in own if override != "agent.divided=true"]
    run(*overrides, *alone, f"output_root={tmp_path / 'one'}")
    two, one = (only_run_folder(tmp_path / name) for name in ("two", "one"))
    rows = list(zip(comparable_metrics(two), comparable_metrics(one), strict=True))
    assert len(rows) == 4
    for a, b in rows:
        # Which texts are read beside which, and so how much padding there is, is not the same.
        assert (a.pop("language/tokens", 0) > 0) == (b.pop("language/tokens", 0) > 0)
        assert a == pytest.approx(b, rel=1e-3, abs=1e-6)
    weights = [saved_state(folder)[1]["agents"][0]["policy"] for folder in (two, one)]
    assert weights[0].keys() == weights[1].keys()
    for name, x in weights[0].items():
        # 18 steps of Adam, 1e-3 each, went the same way.
        assert (x - weights[1][name]).abs().max() < 1e-4, name
    # The optimiser, too, is as one process has it, so that one can go on with what two had divided.
    [first], [second] = (saved_state(folder)[1]["agents"][0]["learner"]["optimizers"] for folder in (two, one))
    assert first["param_groups"] == second["param_groups"]
    assert first["state"].keys() == second["state"].keys()
    for i, x in first["state"].items():
        assert (x["exp_avg"] - second["state"][i]["exp_avg"]).abs().max() < 1e-4
