"""The derivative of a principal's objective by what it set, through the updates of the agents that lived under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from llmrl.core.errors import ConfigError
from llmrl.core.objectives import Objective
from llmrl.core.records import MetaSettings, Outcome
from llmrl.core.rollouts import Rollout
from llmrl.learners.outer import direct_derivative, step_credits
from llmrl.learners.ppo import PPO
from llmrl.learners.updaters import Differentiable
from llmrl.networks import categorical
from llmrl.networks.actor_critic import MECHANISM
from llmrl.networks.society import SocietyPolicy

CHUNK = 8192
"""Samples of validation episodes that are held in a graph at once."""


class MetaGradient:
    """One principal step of PPO agents as a differentiable function of the mechanism's values tau.

    Yang et al. 2021 (Adaptive Incentive Design with Multi-Agent Meta-Gradient Reinforcement Learning, arXiv
    2112.10859), with the agents' own update rule inside.

    **Inner updates** are those of `PPO`: the same code, minibatches and numbers, with the steps of `Differentiable`.
    Rewards depend on tau as the environment says (`Rollout.exposure`), advantages through rewards, the weights after a
    step through its advantages and the weights before it; several updates chain. What was recorded counts as data:
    actions, states, and the log-probabilities and values the agents had while they played. The ratio to recorded
    log-probabilities makes a later update respond to how other weights would have changed the actions it learns from,
    though not the states. A ratio that is clipped passes no derivative on; minibatches, and a stop by KL, stay.

    **The objective** depends on the final weights and on tau. The derivative by the policy's log-probabilities is the
    score function's (`outer.step_credits`), the rest is the cost of paying (`outer.direct_derivative`).

    Args:
        ppo: the agents' learner. Its policy and optimizers hold plain numbers again after each update.
        values: tau, [d].
        settings: what the principal asks for.

    Raises:
        ConfigError: agents see tau through a frozen core whose output alone is kept.
    """

    def __init__(self, ppo: PPO, values: np.ndarray, settings: MetaSettings) -> None:
        policy = ppo.policy
        assert isinstance(policy, SocietyPolicy)
        self.ppo, self.settings = ppo, settings
        weight = next(policy.parameters())
        self.tau = torch.as_tensor(values, dtype=weight.dtype, device=weight.device).clone().requires_grad_()
        # Zero, with derivative one: what was recorded keeps its numbers and gets its dependence on tau.
        self._shift = self.tau - self.tau.detach()
        self._seen = self._shift if settings.through_observation and MECHANISM in policy.channels else None
        network = policy.groups()[0][0]
        self._columns, self._joint = network.mechanism_columns, network.joint_columns
        if self._seen is not None and policy.core_frozen and self._columns is None:
            raise ConfigError(
                "the agents see the mechanism through a frozen core, whose dependence on it is not kept; set "
                "agent.freeze=none, or principal.through_observation=false to leave that dependence out"
            )
        self._updaters = [Differentiable(each, self._seen, self._columns, self._joint) for each in ppo.updaters]

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """`PPO.update`, with the same numbers, remembering how they depend on tau."""
        assert rollout.exposure is not None
        advice = self.ppo.begin(rollout)
        reward = rollout.reward + rollout.exposure.to(self._shift.dtype) @ self._shift
        advantage, target = self.ppo.estimate(replace(rollout, reward=reward))
        if not self.settings.differentiate_targets:
            target = target.detach()
        metrics = self.ppo.fit(rollout, advantage, target, generator, self._updaters, advice)
        for updater in self._updaters:
            updater.write_back()
        return metrics

    def gradient(
        self, rollouts: Sequence[Rollout], objective: Objective, spending_cost: float, outcome: Outcome
    ) -> np.ndarray:
        """Estimated derivative, [d] float64; to be asked for once, as the graph of the updates is freed with it.

        Args:
            rollouts: validation episodes, with all that a learner needs and `exposure`.
            objective, spending_cost: what their welfare is.
            outcome: theirs; its `values` are in the order of the rollouts' episodes.
        """
        credits = step_credits(rollouts, objective, spending_cost, outcome, self.settings)
        total = direct_derivative(rollouts, spending_cost).to(self.tau.device)
        for (_, agents), updater in zip(self.ppo.policy.groups(), self._updaters, strict=True):
            # The policies' derivative by the final weights first, by themselves; then once through their history.
            final = Differentiable(updater.ordinary, self._seen, self._columns, self._joint)
            inputs = [*final.weights.values(), self.tau]
            sums = [torch.zeros_like(x) for x in inputs]
            for rollout, credit in zip(rollouts, credits, strict=True):
                data = self.ppo.samples(rollout, agents)
                weight = credit[:, :, None].expand(rollout.action[:, :, agents].shape).flatten().to(self.tau.dtype)
                for chunk in torch.split(torch.arange(len(weight), device=weight.device), CHUNK):
                    logits, _ = final.forward({name: x[chunk] for name, x in data.items()})
                    log_prob, _ = categorical.log_prob_entropy(logits, data["action"][chunk])
                    surrogate = (weight[chunk] * log_prob).sum()
                    parts = torch.autograd.grad(
                        surrogate, inputs, allow_unused=True, retain_graph=self._seen is not None
                    )
                    sums = [x if part is None else x + part for x, part in zip(sums, parts, strict=True)]
            total += sums.pop().double()
            depends = [(w, x) for w, x in zip(updater.weights.values(), sums, strict=True) if w.grad_fn is not None]
            if depends:
                outputs, gradients = zip(*depends, strict=True)
                [through] = torch.autograd.grad(outputs, [self.tau], gradients, allow_unused=True, retain_graph=True)
                total += 0.0 if through is None else through.double()
        self._updaters = []
        result: np.ndarray = total.cpu().numpy()
        return result
