"""The canary: on the bare defaults of Clean Up, no incentive at all lies below a known good one."""

import json
from pathlib import Path

import numpy as np
import pytest

from experiments import run

PRETRAINING_STEPS = 96_000
"""Environment steps: three eighths of what the preset takes. The society heeds what it is paid then, if not as clearly:
by habit it cleans a little without pay."""
SOCIETIES = 4


def the_run(root: Path, name: str) -> Path:
    [status] = (root / name).rglob("status.json")
    return status.parent


@pytest.mark.long
@pytest.mark.slow
def test_incentives_matter_in_cleanup(tmp_path):
    """Incentives raise the objective in Clean Up.

    This requires engine, mechanism, networks, PPO, pre-training, adaptation and validation to work; only the length of
    the pre-training and the proposals differ from the defaults.
    """
    run("experiment=regimes/cleanup_pretrain", f"learn.env_steps={PRETRAINING_STEPS}", f"output_root={tmp_path}")
    folder = the_run(tmp_path, "cleanup_pretrain")
    representative_vectors = (
        "principal=listed",
        "principal.vectors=[[0,0,0],[0,3,0]]",
        "design.candidates=2",
        "design.steps=1",
    )
    single_step = (
        f"design.replicates={SOCIETIES}",
        "design.confirm_steps=0",
        "design.evaluations=0",
        "design.references=0",
    )
    run("env=cleanup", *representative_vectors, *single_step, f"agent.init_from='{folder}'", f"output_root={tmp_path}")
    none, good = json.loads((the_run(tmp_path, "cleanup") / "summary.json").read_text())["history"]
    differences = np.array(good["societies"]) - np.array(none["societies"])  # of the same games and draws
    assert differences.mean() > 3 * differences.std(ddof=1) / np.sqrt(SOCIETIES), (none["societies"], good["societies"])
