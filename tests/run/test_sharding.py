"""Weights divided among two processes: the updates of one process, from a checkpoint too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from llmrl.agents.llm_ppo.network import shard
from llmrl.core.errors import ConfigError
from llmrl.core.processes import VARIABLES, ProcessGroup

WORKER = Path(__file__).parents[1] / "support" / "sharding_worker.py"


@pytest.mark.long
@pytest.mark.slow
def test_sharded_model_matches_full_model(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    variables = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [*launcher, str(WORKER), str(tmp_path)], env=variables, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in (0, 1)]
    assert reports[0] == reports[1]
    assert reports[0]["norms"] == pytest.approx(reports[0]["expected"], rel=1e-5)
    assert reports[0]["difference"] < 1e-5  # a step of Adam is 1e-3
    # The blocks are halved; embeddings and the output layer are not.
    assert 0.5 * reports[0]["total"] < reports[0]["held"] < 0.55 * reports[0]["total"]


def test_unsupported_sharding_raises():
    with pytest.raises(ConfigError, match="torchrun"):
        shard(torch.nn.Linear(2, 2), ProcessGroup())
    two = ProcessGroup()
    two.world_size = 2
    with pytest.raises(ConfigError, match="Linear"):
        shard(torch.nn.Linear(2, 2), two)
