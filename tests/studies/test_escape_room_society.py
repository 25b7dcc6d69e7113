"""Societies in the escape room: the optimum is reached, and the published conditions give the published responses."""

import json

import pytest

from experiments import find_run_folder, load_comparable_metrics, run

pytestmark = pytest.mark.slow


def govern(tmp_path, values, *overrides):
    run("env=escape_room", "principal=fixed", f"principal.values={values}", "env.fixed_context=0", "design.steps=1",
        "design.evaluations=0",
        *overrides, f"output_root={tmp_path}")  # fmt: skip
    folder = find_run_folder(tmp_path)
    return json.loads((folder / "summary.json").read_text())["online_performance"], folder


def test_good_incentives_reach_the_optimum(tmp_path):
    """Paid to work the lever, two agents do and three leave in every step: 5 * (3 * 10 - 2) = 140.

    With a network each, as the paper's agents have; one shared network falls short of it.
    """
    objective, folder = govern(
        tmp_path, "[5,0,0,0,0]", "agent.share_parameters=false", "env.n_envs=64", "design.adapt_rounds=50"
    )
    assert 138 < objective <= 140  # reached after 20 rounds; actions are sampled, so a rare step is missed
    assert min(row["train/base_return"] for row in load_comparable_metrics(folder, "adaptation")) < 5


PAPER_SETTINGS = ("env.n_envs=1", "agent.keep_optimizer=true", "agent.ppo.bootstrap_truncation=false",
             "agent.ppo.minibatch_size=128", "design.adapt_rounds=2000", "design.validate_episodes=20")  # fmt: skip


# Of seeds 0 to 4 all but one give these values: seed 0 gave 0.0 for -5.0, and seed 4 gave -4.0 for 0.0.
@pytest.mark.long
@pytest.mark.parametrize(
    ("freeze", "divisor", "objective_"),
    [("core", 255, -5.0), ("none", 1, 0.0)],
    ids=["published: everyone walks once", "seeing agents stay where they are"],
)
def test_reference_response_with_zero_incentives(tmp_path, freeze, divisor, objective_):
    objective, _ = govern(
        tmp_path,
        "[0,0,0,0,0]",
        "seed=1",
        *PAPER_SETTINGS,
        f"agent.freeze={freeze}",
        f"env.observation_divisor={divisor}",
    )
    assert objective == pytest.approx(objective_, abs=0.5)
