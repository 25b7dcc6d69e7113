"""Digests of the observations, rewards and metrics of episodes on small maps, equal for every engine function."""

from __future__ import annotations

import hashlib

import numpy as np

from llmrl.core.records import to_numpy
from llmrl.core.seeding import Seeds
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.society_env import SubstrateSettings

ROOMS = {
    "cleanup": "WWWWWWW\nWHFHHHW\nWP P PW\nWBBBBBW\nWWWWWWW\n",
    "harvest": "WWWWWWW\nW AA PW\nWAAA PW\nWWWWWWW\n",
}
GAMES, STEPS = 50, 12
RULES = ("upstream", "legislative")


def make_small_env(substrate: str, games: int = GAMES, **options) -> NativeEnv:
    settings = {"map": ROOMS[substrate], "n_agents": 2, "horizon": STEPS, "observe": ["grid", "vector"]}
    return NativeEnv(SubstrateSettings(substrate, games, **{**settings, **options}), Seeds(0), tile_source="plain")


def compute_digest(env: NativeEnv, steps: int = STEPS) -> str:
    """Play one episode of each game with random actions and return a digest."""
    hashes, rng = hashlib.sha256(), np.random.default_rng(0)
    observation = env.reset(seed=3)
    likely = [1, 1, 3, 4, 5, 6, env.spec.n_actions - 1, min(7, env.spec.n_actions - 1)]
    for _ in range(steps):
        for channel in observation.values():
            hashes.update(to_numpy(channel).tobytes())
        step = env.step(rng.choice(likely, size=(env.spec.n_envs, env.spec.n_agents)))
        observation = step.observation
        for array in (step.reward, *step.info.values()):
            hashes.update(to_numpy(array).tobytes())
    return hashes.hexdigest()


def compute_digests(run=None) -> list[str]:
    """Return the digests of episodes on the small maps, with symbolic observations and with pixels.

    Args:
        run: replacement for the function of the engine that plays games; None for the default.
    """
    results = []
    for substrate in ROOMS:
        for observe in (["grid", "vector"], ["pixels"]):
            env = make_small_env(substrate, observe=observe)
            env.engine.game_loop = run or env.engine.game_loop
            results.append(compute_digest(env))
    return results
