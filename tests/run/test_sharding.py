"""Weights divided among two processes: the updates of one process, from a checkpoint too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from llmrl.agents.llm_ppo import sharding
from llmrl.core.errors import ConfigError
from llmrl.core.processes import VARIABLES, ProcessGroup

WORKER = Path(__file__).parents[1] / "support" / "sharding_worker.py"


@pytest.mark.slow
def test_a_divided_model_learns_what_a_whole_one_learns(tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    alone = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [*launcher, str(WORKER), str(tmp_path)], env=alone, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads((tmp_path / f"said-{rank}.json").read_text()) for rank in (0, 1)]
    assert said[0] == said[1]
    assert said[0]["norms"] == pytest.approx(said[0]["expected"], rel=1e-5)
    assert said[0]["difference"] < 1e-5  # a step of Adam is 1e-3
    # The blocks are halved; embeddings and the output layer are not.
    assert 0.5 * said[0]["total"] < said[0]["held"] < 0.55 * said[0]["total"]


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(ConfigError, match="this one is alone; start several with torchrun"):
        sharding.shard(torch.nn.Linear(2, 2), ProcessGroup())
    two = ProcessGroup()
    two.world_size = 2
    with pytest.raises(ConfigError, match="what the blocks of a Linear are is not known"):
        sharding.shard(torch.nn.Linear(2, 2), two)
