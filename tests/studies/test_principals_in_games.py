"""Principals in both games on the Melting Pot engine, with runs that are stopped and resumed."""

import json
import os
import signal
import warnings

import numpy as np
import pytest

from experiments import find_run_folder, run
from llmrl.core.option_files import load_options
from llmrl.run.artifacts import load_saved_state
from llmrl.run.metrics import MetricLog, read_metrics
from llmrl.run.signals import Stopped

pytestmark = [pytest.mark.slow, pytest.mark.meltingpot]
# `listed` proposes what it is given, which is no method to compare; `saez` sets taxes on incomes, in another game.
PRINCIPALS = sorted(set(load_options("principal")) - {"none", "listed", "saez"})
STEPS, STOP = 4, 2
TINY = (
    *("env.n_envs=1", "env.horizon=12", "checkpoint_seconds=0"),  # starting a game is what an episode costs here
    *(
        f"design.steps={STEPS}",
        "design.adapt_rounds=1",
        "design.validate_episodes=1",
        "design.confirm_steps=0",
        "design.evaluations=0",
    ),
)
HIGH = {"harvest": 1.0, "cleanup": 3.0}
REDUCED = {
    "ucb": ("principal.points=2",),  # more arms than fit the budget, so that none is tried twice
    "gp": ("principal.initial=1",),  # all proposals but the first come from a model
    "cem": ("principal.population=4",),  # the stop is in the middle of a generation
    "cmaes": ("principal.population=4",),
}


@pytest.fixture(autouse=True)
def _limit_warnings():
    """Libraries that fit four noisy points have much to say about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def proposals(folder):
    """Return the rows of metrics.jsonl that hold a proposal, by principal step."""
    return read_metrics(folder / "metrics.jsonl", "proposal")


def numbers(row, names):
    return [row[f"principal/{name}"] for name in names]


@pytest.mark.long
@pytest.mark.parametrize("env", ["harvest", "cleanup"])
@pytest.mark.parametrize("principal", PRINCIPALS)
def test_stopped_run_resumes(tmp_path, monkeypatch, principal, env):
    command = (
        f"experiment=legislative/{env}_small",
        f"principal={principal}",
        *TINY,
        *REDUCED.get(principal, ()),
        f"output_root={tmp_path}",
    )
    log = MetricLog.log

    def log_until_stop(self, kind, x, metrics, **counters):
        log(self, kind, x, metrics, **counters)
        if kind == "proposal" and counters["principal_steps"] == STOP:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MetricLog, "log", log_until_stop)
        with pytest.raises(Stopped):
            run(*command)
    folder = find_run_folder(tmp_path)
    state = load_saved_state(folder)[1]
    assert json.loads((folder / "status.json").read_text())["state"] == "preempted"
    assert state["step"] == STOP and len(state["history"]) == STOP

    result = run(*command)
    assert find_run_folder(tmp_path) == folder
    status = json.loads((folder / "status.json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    assert (status["state"], status["attempt"]) == ("finished", 2)
    assert summary["proposals"] == STEPS and summary["history"][:STOP] == state["history"]
    assert np.isfinite(result) and result == summary["history"][-1]["objective"]
    rows = proposals(folder)
    names = list(state["history"][0]["mechanism"])
    assert [row["principal_steps"] for row in rows] == list(range(1, STEPS + 1))
    vectors = np.array([numbers(row, names) for row in rows])
    assert vectors.shape == (STEPS, 3) and (vectors >= 0).all() and (vectors <= HIGH[env]).all()
    assert vectors.tolist() == [list(row["mechanism"].values()) for row in summary["history"]]
    assert [row["proposals"] for row in rows] == list(range(1, STEPS + 1))
    remembers(principal, state["principal"], load_saved_state(folder)[1]["principal"], vectors, HIGH[env])


def remembers(principal, initial, after, vectors, high):
    """Check that a resumed principal knows each proposal before the stop exactly once."""
    different = len(np.unique(vectors, axis=0))
    if principal == "fixed":
        assert different == 1
    elif principal in ("egreedy", "ucb", "thompson"):
        assert (initial["counts"].sum(), after["counts"].sum()) == (STOP, STEPS)
        assert (after["counts"] >= initial["counts"]).all() and (after["counts"] > 0).sum() == different
        assert principal != "ucb" or different == STEPS, "an arm was tried twice before all were tried once"
    elif principal == "llm":
        assert [len(state["history"]["records"]) for state in (initial, after)] == [STOP, STEPS]
    elif principal == "vote":  # citizens may keep what they have
        assert [(len(state["records"]), state["votes"]) for state in (initial, after)] == [(STOP, STOP), (STEPS, STEPS)]
    elif principal == "gp":
        assert np.shape(after["vectors"]) == vectors.shape
        assert np.array_equal(after["vectors"][:STOP], initial["vectors"])
        np.testing.assert_allclose(np.array(after["vectors"]) * high, vectors, atol=1e-12)
    elif principal in ("cem", "cmaes"):
        [first], [last] = initial["contexts"], after["contexts"]
        assert (len(first["values"]), len(last["values"])) == (STOP, STEPS)
        assert different == STEPS
    else:
        assert different == STEPS
