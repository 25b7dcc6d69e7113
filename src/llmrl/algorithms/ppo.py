"""Proximal policy optimisation: the platform's only implementation, for every policy with features and heads.

From top to bottom: settings; `PPO`, from a rollout to advantages, minibatches, losses and metrics; the two losses as
functions. The estimators are in `advantages.py`, the division of samples in `minibatches.py`, the steps of Adam in
`optimizer_step.py`. Plain policy gradient is PPO with one epoch, one batch and no clipping (`agent=pg`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn

from llmrl.algorithms.advantages import RewardScale, generalized_advantages, normalized
from llmrl.algorithms.minibatches import Minibatches, SequenceMinibatches
from llmrl.algorithms.optimizer_step import Batch, OptimizerStep, Record, Updater
from llmrl.core.errors import ConfigError, Diverged
from llmrl.core.protocols import Teacher
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.core.rollouts import Rollout
from llmrl.networks.action_distributions import ActionDistribution
from llmrl.networks.running_moments import RunningMoments

OWN = ("policy", "value", "entropy", "kl", "clip_fraction", "grad_norm")
"""Entries that every update records; further entries are the teacher's."""


class TrainedPolicy(Protocol):
    """Policy that PPO can train: `SocietyPolicy`, or a language model as the policy.

    `channels` names the observation channels read; `recurrent` says whether the networks have a memory.
    """

    channels: tuple[str, ...]
    recurrent: bool

    @property
    def distribution(self) -> ActionDistribution:
        """Distribution of actions that the networks' outputs describe."""
        ...

    def groups(self) -> Sequence[tuple[nn.Module, slice]]:
        """Return each network with its agents, as a slice of the agent axis. Called with a batch, a network returns
        outputs [batch, n_outputs] and values [batch]; see `GradientAccumulation` for large networks."""
        ...

    def extended(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return the observation [n, n_agents, ...] with the further channels that the networks read."""
        ...


@runtime_checkable
class SeesObservations(Protocol):
    """Network that is told what was observed, to normalise it from the next rollout on, if it `normalizes`."""

    @property
    def normalizes(self) -> bool: ...

    def see(self, samples: Batch) -> None:
        """Take in the samples [n, ...] of an update."""
        ...


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
    normalize_over: Literal["minibatch", "rollout", "game"] = "minibatch"
    advantage_eps: PositiveFloat = 1e-8
    drop_last: bool = False
    clip_apart: bool = False
    scale_rewards: bool = False
    normalize_values: bool = False
    huber: PositiveFloat | None = None
    joint_ratio: bool = False


class PPO:
    """Learner with clipped-surrogate updates of a policy from rollouts.

    Minibatches mix time, games and agents; for recurrent policies they consist of whole stretches of episodes. With
    separate networks, each is updated from its own agent's samples, with its own optimizer, advantage normalisation and
    gradient clipping (independent learners).

    Attributes:
        updaters: optimizer steps, one for each of the policy's groups.

    Raises:
        ConfigError: the ratio of joint actions is asked of networks that each play one agent.
    """

    def __init__(self, policy: TrainedPolicy, settings: PPOSettings, teacher: Teacher | None = None) -> None:
        self.policy, self.settings, self.teacher = policy, settings, teacher
        if settings.joint_ratio and len(policy.groups()) > 1:
            raise ConfigError(
                "agent.ppo.joint_ratio is the ratio of the joint action of agents with one network; use "
                "agent.share_parameters=true"
            )
        self.updaters = self._new_updaters()
        self.updates = 0
        self.reward_scale, self.value_moments = RewardScale(settings.gamma), RunningMoments()
        self._first_scales = self._scales()

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Train for `epochs` on one rollout; return means of losses and diagnostics over minibatches and networks.

        Raises:
            ConfigError: `drop_last` with fewer samples than a minibatch holds.
            Diverged: a loss or a gradient is not finite.
        """
        advice = self.begin(rollout)
        advantage, target = self.estimate(rollout)
        return self.fit(rollout, advantage, target, generator, self.updaters, advice)

    def min_rollout_steps(self, games: int) -> int:
        """Return the smallest number of steps of each of `games` games with which `drop_last` leaves a minibatch."""
        size = self.settings.minibatch_size
        if not self.settings.drop_last or self.policy.recurrent or size is None:
            return 1
        fewest: int = min(agents.stop - agents.start for _, agents in self.policy.groups())
        if self.settings.joint_ratio:
            return -(-max(1, size // fewest) // games)
        return -(-size // (games * fewest))

    def begin(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Start an update: update the scale of rewards and the learning rate, and return the teacher's advice."""
        if self.settings.scale_rewards:
            self.reward_scale.see(rollout.reward.detach(), rollout.terminated | rollout.truncated)
        advice = {} if self.teacher is None else self.teacher.advise(rollout)
        self._set_learning_rate()
        self.updates += 1
        return advice

    def estimate(self, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
        """Return advantages and value targets, each [T, n_envs, n_agents], differentiable with respect to the rewards.

        If rewards are scaled, both are in units of `RewardScale`. With `baseline: none` both are the discounted reward
        to go, up to the end of the episode or of the rollout.
        """
        s = self.settings
        reward = rollout.reward / self.reward_scale.deviation if s.scale_rewards else rollout.reward
        ended = rollout.terminated | rollout.truncated
        done = ended[..., None].expand_as(rollout.reward)
        if s.baseline == "none":
            nothing = torch.zeros_like(reward)
            to_go = generalized_advantages(reward, nothing, nothing, done, s.gamma, 1.0)
            return to_go, to_go
        value, next_value = self._values(rollout.value), self._values(rollout.next_value)
        nothing_left = ended if not s.bootstrap_truncation else rollout.terminated
        next_value = torch.where(nothing_left[..., None], 0.0, next_value)
        advantage = generalized_advantages(reward, value, next_value, done, s.gamma, s.gae_lambda)
        return advantage, advantage + value

    def _values(self, output: torch.Tensor) -> torch.Tensor:
        """Return the values [...] that a critic's outputs [...] stand for.

        With `normalize_values` outputs are in units of the targets' running moments, and are not corrected when those
        move, as in multi-agent PPO (Yu et al. 2022, arXiv 2103.01955, section 3)."""
        return self.value_moments.restored(output) if self.settings.normalize_values else output

    def fit(
        self,
        rollout: Rollout,
        advantage: torch.Tensor,
        target: torch.Tensor,
        generator: torch.Generator,
        updaters: Sequence[Updater],
        advice: Mapping[str, torch.Tensor] | None = None,
    ) -> dict[str, float]:
        """Run the epochs of an update with `updaters`, one for each group, and return metrics as `update` does.

        Networks that normalize observations then update their running moments. `advantage` and `target` are
        [T, n_envs, n_agents]; `advice` is the teacher's, [T, n_envs, n_agents, ...].
        """
        unexplained = unexplained_variance(target.detach().flatten(), self._values(rollout.value).flatten())
        if self.settings.normalize_values:
            self.value_moments.see(target.detach().flatten().cpu())
            target = self.value_moments.normalized(target)
        records: list[Record] = []
        for (network, agents), updater in zip(self.policy.groups(), updaters, strict=True):
            data = self.samples(rollout, agents)
            data |= {
                "advantage": self.normalize_over_rollout(advantage[:, :, agents].reshape(-1), *advantage.shape[:2]),
                "target": target[:, :, agents].reshape(-1),
            }
            data |= {name: x[:, :, agents].flatten(0, 2) for name, x in (advice or {}).items()}
            minibatches = self._minibatches(rollout, agents, data)
            records += self.epochs(updater, (minibatches.epoch(generator) for _ in range(self.settings.epochs)))
            if isinstance(network, SeesObservations) and network.normalizes:
                network.see(data)
        # One transfer for all minibatches.
        means = torch.stack([torch.stack([record[name] for name in OWN]) for record in records]).mean(0).tolist()
        metrics = self.report(means, len(records), float(unexplained))
        for name in [name for name in records[0] if name not in OWN]:
            metrics[name] = float(torch.stack([record[name] for record in records]).double().mean())
        return metrics if self.teacher is None else metrics | self.teacher.metrics()

    def samples(self, rollout: Rollout, agents: slice) -> Batch:
        """Return the samples of k agents with time, games and agents merged, [T * n_envs * k, ...]."""
        tensors: Batch = {"action": rollout.action, "log_prob": rollout.log_prob, "value": rollout.value}
        tensors |= {name: x for name, x in rollout.observation.items() if name in self.policy.channels}
        if rollout.features is not None:
            tensors["features"] = rollout.features
        merged = {name: x.flatten(0, 1) for name, x in tensors.items()}
        if rollout.features is None:
            merged = self.policy.extended(merged)
        return {name: x[:, agents].flatten(0, 1) for name, x in merged.items()}

    def normalize_over_rollout(self, advantage: torch.Tensor, steps: int, games: int) -> torch.Tensor:
        """Normalise all advantages [..., n] of a network in an update over the rollout or each game (`normalize_over`);
        return others unchanged. The n samples are those of `steps` steps of `games` games, steps slowest."""
        s = self.settings
        if not s.normalize_advantage or s.normalize_over == "minibatch":
            return advantage
        if s.normalize_over == "rollout":
            return normalized(advantage, s.advantage_eps)
        shape = (*advantage.shape[:-1], steps, games, -1)
        by_game = advantage.reshape(shape).transpose(-3, -2)
        return normalized(by_game.flatten(-2), s.advantage_eps).view_as(by_game).transpose(-3, -2).reshape_as(advantage)

    def _minibatches(self, rollout: Rollout, agents: slice, data: Batch) -> Minibatches | SequenceMinibatches:
        size = self.settings.minibatch_size
        team = rollout.reward[0, 0, agents].numel() if self.settings.joint_ratio else 1
        if not self.policy.recurrent:
            return Minibatches(data, size, self.settings.drop_last, team)
        assert rollout.state is not None
        state = rollout.state[:, agents]
        first = rollout.episode_start[:, :, None].expand(-1, -1, state.shape[1]).flatten(1)
        return SequenceMinibatches(data, size, first, state.flatten(0, 1), team)

    def epochs(self, updater: Updater, epochs: Iterable[Iterable[Batch]]) -> list[Record]:
        """Take a gradient step on every minibatch and return its record; stop after an epoch that exceeds `target_kl`.

        For stacked societies, minibatches and records have one more leading axis."""
        s = self.settings
        records: list[Record] = []
        for epoch in epochs:
            for batch in epoch:
                advantage = batch["advantage"]
                if s.normalize_advantage and s.normalize_over == "minibatch":
                    advantage = normalized(advantage, s.advantage_eps)
                records.append(updater.step({**batch, "weight": advantage}, lambda b: self._loss(updater, b)))
            if s.target_kl is not None and records[-1]["kl"] > s.target_kl:
                break
        return records

    def _loss(self, updater: Updater, batch: Batch) -> tuple[torch.Tensor, Record]:
        """Return the mean loss of samples [..., n] over the last axis, and its parts: policy, value, entropy, KL,
        fraction clipped, the teacher's.

        `batch["weight"]` is the advantage, normalised if the settings say so.
        """
        s = self.settings
        outputs, value = updater.forward(batch)
        log_prob, entropy = self.policy.distribution.log_prob_entropy(outputs, batch["action"])
        log_ratio, weight = log_prob - batch["log_prob"], batch["weight"]
        if "team_step" in batch:
            log_ratio, weight = joint_actions(log_ratio, weight, batch["team_step"])
        ratio = log_ratio.exp()
        policy_loss = -surrogate(ratio, weight, s.clip).mean(-1)
        mean_entropy = entropy.mean(-1)
        if s.baseline == "value":
            value_loss = 0.5 * value_error(value, batch["value"], batch["target"], s.value_clip, s.huber).mean(-1)
            loss = policy_loss + s.value_coefficient * value_loss - s.entropy_coefficient * mean_entropy
        else:
            value_loss = torch.zeros_like(policy_loss)
            loss = policy_loss - s.entropy_coefficient * mean_entropy
        with torch.no_grad():
            # KL(old || new) by the k3 estimator: unbiased and never negative (Schulman 2020).
            kl = (ratio - 1 - log_ratio).mean(-1)
            clipped = ((ratio - 1).abs() > (math.inf if s.clip is None else s.clip)).to(kl.dtype).mean(-1)
        record = {"policy": policy_loss, "value": value_loss, "entropy": mean_entropy, "kl": kl}
        record["clip_fraction"] = clipped
        if self.teacher is not None:
            teacher_loss, teacher_metrics = self.teacher.loss(batch, outputs)
            loss = loss + teacher_loss
            record |= teacher_metrics
        return loss, {name: x.detach() for name, x in record.items()}

    def report(self, means: Sequence[float], steps: int, unexplained: float) -> dict[str, float]:
        """Return the metrics of an update.

        Args:
            means: means of the steps' records, in the order of `OWN`.
            steps: number of optimizer steps.
            unexplained: share of the targets' variance that the values leave (`unexplained_variance`).

        Raises:
            Diverged: one of the means is not finite.
        """
        metrics = {f"loss/{name}": value for name, value in zip(OWN, means, strict=True)}
        if not all(math.isfinite(value) for value in means):
            raise Diverged(
                f"update {self.updates}: the losses are no numbers any more ("
                + ", ".join(f"{name} {value:g}" for name, value in metrics.items())
                + "). What was saved before is intact; begin from there with a smaller agent.ppo.learning_rate or "
                "agent.ppo.max_grad_norm, and with a wider floating-point type if it is a half-precision one"
            )
        if self.settings.baseline == "value":
            metrics["loss/explained_variance"] = 1 - unexplained
        metrics["loss/updates"] = float(steps)
        return metrics

    def _set_learning_rate(self) -> None:
        s = self.settings
        if s.final_learning_rate is None:
            return
        share = min(self.updates / s.decay_updates, 1.0)
        for updater in self.updaters:
            for group in updater.optimizer.param_groups:
                group["lr"] = s.learning_rate + share * (s.final_learning_rate - s.learning_rate)

    def begin_with(self, scales: State) -> None:
        """Use the scales of rewards and values of loaded weights (of `state_dict`); `reset` returns to them."""
        self._first_scales = scales
        self._load_scales(scales)

    def _scales(self) -> State:
        value = {name: x.clone() for name, x in self.value_moments.state_dict().items()}
        return {"reward": self.reward_scale.state_dict(), "value": value}

    def _load_scales(self, scales: State) -> None:
        self.reward_scale.load_state_dict(scales["reward"])
        self.value_moments.load_state_dict(scales["value"])

    def reset(self, keep_moments: bool = False) -> None:
        """Restart learning-rate decay, the scales of rewards and values, the teacher's schedule and, unless kept,
        Adam's moments."""
        if not keep_moments:
            self.updaters = self._new_updaters()
        self.updates = 0
        self._load_scales(self._first_scales)
        if self.teacher is not None:
            self.teacher.reset()

    def state_dict(self) -> State:
        teacher = None if self.teacher is None else self.teacher.state_dict()
        optimizers = [updater.state_dict() for updater in self.updaters]
        return {"optimizers": optimizers, "updates": self.updates, "teacher": teacher, "scales": self._scales()}

    def load_state_dict(self, state: State) -> None:
        self.updates = state["updates"]
        self._load_scales(state["scales"])
        if self.teacher is not None:
            self.teacher.load_state_dict(state["teacher"])
        for updater, saved in zip(self.updaters, state["optimizers"], strict=True):
            updater.load_state_dict(saved)

    def _new_updaters(self) -> list[OptimizerStep]:
        s = self.settings
        adam = (s.learning_rate, s.adam_eps, s.max_grad_norm, s.clip_apart)
        return [OptimizerStep(network, *adam) for network, _ in self.policy.groups()]


def surrogate(ratio: torch.Tensor, advantage: torch.Tensor, clip: float | None) -> torch.Tensor:
    """Return the objective of a policy update for each sample, min(r A, clip(r, 1 - clip, 1 + clip) A), [...].

    Schulman et al. (2017), eq. 7; without `clip` it is r A (eq. 6), whose gradient at r = 1 is A grad log pi.

    Args:
        ratio: r, the new over the old probability of the action taken, [...].
        advantage: A, [...].
        clip: clipping range > 0; None: no clipping.
    """
    if clip is None:
        return ratio * advantage
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def joint_actions(
    log_ratio: torch.Tensor, advantage: torch.Tensor, joint: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logarithm of the ratio of joint actions, and their advantage, each [m].

    The ratio of a joint action is the product of its agents', its advantage the mean of theirs.

    Args:
        log_ratio, advantage: of each agent's action, [n].
        joint: number of the joint action that each is part of, in 0 .. m - 1, [n] int64; all have equally many agents.
    """
    zeros = log_ratio.new_zeros(int(joint.max()) + 1)
    agents = len(joint) / len(zeros)
    return zeros.index_add(0, joint, log_ratio), zeros.index_add(0, joint, advantage) / agents


def value_error(
    value: torch.Tensor, old: torch.Tensor, target: torch.Tensor, clip: float | None, huber: float | None = None
) -> torch.Tensor:
    """Return the squared error [...] of `value`; with `clip`, at least that of `value` clipped to `old` +- `clip`.

    With `huber` d > 0, it is 2 d |e| - d^2 for errors |e| > d: twice the Huber loss, in which value losses are halved.
    """
    error = _squared(value - target, huber)
    if clip is None:
        return error
    clipped = old + (value - old).clamp(-clip, clip)
    return torch.maximum(error, _squared(clipped - target, huber))


def _squared(error: torch.Tensor, huber: float | None) -> torch.Tensor:
    if huber is None:
        return error.square()
    return torch.where(error.abs() <= huber, error.square(), 2 * huber * error.abs() - huber**2)


def unexplained_variance(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the variance of `target` - `value` over the variance of `target`, both [..., n], as [...]."""
    variance = target.var(-1, correction=0).clamp_min(1e-8)
    return (target - value).var(-1, correction=0) / variance
