"""Proximal policy optimization (PPO) for policies with features and heads.

The module contains the settings, the learner `PPO` with its optimizers and scales, and `fit`, which runs the epochs of
an update of one or several learners. There are three kinds of updates: of one learner (`PPO.update`), of learners with
stacked networks (`societies/batched_trainer.py`), and differentiable ones (`meta_gradient.py`). Each of them calls
`PPO.begin_update`, `PPO.estimate_advantages` and `fit`. Estimators and losses are in `advantages_and_losses.py`,
minibatches in `minibatches.py`, and the steps of Adam in `optimizer_step.py`. A plain policy gradient is PPO with one
epoch, one batch and no clipping (`agent=pg`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from llmrl.algorithms.advantages_and_losses import (
    combine_joint_actions,
    discounted_returns,
    generalized_advantages,
    normalize_advantages,
    surrogate_objectives,
    unexplained_variance,
    value_losses,
)
from llmrl.algorithms.minibatches import Minibatches, SequenceMinibatches, index_network_samples
from llmrl.algorithms.optimizer_step import Batch, LossRecord, OptimizerStep, TrainedPolicy, Updater
from llmrl.core.errors import ConfigError, Diverged
from llmrl.core.protocols import Teacher
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.core.rollouts import Rollout
from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.layers import RunningMoments

DIAGNOSTIC_NAMES = ("policy", "value", "entropy", "kl", "clip_fraction", "grad_norm")
"""Names of the losses and diagnostics that every update records; a teacher adds others."""

UpdaterFactory = Callable[[int], Iterable[tuple[int | slice, Updater]]]
"""Function from the number of samples in a minibatch to updaters that cover all networks in order, each with the index
of its network, or with a slice of several networks that it trains at once."""


@dataclass(frozen=True)
class PPOSettings:
    """Hyperparameters of Schulman et al. (2017); meanings, units and ranges are in `conf/agent/ppo.yaml`."""

    learning_rate: PositiveFloat
    adam_eps: PositiveFloat
    gamma: UnitInterval
    gae_lambda: UnitInterval
    epochs: PositiveInt
    minibatch_size: PositiveInt | None
    clip: PositiveFloat | None
    value_clip: PositiveFloat | None
    normalize_advantage: bool
    entropy_coefficient: NonNegativeFloat
    value_coefficient: NonNegativeFloat
    max_grad_norm: PositiveFloat
    target_kl: PositiveFloat | None
    bootstrap_truncation: bool
    baseline: Literal["value", "none"] = "value"
    final_learning_rate: PositiveFloat | None = None
    decay_updates: PositiveInt = 1
    normalization_scope: Literal["minibatch", "rollout"] = "minibatch"
    advantage_eps: PositiveFloat = 1e-8
    drop_last: bool = False
    separate_clipping: bool = False
    scale_rewards: bool = False
    normalize_values: bool = False
    huber: PositiveFloat | None = None
    joint_ratio: bool = False


class PPO:
    """Learner that updates a policy from rollouts by the clipped surrogate objective.

    A minibatch contains random steps, games and agents; for recurrent policies, it consists of whole stretches
    (`SequenceMinibatches`). Separate networks are updated independently, each from the samples of its agent, with a
    separate optimizer, advantage normalization and gradient clipping.

    Attributes:
        updaters: one updater for each network of the policy.
        n_updates: number of updates since the start or the last `reset`.
        reward_moments, value_moments: running moments of `discounted_returns` and of value targets, for scaling.

    Raises:
        ConfigError: `joint_ratio` is set, and each agent has a separate network.
    """

    def __init__(self, policy: TrainedPolicy, settings: PPOSettings, teacher: Teacher | None = None) -> None:
        self.policy, self.settings, self.teacher = policy, settings, teacher
        if settings.joint_ratio and len(policy.list_networks()) > 1:
            raise ConfigError(
                "agent.ppo.joint_ratio=true needs one network for all agents, but each agent has its own; set "
                "agent.share_parameters=true"
            )
        self.updaters = self._make_updaters()
        self.n_updates = 0
        self.reward_moments, self.value_moments = RunningMoments(), RunningMoments()
        self._initial_scales = self._copy_scales()

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Train for `epochs` on one rollout; return means of losses and diagnostics over minibatches and networks.

        Raises:
            ConfigError: `drop_last` is set, and there are fewer samples than a minibatch needs.
            Diverged: a loss or a gradient is not finite.
        """
        advice = self.begin_update(rollout)
        advantage, target = self.estimate_advantages(rollout)
        return self.fit(rollout, advantage, target, generator, self.updaters, advice)

    def fit(
        self,
        rollout: Rollout,
        advantage: torch.Tensor,
        target: torch.Tensor,
        generator: torch.Generator,
        updaters: Sequence[Updater],
        advice: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, float]:
        """Run the epochs of an update with one updater for each network (see the function `fit`); return its metrics.

        Raises:
            ValueError: the number of updaters differs from that of networks.
            Diverged: see `update`.
        """
        pairs = zip(self.policy.list_networks(), updaters, strict=True)
        indexed_updaters = [(i, updater) for i, (_, updater) in enumerate(pairs)]
        [metrics] = fit([self], rollout, advantage, target, [generator], lambda _: indexed_updaters, advice=advice)
        if isinstance(metrics, Diverged):
            raise metrics
        return metrics

    @property
    def is_stackable(self) -> bool:
        """True if `fit` can train several learners with these settings at once.

        This requires independent samples, equal numbers of steps, no running scales, no teacher and plain updaters.
        """
        s = self.settings
        return (
            self.teacher is None
            and s.target_kl is None
            and not (s.scale_rewards or s.normalize_values or s.joint_ratio or self.policy.recurrent)
            and all(type(updater) is OptimizerStep for updater in self.updaters)
        )

    def min_rollout_steps(self, games: int) -> int:
        """Return the minimum number of steps of a rollout of `games` games in which `drop_last` leaves a minibatch."""
        size = self.settings.minibatch_size
        if not self.settings.drop_last or self.policy.recurrent or size is None:
            return 1
        min_agents: int = min(agents.stop - agents.start for _, agents in self.policy.list_networks())
        if self.settings.joint_ratio:
            return -(-max(1, size // min_agents) // games)
        return -(-size // (games * min_agents))

    def begin_update(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Start an update: update the scale of rewards and the learning rate, and return the teacher's advice."""
        if self.settings.scale_rewards:
            done = rollout.terminated | rollout.truncated
            returns = discounted_returns(rollout.reward.detach(), done, self.settings.gamma)
            self.reward_moments.update(returns.flatten().cpu())
        advice = {} if self.teacher is None else self.teacher.advise(rollout)
        self._set_learning_rate()
        self.n_updates += 1
        return advice

    def estimate_advantages(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """Return advantages and value targets, each [T, n_envs, n_agents], differentiable with respect to the rewards.

        If rewards are scaled, both are in units of the running standard deviation of `discounted_returns`. With
        `baseline: none` both are the discounted reward to go, up to the end of the episode or of the rollout.
        """
        s = self.settings
        reward = rollout.reward / float(self.reward_moments.deviation) if s.scale_rewards else rollout.reward
        has_ended = rollout.terminated | rollout.truncated
        done = has_ended[..., None].expand_as(rollout.reward)
        if s.baseline == "none":
            zeros = torch.zeros_like(reward)
            rewards_to_go = generalized_advantages(reward, zeros, zeros, done, s.gamma, 1.0)
            return rewards_to_go, rewards_to_go
        value, next_value = self.denormalize_values(rollout.value), self.denormalize_values(rollout.next_value)
        is_terminal = has_ended if not s.bootstrap_truncation else rollout.terminated
        next_value = torch.where(is_terminal[..., None], 0.0, next_value)
        advantage = generalized_advantages(reward, value, next_value, done, s.gamma, s.gae_lambda)
        return advantage, advantage + value

    def denormalize_values(self, output: torch.Tensor) -> torch.Tensor:
        """Return the values [...] that correspond to a critic's outputs [...].

        With `normalize_values`, outputs are in units of the targets' running moments. They are not corrected when the
        moments change, as in multi-agent PPO (Yu et al. 2022, arXiv 2103.01955, section 3).
        """
        return self.value_moments.denormalize(output) if self.settings.normalize_values else output

    def build_samples(self, rollout: Rollout, agents: slice = slice(None)) -> Batch:
        """Return the samples of k agents with time, games and agents merged, [T * n_envs * k, ...]."""
        tensors: Batch = {"action": rollout.action, "log_prob": rollout.log_prob, "value": rollout.value}
        tensors |= {name: x for name, x in rollout.observation.items() if name in self.policy.channels}
        if rollout.features is not None:
            tensors["features"] = rollout.features
        flat = {name: x.flatten(0, 1) for name, x in tensors.items()}
        if rollout.features is None:
            flat = self.policy.extend_observation(flat)
        return {name: x[:, agents].flatten(0, 1) for name, x in flat.items()}

    def sample_permutations(self, n: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
        """Yield a random permutation of n samples for each epoch, [n] int64."""
        for _ in range(self.settings.epochs):
            yield torch.randperm(n, generator=generator, device=generator.device)

    def make_minibatches(
        self, rollout: Rollout, samples: Batch, indices: torch.Tensor, agents: slice
    ) -> Minibatches | SequenceMinibatches:
        """Return minibatches of the samples `indices`, [n] for the network of `agents`, or [k, n] for k networks."""
        minibatch_size = self.settings.minibatch_size
        team_size = rollout.reward[0, 0, agents].numel() if self.settings.joint_ratio else 1
        if not self.policy.recurrent:
            return Minibatches(samples, indices, minibatch_size, self.settings.drop_last, team_size)
        assert rollout.state is not None
        state = rollout.state[:, agents]
        episode_starts = rollout.episode_start[:, :, None].expand(-1, -1, state.shape[1]).flatten(1)
        return SequenceMinibatches(samples, indices, minibatch_size, episode_starts, state.flatten(0, 1), team_size)

    def run_epochs(self, updater: Updater, epochs: Iterable[Iterable[Batch]]) -> list[LossRecord]:
        """Take a gradient step on every minibatch and return its record; stop after an epoch that exceeds `target_kl`.

        For stacked networks, minibatches and records have one more leading axis.
        """
        s = self.settings
        records: list[LossRecord] = []
        for epoch in epochs:
            for batch in epoch:
                advantage = batch["advantage"]
                if s.normalize_advantage and s.normalization_scope == "minibatch":
                    advantage = normalize_advantages(advantage, s.advantage_eps)
                records.append(updater.step({**batch, "weight": advantage}, lambda b: self._compute_loss(updater, b)))
            if s.target_kl is not None and records[-1]["kl"] > s.target_kl:
                break
        return records

    def _compute_loss(self, updater: Updater, batch: Batch) -> tuple[torch.Tensor, LossRecord]:
        """Return the mean loss of samples [..., n] over the last axis, and its record.

        The record has `DIAGNOSTIC_NAMES` without the gradient norm, and the teacher's metrics. `batch["weight"]` is the
        advantage, normalized with `normalize_advantage`.
        """
        s = self.settings
        outputs, value = updater.forward(batch)
        log_prob, entropy = self.policy.distribution.log_prob_entropy(outputs, batch["action"])
        log_ratio, advantage = log_prob - batch["log_prob"], batch["weight"]
        if "joint_action_index" in batch:
            log_ratio, advantage = combine_joint_actions(log_ratio, advantage, batch["joint_action_index"])
        ratio = log_ratio.exp()
        policy_loss = -surrogate_objectives(ratio, advantage, s.clip).mean(-1)
        mean_entropy = entropy.mean(-1)
        if s.baseline == "value":
            value_loss = 0.5 * value_losses(value, batch["value"], batch["target"], s.value_clip, s.huber).mean(-1)
            loss = policy_loss + s.value_coefficient * value_loss - s.entropy_coefficient * mean_entropy
        else:
            value_loss = torch.zeros_like(policy_loss)
            loss = policy_loss - s.entropy_coefficient * mean_entropy
        with torch.no_grad():
            # KL(old || new) by the k3 estimator: unbiased and never negative (Schulman 2020).
            kl = (ratio - 1 - log_ratio).mean(-1)
            clip_fraction = ((ratio - 1).abs() > (math.inf if s.clip is None else s.clip)).to(kl.dtype).mean(-1)
        record = {"policy": policy_loss, "value": value_loss, "entropy": mean_entropy, "kl": kl}
        record["clip_fraction"] = clip_fraction
        if self.teacher is not None:
            teacher_loss, teacher_metrics = self.teacher.loss(batch, outputs)
            loss = loss + teacher_loss
            record |= teacher_metrics
        return loss, {name: x.detach() for name, x in record.items()}

    def summarize(self, means: Sequence[float], n_steps: int) -> dict[str, float] | Diverged:
        """Return the metrics of an update, or the exception that ends training if a mean is not finite.

        Args:
            means: means of the steps' records, in the order of `DIAGNOSTIC_NAMES`, and the unexplained fraction of the
                targets' variance (`unexplained_variance`).
            n_steps: number of optimizer steps.
        """
        *diagnostics, residual_variance = means
        metrics = {f"loss/{name}": value for name, value in zip(DIAGNOSTIC_NAMES, diagnostics, strict=True)}
        if not all(math.isfinite(value) for value in diagnostics):
            return Diverged(
                f"update {self.n_updates}: losses are not finite ("
                + ", ".join(f"{name} {value:g}" for name, value in metrics.items())
                + "). Earlier checkpoints are intact: resume from one with a smaller agent.ppo.learning_rate or "
                "agent.ppo.max_grad_norm, or with float32 instead of a half-precision type"
            )
        if self.settings.baseline == "value":
            metrics["loss/explained_variance"] = 1 - residual_variance
        metrics["loss/updates"] = float(n_steps)
        return metrics

    def _set_learning_rate(self) -> None:
        s = self.settings
        if s.final_learning_rate is None:
            return
        progress = min(self.n_updates / s.decay_updates, 1.0)
        for updater in self.updaters:
            for group in updater.optimizer.param_groups:
                group["lr"] = s.learning_rate + progress * (s.final_learning_rate - s.learning_rate)

    def set_initial_scales(self, scales: State) -> None:
        """Use scales of rewards and values that were loaded with weights (`state_dict`); `reset` restores these."""
        self._initial_scales = scales
        self._load_scales(scales)

    def _copy_scales(self) -> State:
        return copy.deepcopy({"reward": self.reward_moments.state_dict(), "value": self.value_moments.state_dict()})

    def _load_scales(self, scales: State) -> None:
        self.reward_moments.load_state_dict(scales["reward"])
        self.value_moments.load_state_dict(scales["value"])

    def reset(self, keep_moments: bool = False) -> None:
        """Restart the learning-rate decay, the scales of rewards and values, and the teacher's schedule.

        Adam's moments are reset unless `keep_moments`.
        """
        if not keep_moments:
            self.updaters = self._make_updaters()
        self.n_updates = 0
        self._load_scales(self._initial_scales)
        if self.teacher is not None:
            self.teacher.reset()

    def state_dict(self) -> State:
        teacher = None if self.teacher is None else self.teacher.state_dict()
        optimizers = [updater.state_dict() for updater in self.updaters]
        return {"optimizers": optimizers, "updates": self.n_updates, "teacher": teacher, "scales": self._copy_scales()}

    def load_state_dict(self, state: State) -> None:
        self.n_updates = state["updates"]
        self._load_scales(state["scales"])
        if self.teacher is not None:
            self.teacher.load_state_dict(state["teacher"])
        for updater, updater_state in zip(self.updaters, state["optimizers"], strict=True):
            updater.load_state_dict(updater_state)

    def _make_updaters(self) -> list[OptimizerStep]:
        s = self.settings
        optimizer_options = (s.learning_rate, s.adam_eps, s.max_grad_norm, s.separate_clipping)
        return [OptimizerStep(network, *optimizer_options) for network, _ in self.policy.list_networks()]


def fit(
    learners: Sequence[PPO],
    rollout: Rollout,
    advantage: torch.Tensor,
    target: torch.Tensor,
    generators: Sequence[torch.Generator],
    updaters: UpdaterFactory,
    indices: torch.Tensor | None = None,
    advice: Mapping[str, torch.Tensor] | None = None,
) -> list[dict[str, float] | Diverged]:
    """Run the epochs of an update of K learners with equal settings, each with G networks.

    Args:
        learners: the learners; several must be stackable (`PPO.is_stackable`).
        rollout: rollout of the games of all learners, and possibly of other games.
        advantage, target: estimates [T, n_envs, n_agents] (`PPO.estimate_advantages`).
        generators: generator of each learner's minibatches.
        updaters: factory of the updaters of all networks, ordered by learner.
        indices: indices of the samples of each network, [K * G, n] int64; None: see `index_network_samples`.
        advice: additional samples of a single learner's teacher, each [T, n_envs, n_agents, ...].

    Returns:
        Metrics of each learner, or the exception that ends its training.

    Raises:
        ConfigError: see `PPO.update`.
    """
    ppo, n_learners = learners[0], len(learners)
    settings, networks = ppo.settings, ppo.policy.list_networks()
    if indices is None:
        indices = index_network_samples(rollout.reward.shape, n_learners, len(networks))
    # The layout of a gathered tensor is that of its index. A contiguous one does not depend on other learners.
    indices = indices.contiguous().to(advantage.device)
    targets_and_values = (target, ppo.denormalize_values(rollout.value))
    flat_tensors = (x.detach().flatten()[indices].view(n_learners, -1) for x in targets_and_values)
    residual_variance = unexplained_variance(*flat_tensors)
    if settings.normalize_values:
        ppo.value_moments.update(target.detach().flatten().cpu())
        target = ppo.value_moments.normalize(target)
    normalized_advantage = advantage.flatten()
    if settings.normalize_advantage and settings.normalization_scope == "rollout":
        normalized_advantage = torch.empty_like(normalized_advantage)
        normalized_advantage[indices] = normalize_advantages(advantage.flatten()[indices], settings.advantage_eps)
    samples = ppo.build_samples(rollout) | {"advantage": normalized_advantage, "target": target.flatten()}
    samples |= {name: x.flatten(0, 2) for name, x in (advice or {}).items()}
    n_samples = indices.shape[1]
    records: list[list[LossRecord]] = []
    for index, updater in updaters(min(settings.minibatch_size or n_samples, n_samples)):
        if isinstance(index, slice):
            minibatches = ppo.make_minibatches(rollout, samples, indices[index], slice(None))
            stack_generators = [generators[i // len(networks)] for i in range(len(indices))[index]]
            # Random numbers are generated in the order of networks that are trained one after the other.
            n_units = minibatches.n_units
            permutations = torch.stack(
                [torch.stack(list(ppo.sample_permutations(n_units, g))) for g in stack_generators]
            )
            records.append(ppo.run_epochs(updater, map(minibatches.iterate_batches, permutations.unbind(1))))
            continue
        network, agents = networks[index]
        minibatches = ppo.make_minibatches(rollout, samples, indices[index], agents)
        records.append(
            ppo.run_epochs(
                updater, map(minibatches.iterate_batches, ppo.sample_permutations(minibatches.n_units, generators[0]))
            )
        )
        if isinstance(network, ActorCritic) and network.has_normalizers:
            network.update_normalizers({name: x[indices[index]] for name, x in samples.items()})
    network_means = torch.cat([_average_records(steps) for steps in records], dim=1)
    means = network_means.view(len(DIAGNOSTIC_NAMES), n_learners, -1).mean(2)
    means_by_learner = torch.cat([means, residual_variance[None]]).T.tolist()  # one transfer for all minibatches
    n_steps = sum(len(steps) * steps[0]["policy"].numel() for steps in records) // n_learners
    metrics = [learner.summarize(x, n_steps) for learner, x in zip(learners, means_by_learner, strict=True)]
    if ppo.teacher is not None and isinstance(metrics[0], dict):
        metrics[0] |= _average_teacher_records(records) | ppo.teacher.metrics()
    return metrics


def _average_records(records: Sequence[LossRecord]) -> torch.Tensor:
    """Return the means over steps of the records of k networks, [len(DIAGNOSTIC_NAMES), k]."""
    steps = [torch.stack([record[name] for name in DIAGNOSTIC_NAMES]) for record in records]
    return torch.stack(steps, dim=-1).mean(-1).view(len(DIAGNOSTIC_NAMES), -1)


def _average_teacher_records(records: Sequence[Sequence[LossRecord]]) -> dict[str, float]:
    steps = [record for updater_records in records for record in updater_records]
    names = [name for name in steps[0] if name not in DIAGNOSTIC_NAMES]
    return {name: float(torch.stack([step[name] for step in steps]).double().mean()) for name in names}
