"""Adam takes the steps of torch's Adam, and imports nothing that only compilation needs."""

import subprocess
import sys

import pytest
import torch

from llmrl.algorithms.adam import Adam

SETTINGS = {"lr": 0.01, "eps": 1e-5, "weight_decay": 0.1}


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"decoupled_weight_decay": True}], ids=str)
def test_steps_equal_torch(options):
    networks = [torch.nn.Linear(3, 2) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    pairs = zip((Adam, torch.optim.Adam), networks, strict=True)
    optimizers = [optimizer(network.parameters(), **SETTINGS, **options) for optimizer, network in pairs]
    for step in range(5):
        inputs = torch.rand((4, 3), generator=torch.Generator().manual_seed(step))
        for network, optimizer in zip(networks, optimizers, strict=True):
            optimizer.zero_grad()
            network(inputs).square().sum().backward()
            optimizer.step()
        if step == 2:
            optimizers[0].load_state_dict(optimizers[0].state_dict())
    for parameter, expected in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(parameter, expected)


def test_step_does_not_import_dynamo():
    program = """
import sys, torch
from llmrl.algorithms.adam import Adam
network = torch.nn.Linear(2, 1)
optimizer = Adam(network.parameters())
network(torch.ones(2)).backward()
optimizer.step()
optimizer.zero_grad()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
