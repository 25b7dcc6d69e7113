"""Derivative of a principal's objective with respect to its mechanism, through the updates of the agents.

`MetaGradient` computes the whole gradient. `DifferentiableStep` and the functions after it are differentiable versions
of optimizer steps, Adam and gradient clipping. `compute_step_credits` is the score-function estimator, which assigns to
each step of an episode its contribution to the objective.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

from llmrl.algorithms.advantages_and_losses import generalized_advantages
from llmrl.algorithms.optimizer_step import Batch, LossFunction, LossRecord, OptimizerStep
from llmrl.algorithms.ppo import PPO
from llmrl.core.errors import ConfigError
from llmrl.core.records import Array, MetaSettings, Outcome
from llmrl.core.rollouts import Rollout
from llmrl.core.welfare_measures import Objective
from llmrl.networks.actor_critic import JOINT_CHANNEL, MECHANISM_CHANNEL
from llmrl.networks.multi_agent_policy import SocietyPolicy

MAX_SAMPLES_PER_GRAPH = 8192
"""Maximum number of samples of validation episodes in one computation graph."""


class MetaGradient:
    """Update of PPO agents as a differentiable function of the mechanism's values tau.

    The method is that of Yang et al. 2021 (Adaptive Incentive Design with Multi-Agent Meta-Gradient Reinforcement
    Learning, arXiv 2112.10859), but with PPO as the update rule of the agents.

    **Inner updates** are those of `PPO`, with the same code, minibatches and numbers, but with `DifferentiableStep` as
    updater. Rewards depend on tau through `Rollout.reward_jacobian`, advantages depend on rewards, and the weights
    after a step depend on its advantages and on the weights before it, also over several updates. Recorded actions,
    states, their running moments (`agent.normalize_observations`), log-probabilities and values are constants. The
    ratio to recorded log-probabilities includes the effect of earlier weights on the actions of a later update, but not
    their effect on its states. A clipped ratio has derivative 0. Minibatches and a stop by KL do not depend on tau.

    **The objective** depends on the final weights and on tau. Its derivative with respect to the policy's
    log-probabilities is the score-function estimate (`compute_step_credits`); the rest is the cost of payments
    (`compute_direct_derivative`).

    Args:
        ppo: the agents' learner. After each update its policy and optimizers contain tensors without a graph.
        values: tau, [d].
        settings: settings of the principal's gradient.

    Raises:
        ConfigError: agents observe tau through a frozen core, of which only the output is stored.
    """

    def __init__(self, ppo: PPO, values: np.ndarray, settings: MetaSettings) -> None:
        policy = ppo.policy
        assert isinstance(policy, SocietyPolicy)
        self.ppo, self.settings = ppo, settings
        weight = next(policy.parameters())
        self.tau = torch.as_tensor(values, dtype=weight.dtype, device=weight.device).clone().requires_grad_()
        # Zeros with derivative 1 with respect to tau. Adding them does not change numbers, which then depend on tau.
        self._shift = self.tau - self.tau.detach()
        self._observed_shift = (
            self._shift if settings.observation_gradient and MECHANISM_CHANNEL in policy.channels else None
        )
        network = policy.list_networks()[0][0]
        self._mechanism_columns, self._joint_columns = network.mechanism_columns, network.joint_columns
        if self._observed_shift is not None and policy.core_frozen and self._mechanism_columns is None:
            raise ConfigError(
                "principal.observation_gradient=true needs the derivative of a frozen core, which is not stored; set "
                "agent.freeze=none or principal.observation_gradient=false"
            )
        self._updaters = [
            DifferentiableStep(updater, self._observed_shift, self._mechanism_columns, self._joint_columns)
            for updater in ppo.updaters
        ]

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Run `PPO.update`, with the same numbers, and keep their dependence on tau."""
        assert rollout.reward_jacobian is not None
        advice = self.ppo.begin_update(rollout)
        reward = rollout.reward + rollout.reward_jacobian.to(self._shift.dtype) @ self._shift
        advantage, target = self.ppo.estimate_advantages(replace(rollout, reward=reward))
        if not self.settings.differentiate_targets:
            target = target.detach()
        metrics = self.ppo.fit(rollout, advantage, target, generator, self._updaters, advice)
        for updater in self._updaters:
            updater.write_back()
        return metrics

    def gradient(
        self, rollouts: Sequence[Rollout], objective: Objective, spending_cost: float, outcome: Outcome
    ) -> np.ndarray:
        """Return the estimated derivative, [d] float64. Call this only once, because it frees the graph of the updates.

        Args:
            rollouts: validation episodes, with the contents that a learner needs and with `reward_jacobian`.
            objective, spending_cost: objective of the principal.
            outcome: outcome of these episodes; its `values` are in the order of the rollouts' episodes.
        """
        credits = compute_step_credits(rollouts, objective, spending_cost, outcome, self.settings)
        total_derivative = compute_direct_derivative(rollouts, spending_cost).to(self.tau.device)
        for (_, agents), updater in zip(self.ppo.policy.list_networks(), self._updaters, strict=True):
            # First the derivative with respect to the final weights, then once through the updates that led to them.
            final_step = DifferentiableStep(
                updater.optimizer_step, self._observed_shift, self._mechanism_columns, self._joint_columns
            )
            inputs = [*final_step.weights.values(), self.tau]
            derivatives = [torch.zeros_like(x) for x in inputs]
            for rollout, credit in zip(rollouts, credits, strict=True):
                samples = self.ppo.build_samples(rollout, agents)
                weight = credit[:, :, None].expand(rollout.log_prob[:, :, agents].shape).flatten().to(self.tau.dtype)
                for indices in torch.split(torch.arange(len(weight), device=weight.device), MAX_SAMPLES_PER_GRAPH):
                    policy_outputs, _ = final_step.forward({name: x[indices] for name, x in samples.items()})
                    log_prob, _ = self.ppo.policy.distribution.log_prob_entropy(
                        policy_outputs, samples["action"][indices]
                    )
                    surrogate = (weight[indices] * log_prob).sum()
                    parts = torch.autograd.grad(
                        surrogate, inputs, allow_unused=True, retain_graph=self._observed_shift is not None
                    )
                    derivatives = [x if part is None else x + part for x, part in zip(derivatives, parts, strict=True)]
            total_derivative += derivatives.pop().double()
            pairs = zip(updater.weights.values(), derivatives, strict=True)
            differentiable = [(w, x) for w, x in pairs if w.grad_fn is not None]
            if differentiable:
                outputs, gradients = zip(*differentiable, strict=True)
                [indirect_derivative] = torch.autograd.grad(
                    outputs, [self.tau], gradients, allow_unused=True, retain_graph=True
                )
                total_derivative += 0.0 if indirect_derivative is None else indirect_derivative.double()
        self._updaters = []
        return total_derivative.cpu().numpy()


class DifferentiableStep:
    """Updater with the steps of `OptimizerStep` whose new weights are differentiable.

    The weights depend on everything that the losses depend on. The updater starts from the weights and moments of
    an `OptimizerStep`, which it changes only in `write_back`.

    Args:
        optimizer_step: updater whose steps are reproduced.
        shift: zeros [d] whose derivative with respect to the mechanism's values is one; added to the values in the
            network's observations. None: observations are constants.
        mechanism_columns, joint_columns: columns with the mechanism's values in the features, and in a central critic's
            channel (see `ActorCritic`).
    """

    def __init__(
        self,
        optimizer_step: OptimizerStep,
        shift: torch.Tensor | None = None,
        mechanism_columns: slice | None = None,
        joint_columns: Sequence[int] = (),
    ) -> None:
        self.optimizer_step, self.shift = optimizer_step, shift
        self.mechanism_columns, self.joint_columns = mechanism_columns, joint_columns
        self.network = optimizer_step.network
        trainable = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.weights = {name: p.detach().clone().requires_grad_() for name, p in trainable.items()}
        self.moments = {name: _read_moments(optimizer_step.optimizer, p) for name, p in trainable.items()}

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        if self.shift is not None:
            batch = _shift_mechanism(batch, self.shift, self.mechanism_columns, self.joint_columns)
        outputs, value = functional_call(self.network, self.weights, (batch,))
        return outputs, value

    def step(self, batch: Batch, loss: LossFunction) -> LossRecord:
        options = self.optimizer_step.optimizer.param_groups[0]
        mean_loss, record = loss(batch)
        weights = list(self.weights.values())
        raw_gradients = torch.autograd.grad(mean_loss, weights, create_graph=True, allow_unused=True)
        gradients = {name: g for name, g in zip(self.weights, raw_gradients, strict=True) if g is not None}
        norms = []
        for names in self.optimizer_step.clipping_groups:
            group_gradients = {name: gradients[name] for name in names if name in gradients}
            if not group_gradients:
                continue
            clipped_gradients, norm = clip_by_norm(group_gradients, self.optimizer_step.max_grad_norm)
            norms.append(norm.detach())
            for name, gradient in clipped_gradients.items():
                self.weights[name], self.moments[name] = adam_step(
                    self.weights[name], gradient, self.moments[name], options["lr"], options["eps"], options["betas"]
                )
        return record | {"grad_norm": torch.linalg.vector_norm(torch.stack(norms))}

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the weights to the network and the moments to the optimizer, without their graph."""
        optimizer = self.optimizer_step.optimizer
        for name, parameter in self.network.named_parameters():
            if name in self.weights and self.moments[name].steps:
                moments = self.moments[name]
                parameter.copy_(self.weights[name])
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(moments.steps), device=parameter.device),
                    "exp_avg": moments.first.detach().clone(),
                    "exp_avg_sq": moments.second.detach().clone(),
                }


def _shift_mechanism(
    batch: Batch, shift: torch.Tensor, mechanism_columns: slice | None, joint_columns: Sequence[int]
) -> Batch:
    """Return samples with `shift` [d] added to the mechanism's values in them.

    They are in the channel of the mechanism (and in that of a central critic), or in the features.
    """
    if MECHANISM_CHANNEL in batch:
        shifted_channels = {MECHANISM_CHANNEL: batch[MECHANISM_CHANNEL] + shift}
        if joint_columns:
            inputs = batch[JOINT_CHANNEL]
            column_indices = torch.tensor(joint_columns, device=inputs.device)
            shifted_channels[JOINT_CHANNEL] = inputs.index_add(
                1, column_indices, shift.repeat(len(joint_columns) // len(shift)).expand(len(inputs), -1)
            )
        return {**batch, **shifted_channels}
    if "features" in batch and mechanism_columns is not None:
        padding = (mechanism_columns.start, batch["features"].shape[-1] - mechanism_columns.stop)
        return {**batch, "features": batch["features"] + nn.functional.pad(shift, padding)}
    return batch


def _read_moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> Moments:
    state = optimizer.state.get(parameter)
    if not state:
        return Moments(0, torch.zeros_like(parameter), torch.zeros_like(parameter))
    return Moments(int(state["step"]), state["exp_avg"].clone(), state["exp_avg_sq"].clone())


@dataclass(frozen=True)
class Moments:
    """State of Adam for a parameter: number of steps, first and second moment of gradients (not bias-corrected)."""

    steps: int
    first: torch.Tensor
    second: torch.Tensor


def safe_sqrt(x: torch.Tensor) -> torch.Tensor:
    """Return sqrt(x) for x >= 0, with derivative 0 (instead of infinity) at 0."""
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
    """Return the parameter and the moments after one step of Adam.

    The step is algorithm 1 of Kingma & Ba 2015, with eps added to the bias-corrected root. Results equal those of
    `torch.optim.Adam` up to rounding. If all gradients so far are zero, the step is first moment / eps, so that its
    derivative is finite. torchopt 0.7.3 is not used because it cannot be loaded with torch 2.13.
    """
    steps = moments.steps + 1
    first_moment = betas[0] * moments.first + (1 - betas[0]) * gradient
    second_moment = betas[1] * moments.second + (1 - betas[1]) * gradient.square()
    denominator = safe_sqrt(second_moment) / (1 - betas[1] ** steps) ** 0.5 + eps
    new_parameter = parameter - learning_rate / (1 - betas[0] ** steps) * first_moment / denominator
    return new_parameter, Moments(steps, first_moment, second_moment)


def clip_by_norm(
    gradients: Mapping[str, torch.Tensor], max_norm: float
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return gradients whose joint norm is clipped to `max_norm`, and the norm before.

    Results equal those of `torch.nn.utils.clip_grad_norm_` up to rounding, with finite derivatives at zero.
    """
    norm = safe_sqrt(torch.stack([g.square().sum() for g in gradients.values()]).sum())
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return {name: g * scale for name, g in gradients.items()}, norm


def compute_step_credits(
    rollouts: Sequence[Rollout],
    objective: Objective,
    spending_cost: float,
    outcome: Outcome,
    settings: MetaSettings,
) -> list[torch.Tensor]:
    """Return the credit of each step for the objective, [T, n_envs] float64 per rollout.

    The credits c_t are such that grad E[sum_t c_t sum_agents log pi(a_t)] estimates the derivative of the objective
    with respect to the policies (Williams 1992; Sutton et al. 2000).

    c_t = (G_t - b_t) / episodes. For an objective that is a sum over steps, G_t is its sum from step t on, minus the
    mechanism's payments; for other objectives it is the welfare of the whole episode. The baseline b_t is the mean G of
    the other episodes at the same step, which does not depend on the episode's actions, so the estimate is unbiased.
    Steps of unfinished episodes have no credit, since the objective excludes them.
    """
    end_masks = [rollout.terminated | rollout.truncated for rollout in rollouts]
    if objective.step is not None:
        returns = [
            _compute_returns_to_go(rollout, end, objective.step, spending_cost, settings.gamma)
            for rollout, end in zip(rollouts, end_masks, strict=True)
        ]
    else:
        returns = _gather_welfare(rollouts, end_masks, outcome)
    episode_returns, end_mask = torch.cat(returns, dim=1), torch.cat(end_masks, dim=1)
    is_complete = _mask_complete_episodes(end_mask)
    step_indices = _count_steps_since_start(end_mask)
    baseline = torch.full_like(episode_returns, settings.past_return)
    if settings.baseline == "others":
        if objective.step is not None:
            # Expected remaining fraction of the return if payoffs are spread evenly over the episode.
            baseline *= 1 - step_indices / len(step_indices)
        return_sums, n_complete = episode_returns.new_zeros((2, len(step_indices))).unbind()
        return_sums.index_add_(0, step_indices.flatten(), (episode_returns * is_complete).flatten())
        n_complete.index_add_(0, step_indices.flatten(), is_complete.to(episode_returns.dtype).flatten())
        n_others = n_complete[step_indices] - 1
        others_mean = (return_sums[step_indices] - episode_returns) / n_others.clamp_min(1)
        baseline = torch.where(n_others > 0, others_mean, baseline)
    credit = torch.where(is_complete, episode_returns - baseline, 0.0) / end_mask.sum().clamp_min(1)
    return list(torch.split(credit, [part.shape[1] for part in returns], dim=1))


def compute_direct_derivative(rollouts: Sequence[Rollout], spending_cost: float) -> torch.Tensor:
    """Return the derivative of the objective with respect to the mechanism's values for fixed behavior, [d] float64.

    For fixed behavior, only the cost of the payments depends on these values.
    """
    total, n_episodes = torch.zeros((), dtype=torch.float64), 0
    for rollout in rollouts:
        assert rollout.reward_jacobian is not None
        end_mask = rollout.terminated | rollout.truncated
        jacobian = rollout.reward_jacobian.double() * _mask_complete_episodes(end_mask)[..., None, None]
        total, n_episodes = total - spending_cost * jacobian.sum((0, 1, 2)), n_episodes + int(end_mask.sum())
    return total / max(n_episodes, 1)


def _compute_returns_to_go(
    rollout: Rollout, end_mask: torch.Tensor, payoff_of: Callable[[Array], Array], spending_cost: float, gamma: float
) -> torch.Tensor:
    """Return the discounted sum of payoffs from each step to the end of its episode, [T, n_envs] float64.

    The payoff of a step is `payoff_of` its base rewards, minus the cost of the mechanism's payments.
    """
    base, reward = rollout.base_reward.double(), rollout.reward.double()
    payoff = payoff_of(base) - spending_cost * (reward - base).sum(-1)
    zeros = torch.zeros_like(payoff)
    return generalized_advantages(payoff, zeros, zeros, end_mask, gamma, 1.0)


def _gather_welfare(
    rollouts: Sequence[Rollout], end_masks: Sequence[torch.Tensor], outcome: Outcome
) -> list[torch.Tensor]:
    """Return the welfare of each step's episode, [T, n_envs] float64; 0 for unfinished episodes."""
    welfare_values = iter(outcome.values.tolist())
    welfare = []
    for rollout, end in zip(rollouts, end_masks, strict=True):
        n_steps, n_envs = end.shape
        # Row k has the welfare of the k-th episode of each game.
        welfare_table = torch.zeros((n_steps + 1, n_envs), dtype=torch.float64, device=end.device)
        n_episodes = [0] * n_envs
        for episode in rollout.episodes:
            welfare_table[n_episodes[episode.game], episode.game] = next(welfare_values)
            n_episodes[episode.game] += 1
        welfare.append(welfare_table.gather(0, end.long().cumsum(0) - end.long()))
    return welfare


def _mask_complete_episodes(end_mask: torch.Tensor) -> torch.Tensor:
    """Return whether the episode of each step ends within the rollout, [T, n_envs] bool."""
    return end_mask.flip(0).cumsum(0).flip(0) > 0


def _count_steps_since_start(end_mask: torch.Tensor) -> torch.Tensor:
    """Return the index of each step within its episode, [T, n_envs] int64. A rollout begins with new episodes."""
    steps = torch.arange(len(end_mask), device=end_mask.device)[:, None].expand(end_mask.shape)
    is_first = torch.cat([torch.ones_like(end_mask[:1]), end_mask[:-1]])
    return steps - torch.where(is_first, steps, 0).cummax(0).values
