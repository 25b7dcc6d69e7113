"""The server of OpenEnv, in an environment of its own, because OpenEnv needs an older Pillow."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import llmrl
from environments import make_env
from llmrl.core.errors import ConfigError
from llmrl.run.command_exit import EXIT_FAILED
from openenv_server import REQUIREMENT, start_server
from other_environment import make_environment

ROOT = Path(__file__).parents[2]
CLIENT = """
import json, sys
from openenv.core.generic_client import GenericEnvClient
with GenericEnvClient(base_url=sys.argv[1]).sync() as env:
    result = env.reset(seed=3)
    print(json.dumps(result.observation), flush=True)
    for line in sys.stdin:
        result = env.step(json.loads(line))
        print(json.dumps({**result.observation, "done": result.done, "reward": result.reward}), flush=True)
"""
SESSIONS = """
import asyncio, sys
from openenv.core.generic_client import GenericEnvClient
async def session(seed):
    async with GenericEnvClient(base_url=sys.argv[1]) as env:
        result = await env.reset(seed=seed)
        for _ in range(5):
            agents = result.observation["observations"]
            result = await env.step({"actions": {agent: seed % 4 for agent in agents}})
        return str(result.observation["observations"])
async def main():
    both = await asyncio.gather(*(session(i % 16) for i in range(32)))
    assert both[:16] == both[16:] and len(set(both)) > 1
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return the folder of an environment with OpenEnv whose other packages are those of this one."""
    folder = tmp_path_factory.mktemp("openenv") / "env"
    make_environment(folder, REQUIREMENT)
    return folder


@pytest.mark.long
def test_sessions_equal_environment(environment):
    with start_server(environment, "env=harvest", "env.horizon=12") as (server, address):
        subprocess.run([environment / "bin" / "openenv", "validate", "--url", address], check=True)
        arguments = [environment / "bin" / "python", "-c", CLIENT, address]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            first = json.loads(client.stdout.readline())
            agents = list(first["observations"])
            env, rng = llmrl.make_env("harvest", n_envs=1, horizon=12), np.random.default_rng(0)
            observation = env.reset(seed=3)
            for _ in range(12):
                for i, agent in enumerate(agents):
                    for name, channel in observation.items():
                        served = np.asarray(first["observations"][agent][name], dtype=np.asarray(channel).dtype)
                        assert np.array_equal(served, np.asarray(channel)[0, i])
                actions = rng.integers(0, env.spec.n_actions, (1, env.spec.n_agents))
                step = env.step(actions)
                answer = {"actions": dict(zip(agents, actions[0].tolist(), strict=True))}
                client.stdin.write(json.dumps(answer) + "\n")
                client.stdin.flush()
                first, observation = json.loads(client.stdout.readline()), step.observation
                assert [first["rewards"][agent] for agent in agents] == np.asarray(step.reward)[0].tolist()
            assert first["done"] and first["truncated"] and not first["terminated"]
        subprocess.run([environment / "bin" / "python", "-c", SESSIONS, address], check=True)
        server.send_signal(signal.SIGTERM)
        started = time.monotonic()
        server.wait(30)
        assert time.monotonic() - started < 20


@pytest.mark.long
def test_environment_plays_on_server(environment):
    with start_server(environment, "env=blackjack") as (_, address):
        moves = [{"actions": {"player_0": name}} for name in ("stick", "hit")]
        env = make_env("pettingzoo", id=address, library="openenv", n_envs=2, kwargs={"moves": moves})
        local = make_env("blackjack", n_envs=1)
        observation = env.reset(seed=7)
        assert env.spec.deterministic
        assert json.loads(observation["text"][0, 0])["state"]
        step = env.step(np.array([[0], [0]]))
        assert step.terminated.all() and set(step.reward[:, 0].tolist()) <= {-1.0, 0.0, 1.0, 1.5}
        assert local.spec.n_actions == 2
        with pytest.raises(ConfigError, match="moves"):
            make_env("pettingzoo", id=address, library="openenv", n_envs=1)
        env.close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ftp://a", "http://127.0.0.1:1"])
def test_wrong_address_is_refused(address):
    with pytest.raises(ConfigError, match=r"env\.id"):
        make_env("pettingzoo", id=address, library="openenv", n_envs=1)


def test_missing_openenv_is_refused():
    code = "from llmrl.cli.serve import main; main(['env=harvest'])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == EXIT_FAILED and "openenv" in result.stderr and "Traceback" not in result.stderr
