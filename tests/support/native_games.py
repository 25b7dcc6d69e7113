"""Native games for tests, and conversion of their steps to NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from llmrl.core.records import Step, to_numpy
from llmrl.core.seeding import Seeds
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.society_env import SubstrateSettings

SUBSTRATES = ("cleanup", "harvest")


def make_native_env(substrate: str, n_envs: int, seed: int = 0, **options: Any) -> NativeEnv:
    """Return native games; `options` are settings of the substrate and options of the engine."""
    engine_options = {name: options.pop(name) for name in ("device", "tiles") if name in options}
    settings = SubstrateSettings(substrate, n_envs, **{"observe": ["grid", "vector"], **options})  # type: ignore[arg-type]
    return NativeEnv(settings, Seeds(seed), **engine_options)


def sample_actions(env: NativeEnv, steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(env.spec.n_actions, size=(steps, env.spec.n_envs, env.spec.n_agents))


def flatten_step(step: Step) -> dict[str, np.ndarray]:
    """Return all arrays of a step by name, on the host."""
    arrays = {f"observation/{name}": to_numpy(x) for name, x in step.observation.items()}
    arrays |= {f"info/{name}": to_numpy(x) for name, x in step.info.items()}
    arrays |= {"reward": to_numpy(step.reward), "base": to_numpy(step.base_reward), "truncated": step.truncated}
    if step.reward_jacobian is not None:
        arrays["reward_jacobian"] = to_numpy(step.reward_jacobian)
    return arrays


def check_equal(name: str, x: torch.Tensor, y: torch.Tensor) -> None:
    assert torch.equal(x, y), name
