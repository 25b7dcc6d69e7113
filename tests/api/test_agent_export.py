"""`llmrl-export agent`: agents that a program without llmrl runs."""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import llmrl
from experiments import find_run_folder, run
from llmrl.api.trained_agents import export_agent
from llmrl.cli.export import main
from llmrl.core.errors import ConfigError
from pages import load_agent_program

SMALL = ("learn.rollout_steps=8", "learn.evaluate_episodes=1", "loggers=[]")
RUNS = {
    "planes": (
        *("env=harvest", "regime=none", "agent=harvest_society", "agent.init_from=null", "agent.freeze=none"),
        *("env.n_envs=2", "env.horizon=16", "learn.env_steps=32"),
    ),
    "convolutions and memory": (
        *("env=simple_doorkey", "agent=student_lstm", "agent.memory=16", "agent.features=24", "env.n_envs=4"),
        "learn.env_steps=64",
    ),
}
WITHOUT_LLMRL = """
import pickle, sys
sys.modules["llmrl"] = None
import numpy as np
agents = {}
for name, observation, logits, action in pickle.load(sys.stdin.buffer):
    if name not in agents:
        agents[name] = Agent(sys.argv[1], name)
    output = agents[name](observation)
    assert np.allclose(output, logits, rtol=1e-4, atol=1e-6), (output, logits)
    assert int(output.argmax()) == action
print(len(agents))
"""


def record(folder, steps):
    """Play; return name, observation, logits and action of each agent in each step."""
    agent, rows, outputs = llmrl.load_agent(folder), [], []
    env, act = agent.make_env(api="pettingzoo"), agent.policy.act

    def act_and_record(*arguments):
        outputs.append(act(*arguments))
        return outputs[-1]

    agent.policy.act = act_and_record
    observations, _ = env.reset(seed=1)
    for _ in range(steps):
        actions = agent.act(observations, deterministic=True)
        for i, (name, observation) in enumerate(observations.items()):
            rows.append((name, observation, outputs[-1].logits[0, i].numpy(), int(actions[name])))
        observations, *_ = env.step(actions)
    env.close()
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_program_without_llmrl_plays_as_run(name, tmp_path, capsys):
    run(*RUNS[name], *SMALL, f"output_root={tmp_path / 'outputs'}")
    folder = find_run_folder(tmp_path / "outputs")
    main(["agent", str(folder), "--out", str(tmp_path / "exported")])
    assert "agent.safetensors" in capsys.readouterr().out
    rows = record(folder, 8)
    command = [sys.executable, "-c", load_agent_program() + WITHOUT_LLMRL, str(tmp_path / "exported")]
    done = subprocess.run(command, input=pickle.dumps(rows), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert int(done.stdout) == len({row[0] for row in rows})
    description = json.loads((tmp_path / "exported" / "agent.json").read_text())
    assert description["format"] == 1 and len(description["actions"]) == len(rows[0][2])
    for channel, values in rows[0][1].items():
        if channel in description["observation"]:
            assert description["observation"][channel]["shape"] == list(np.shape(values))


@pytest.mark.parametrize(
    "overrides",
    [
        ("env=maze", "agent=random", "play.episodes=1", "env.n_envs=1", "env.horizon=4"),
        ("env=cartpole", "agent=linear", "principal=random", "search.iterations=1", "search.episodes=1",
         "search.evaluate_episodes=1", "search.confirm_candidates=0"),
    ],
)  # fmt: skip
def test_unsupported_agents_raise(overrides, tmp_path):
    run(*overrides, f"output_root={tmp_path}", "loggers=[]")
    with pytest.raises(ConfigError, match="agent=ppo"):
        export_agent(find_run_folder(tmp_path))
