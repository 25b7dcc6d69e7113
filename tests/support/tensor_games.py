"""Wrapper that converts the arrays of an environment to tensors on a device."""

from dataclasses import replace

import numpy as np
import torch

from llmrl.core.records import Step


class TensorEnv:
    """Wrapper of an environment whose steps contain tensors.

    On the device `meta`, whose tensors have no values, action 0 is played. The default is `cpu:0` because rewards and
    metrics of environments on `cpu` are arrays.
    """

    def __init__(self, env, device="cpu:0"):
        self.env, self.spec = env, replace(env.spec, device=device)
        self.actions = []  # actions as received

    def __getattr__(self, name):
        return getattr(self.env, name)

    def reset(self, mask=None, seed=None):
        assert mask is None or isinstance(mask, np.ndarray)
        return {name: self._tensor(x) for name, x in self.env.reset(mask, seed).items()}

    def step(self, action):
        self.actions.append(action)
        step = self.env.step(np.zeros(action.shape, int) if self.spec.device == "meta" else np.asarray(action))
        return Step(
            {name: self._tensor(x) for name, x in step.observation.items()},
            self._tensor(step.reward),
            self._tensor(step.base_reward),
            step.terminated,
            step.truncated,
            {name: self._tensor(x) for name, x in step.info.items()},
            None if step.reward_jacobian is None else self._tensor(step.reward_jacobian),
        )

    def _tensor(self, x):
        return torch.as_tensor(np.array(x)).to(self.spec.device)
