"""The derivative of a principal's objective by what it set, through the updates of the agents that lived under it.

From top to bottom: the gradient as a whole (`MetaGradient`); optimizer steps that can be differentiated, with Adam and
clipping as functions; and the score-function estimator, which says what the objective owes to each step of an episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from llmrl.algorithms.advantages import generalized_advantages
from llmrl.algorithms.optimizer_step import Batch, Loss, OptimizerStep, Record
from llmrl.algorithms.ppo import PPO
from llmrl.core.errors import ConfigError
from llmrl.core.records import Array, MetaSettings, Outcome
from llmrl.core.rollouts import Rollout
from llmrl.core.welfare_measures import Objective
from llmrl.networks.actor_critic import JOINT, MECHANISM
from llmrl.networks.multi_agent_policy import SocietyPolicy

CHUNK = 8192
"""Samples of validation episodes that are held in a graph at once."""


class MetaGradient:
    """One principal step of PPO agents as a differentiable function of the mechanism's values tau.

    Yang et al. 2021 (Adaptive Incentive Design with Multi-Agent Meta-Gradient Reinforcement Learning, arXiv
    2112.10859), with the agents' own update rule inside.

    **Inner updates** are those of `PPO`: the same code, minibatches and numbers, with `DifferentiableStep` as updater.
    Rewards depend on tau as the environment says (`Rollout.reward_jacobian`), advantages through rewards, the weights
    after a step through its advantages and the weights before it; several updates chain. What was recorded counts as
    data: actions, states, their running moments (`agent.normalize_observations`), and the log-probabilities and values
    the agents had while they played. The ratio to recorded log-probabilities makes a later update respond to how other
    weights would have changed the actions it learns from, though not the states. A ratio that is clipped passes no
    derivative on; minibatches, and a stop by KL, stay.

    **The objective** depends on the final weights and on tau. The derivative by the policy's log-probabilities is the
    score function's (`step_credits`), the rest is the cost of paying (`direct_derivative`).

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
        self._updaters = [DifferentiableStep(each, self._seen, self._columns, self._joint) for each in ppo.updaters]

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """`PPO.update`, with the same numbers, remembering how they depend on tau."""
        assert rollout.reward_jacobian is not None
        advice = self.ppo.begin(rollout)
        reward = rollout.reward + rollout.reward_jacobian.to(self._shift.dtype) @ self._shift
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
            rollouts: validation episodes, with all that a learner needs and `reward_jacobian`.
            objective, spending_cost: what their welfare is.
            outcome: theirs; its `values` are in the order of the rollouts' episodes.
        """
        credits = step_credits(rollouts, objective, spending_cost, outcome, self.settings)
        total = direct_derivative(rollouts, spending_cost).to(self.tau.device)
        for (_, agents), updater in zip(self.ppo.policy.groups(), self._updaters, strict=True):
            # The policies' derivative by the final weights first, by themselves; then once through their history.
            final = DifferentiableStep(updater.ordinary, self._seen, self._columns, self._joint)
            inputs = [*final.weights.values(), self.tau]
            sums = [torch.zeros_like(x) for x in inputs]
            for rollout, credit in zip(rollouts, credits, strict=True):
                data = self.ppo.samples(rollout, agents)
                weight = credit[:, :, None].expand(rollout.log_prob[:, :, agents].shape).flatten().to(self.tau.dtype)
                for chunk in torch.split(torch.arange(len(weight), device=weight.device), CHUNK):
                    described, _ = final.forward({name: x[chunk] for name, x in data.items()})
                    log_prob, _ = self.ppo.policy.distribution.log_prob_entropy(described, data["action"][chunk])
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


class DifferentiableStep:
    """The steps `OptimizerStep` would make, keeping how the new weights depend on everything the losses depended on.

    It begins with the weights and moments of an `OptimizerStep` and leaves them alone until `write_back`.

    Args:
        ordinary: the updater whose steps these are.
        shift: zeros [d] whose derivative by the mechanism's values is one; added to what the network sees of them.
            None: what it sees counts as given.
        columns: where features hold these values (`ActorCritic.mechanism_columns`).
        joint: where a central critic's channel holds them (`ActorCritic.joint_columns`).
    """

    def __init__(
        self,
        ordinary: OptimizerStep,
        shift: torch.Tensor | None = None,
        columns: slice | None = None,
        joint: Sequence[int] = (),
    ) -> None:
        self.ordinary, self.shift, self.columns, self.joint = ordinary, shift, columns, joint
        self.network = ordinary.network
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.weights = {name: p.detach().clone().requires_grad_() for name, p in trained.items()}
        self.moments = {name: _moments(ordinary.optimizer, p) for name, p in trained.items()}

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        if self.shift is not None:
            batch = _shifted(batch, self.shift, self.columns, self.joint)
        outputs, value = functional_call(self.network, self.weights, (batch,))
        return outputs, value

    def step(self, batch: Batch, loss: Loss) -> Record:
        group = self.ordinary.optimizer.param_groups[0]
        value, record = loss(batch)
        found = torch.autograd.grad(value, list(self.weights.values()), create_graph=True, allow_unused=True)
        gradients = {name: g for name, g in zip(self.weights, found, strict=True) if g is not None}
        norms = []
        for part in self.ordinary.parts:
            own = {name: gradients[name] for name in part if name in gradients}
            if not own:
                continue
            clipped, norm = clip_by_norm(own, self.ordinary.max_grad_norm)
            norms.append(norm.detach())
            for name, gradient in clipped.items():
                self.weights[name], self.moments[name] = adam_step(
                    self.weights[name], gradient, self.moments[name], group["lr"], group["eps"], group["betas"]
                )
        return record | {"grad_norm": torch.linalg.vector_norm(torch.stack(norms))}

    @torch.no_grad()
    def write_back(self) -> None:
        """Give the network the weights, and the optimizer the moments, as plain numbers."""
        optimizer = self.ordinary.optimizer
        for name, parameter in self.network.named_parameters():
            if name in self.weights and self.moments[name].steps:
                moments = self.moments[name]
                parameter.copy_(self.weights[name])
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(moments.steps), device=parameter.device),
                    "exp_avg": moments.first.detach().clone(),
                    "exp_avg_sq": moments.second.detach().clone(),
                }


def _shifted(batch: Batch, shift: torch.Tensor, columns: slice | None, joint: Sequence[int]) -> Batch:
    """Samples with `shift` [d] added to what they say of the mechanism's values: in the channel (and in that of a
    central critic), or in the features."""
    if MECHANISM in batch:
        moved = {MECHANISM: batch[MECHANISM] + shift}
        if joint:
            seen = batch[JOINT]
            places = torch.tensor(joint, device=seen.device)
            moved[JOINT] = seen.index_add(1, places, shift.repeat(len(joint) // len(shift)).expand(len(seen), -1))
        return {**batch, **moved}
    if "features" in batch and columns is not None:
        padding = (columns.start, batch["features"].shape[-1] - columns.stop)
        return {**batch, "features": batch["features"] + nn.functional.pad(shift, padding)}
    return batch


def _moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Moments:
    state = optimizer.state.get(parameter)
    if not state:
        return Moments(0, torch.zeros_like(parameter), torch.zeros_like(parameter))
    return Moments(int(state["step"]), state["exp_avg"].clone(), state["exp_avg_sq"].clone())


@dataclass(frozen=True)
class Moments:
    """What Adam remembers of a parameter: steps made, mean and uncentred variance of its gradients (not corrected)."""

    steps: int
    first: torch.Tensor
    second: torch.Tensor


def root(x: torch.Tensor) -> torch.Tensor:
    """sqrt(x) for x >= 0, with derivative 0 (instead of infinity) at 0."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


def adam_step(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    moments: Moments,
    learning_rate: float,
    eps: float,
    betas: tuple[float, float],
) -> tuple[torch.Tensor, Moments]:
    """The parameter and the moments after one step (Kingma & Ba 2015, algorithm 1; eps is added to the corrected root).

    The numbers are those of `torch.optim.Adam` to rounding. Where all gradients so far are zero the step is
    taken as first moment / eps, which is its derivative from any side, and finite. It is our own because torchopt
    0.7.3, which has one, does not load with torch 2.13 (undefined symbol in its compiled extension).
    """
    steps = moments.steps + 1
    first = betas[0] * moments.first + (1 - betas[0]) * gradient
    second = betas[1] * moments.second + (1 - betas[1]) * gradient.square()
    denominator = root(second) / (1 - betas[1] ** steps) ** 0.5 + eps
    new = parameter - learning_rate / (1 - betas[0] ** steps) * first / denominator
    return new, Moments(steps, first, second)


def clip_by_norm(gradients: Mapping[str, torch.Tensor], largest: float) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Gradients scaled down together to the norm `largest` if theirs is above it, and their norm before.

    The numbers are those of `torch.nn.utils.clip_grad_norm_` to rounding, with finite derivatives at zero.
    """
    norm = root(torch.stack([g.square().sum() for g in gradients.values()]).sum())
    scale = (largest / (norm + 1e-6)).clamp(max=1.0)
    return {name: g * scale for name, g in gradients.items()}, norm


def step_credits(
    rollouts: Sequence[Rollout],
    objective: Objective,
    spending_cost: float,
    outcome: Outcome,
    settings: MetaSettings,
) -> list[torch.Tensor]:
    """For each rollout c_t, [T, n_envs] float64, such that grad E[sum_t c_t sum_agents log pi(a_t)] estimates the
    derivative of the objective by the policies (Williams 1992; Sutton et al. 2000).

    c_t = (G_t - b_t) / episodes. For an objective that is a sum over steps G_t is what it gains from step t on, less
    what the mechanism pays out; for the others it is the episode's whole welfare. b_t is the mean G of the other
    episodes at the same step of theirs, so it does not depend on the actions it is compared with, and the estimate is
    unbiased. Steps of episodes that did not finish count nothing, as in the objective.
    """
    ended = [rollout.terminated | rollout.truncated for rollout in rollouts]
    if objective.step is not None:
        returns = [
            _to_go(rollout, end, objective.step, spending_cost, settings.gamma)
            for rollout, end in zip(rollouts, ended, strict=True)
        ]
    else:
        returns = _welfare(rollouts, ended, outcome)
    gain, end = torch.cat(returns, dim=1), torch.cat(ended, dim=1)
    finished = _finished(end)
    place = _steps_since_start(end)
    baseline = torch.full_like(gain, settings.past_return)
    if settings.baseline == "others":
        if objective.step is not None:
            # An episode that pays evenly still has this much of its return ahead.
            baseline *= 1 - place / len(place)
        total, count = gain.new_zeros(len(place)), gain.new_zeros(len(place))
        total.index_add_(0, place.flatten(), (gain * finished).flatten())
        count.index_add_(0, place.flatten(), finished.to(gain.dtype).flatten())
        others = count[place] - 1
        baseline = torch.where(others > 0, (total[place] - gain) / others.clamp_min(1), baseline)
    credit = torch.where(finished, gain - baseline, 0.0) / end.sum().clamp_min(1)
    return list(torch.split(credit, [each.shape[1] for each in returns], dim=1))


def direct_derivative(rollouts: Sequence[Rollout], spending_cost: float) -> torch.Tensor:
    """How the objective depends on the mechanism's values when nobody acts differently, [d] float64: its cost."""
    total, episodes = torch.zeros((), dtype=torch.float64), 0
    for rollout in rollouts:
        assert rollout.reward_jacobian is not None
        ended = rollout.terminated | rollout.truncated
        counted = rollout.reward_jacobian.double() * _finished(ended)[..., None, None]
        total, episodes = total - spending_cost * counted.sum((0, 1, 2)), episodes + int(ended.sum())
    return total / max(episodes, 1)


def _to_go(
    rollout: Rollout, ended: torch.Tensor, step: Callable[[Array], Array], spending_cost: float, gamma: float
) -> torch.Tensor:
    """Discounted sum of the objective's payoffs from each step to the end of its episode, [T, n_envs] float64."""
    base, reward = rollout.base_reward.double(), rollout.reward.double()
    payoff = step(base) - spending_cost * (reward - base).sum(-1)
    nothing = torch.zeros_like(payoff)
    return generalized_advantages(payoff, nothing, nothing, ended, gamma, 1.0)


def _welfare(rollouts: Sequence[Rollout], ended: Sequence[torch.Tensor], outcome: Outcome) -> list[torch.Tensor]:
    """The welfare of the episode that each step belongs to, [T, n_envs] float64; 0 where it did not finish."""
    values = iter(outcome.values.tolist())
    result = []
    for rollout, end in zip(rollouts, ended, strict=True):
        steps, n_envs = end.shape
        table = torch.zeros((steps + 1, n_envs), dtype=torch.float64, device=end.device)  # k-th episode of each game
        seen = [0] * n_envs
        for episode in rollout.episodes:
            table[seen[episode.game], episode.game] = next(values)
            seen[episode.game] += 1
        before = end.long().cumsum(0) - end.long()
        result.append(table.gather(0, before))
    return result


def _finished(ended: torch.Tensor) -> torch.Tensor:
    """Whether the episode of each step ends within the rollout, [T, n_envs] bool."""
    return ended.flip(0).cumsum(0).flip(0) > 0


def _steps_since_start(ended: torch.Tensor) -> torch.Tensor:
    """The index of each step within its episode, [T, n_envs] int64; a rollout begins with new episodes."""
    time = torch.arange(len(ended), device=ended.device)[:, None].expand(ended.shape)
    begins = torch.cat([torch.ones_like(ended[:1]), ended[:-1]])
    start = torch.where(begins, time, 0).cummax(0).values
    return time - start
