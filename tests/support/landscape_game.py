"""Society whose return is a known function of the mechanism plus noise, and mechanism design without a run folder."""

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from llmrl.agents.random_agent import RandomAgent
from llmrl.core.records import Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.core.unit_cube import to_unit
from llmrl.loops.design import DesignLoop
from llmrl.loops.design_settings import DesignSettings
from llmrl.loops.executor import serve
from llmrl.loops.loop_parts import LoopParts


class LandscapeGame:
    """Games with one step and one agent whose reward is the landscape at the mechanism plus normal noise.

    The mean over `landscape.episodes` games has the noise of one measurement of the landscape.
    """

    def __init__(self, landscape, n_envs: int) -> None:
        channels = {"vector": Channel((1,), "float32", 0, 1)}
        names = ("stay", "go")
        self.landscape = landscape
        self.spec = EnvSpec("landscape", n_envs, 1, channels, 2, names, horizon=1, mechanism=landscape.space)
        self._values = np.tile(landscape.space.neutral, (n_envs, 1))
        self._groups, self._rngs = 1, [Seeds(0).numpy("noise")]
        self._noise = np.zeros(n_envs)
        self._ended = np.ones(n_envs, dtype=bool)

    def reset(self, mask=None, seed=None):
        if seed is not None:
            seeds = seed if isinstance(seed, (list, tuple)) else [seed]
            self._rngs = [Seeds(seed).numpy("noise") for seed in seeds]
        resets = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask)
        groups = self._groups if len(self._rngs) == 1 else 1
        size = self.spec.n_envs // (groups * len(self._rngs))
        draws = np.concatenate([np.tile(rng.standard_normal(size), groups) for rng in self._rngs])
        self._noise[resets], self._ended[resets] = draws[resets], False
        return self._observe()

    def step(self, action):
        unit = to_unit(self.landscape.space, self._values)
        noise = self.landscape.noise(unit) * np.sqrt(self.landscape.episodes) * self._noise
        rewards = np.where(self._ended, 0.0, self.landscape.mean(unit) + noise).astype(np.float32)[:, None]
        done = ~self._ended
        self._ended[:] = True
        return Step(self._observe(), rewards, rewards, np.zeros_like(done), done)

    def share_random_numbers(self, n_groups):
        self._groups = n_groups

    def set_mechanism(self, values):
        self._values = np.broadcast_to(self.spec.mechanism.check(values), self._values.shape).copy()

    def set_context(self, context):
        raise AssertionError("there are no contexts")

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        """Do nothing: runs are never resumed."""

    def close(self):
        """Do nothing: there are no resources to release."""

    def _observe(self):
        return {"vector": np.zeros((self.spec.n_envs, 1, 1), dtype=np.float32)}


class UnsavedRun:
    """Replacement of `Run` that neither logs nor saves."""

    restored_state, iteration, seed, folder = None, 0, 0, Path(os.devnull)
    stop_flag = SimpleNamespace(requested=False, signal=None)

    def __init__(self) -> None:
        self.summary = {}
        self.metrics = SimpleNamespace(log=lambda *args, **counters: None)

    def progress(self, total, unit, description, done=0):
        display = SimpleNamespace(update=lambda done: None, advance=lambda units: None, show_result=lambda *args: None)
        return nullcontext(display)

    def safe_point(self, iteration, state):
        """Save nothing."""

    stop_after_grace = checkpoint = safe_point

    def save_on_llm_error(self, iteration, state, changes_weights=False):
        return nullcontext()


def run_design(landscape, principal, seed: int, **settings) -> dict:
    """Run mechanism design on a landscape and return its summary; each measurement uses one batch of games."""
    design_settings = DesignSettings(
        **{
            "steps": 10,
            "candidates": 2,
            "adapt_rounds": 0,
            "validate_episodes": landscape.episodes,
            "reset_agents": True,
            "objective": None,
            **settings,
        }
    )
    env = LandscapeGame(landscape, design_settings.candidates * landscape.episodes)
    agents = [RandomAgent(replace(env.spec, n_envs=landscape.episodes)) for _ in range(design_settings.candidates)]
    loop, run = DesignLoop(LoopParts(env, agents, Seeds(seed), principal=principal), design_settings), UnsavedRun()
    serve(loop.requests(run), run)
    return run.summary
