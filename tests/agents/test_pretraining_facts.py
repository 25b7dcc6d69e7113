"""Facts about the training of agents, from the saved config of their run."""

import pytest
import yaml

from llmrl.agents.ppo_agent import read_pretraining
from llmrl.core.records import Pretraining

BOXES = [
    {"episodes": 5, "mixture": [{"low": [0.0, 1.5], "high": [0.0, 3.0]}]},
    {"mixture": [{"low": [0.0, 0.0], "high": [0.0, 3.0]}, {"low": [0.5, 0.0], "high": [1.5, 2.0], "weight": 2}]},
]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"learn": {"env_steps": 100, "mechanism": BOXES}}, Pretraining(100, (0.0, 0.0), (1.5, 3.0))),
        ({"learn": {"env_steps": 100, "mechanism": [1.0, 2.0]}}, Pretraining(100, (1.0, 2.0), (1.0, 2.0))),
        ({"learn": {"env_steps": 100, "mechanism": None}}, Pretraining(100)),
        ({"design": {"steps": 3}}, None),
    ],
)
def test_ranges_match_boxes(tmp_path, config, expected):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert read_pretraining(tmp_path) == expected
