"""Proximal policy optimisation: the platform's only implementation, for every policy with features and heads.

From top to bottom: settings; `PPO`, from a rollout to advantages, minibatches, losses and metrics; the two losses as
functions; the division of samples into minibatches. The estimators are in `advantages.py`, the steps of Adam in
`optimizer_step.py`. Plain policy gradient is PPO with one epoch, one batch and no clipping (`agent=pg`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import nn

from llmrl.algorithms.advantages import RewardScale, generalized_advantages, normalized
from llmrl.algorithms.optimizer_step import Batch, OptimizerStep, Record, Updater
from llmrl.core.errors import ConfigError, Diverged
from llmrl.core.protocols import Teacher
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.core.rollouts import Rollout
from llmrl.networks import categorical

OWN = ("policy", "value", "entropy", "kl", "clip_fraction", "grad_norm")
"""Entries that every update records; further entries are the teacher's."""


class TrainedPolicy(Protocol):
    """Policy that PPO can train: `SocietyPolicy`, or a language model as the policy.

    `channels` names the observation channels read; `recurrent` says whether the networks have a memory.
    """

    channels: tuple[str, ...]
    recurrent: bool

    def groups(self) -> Sequence[tuple[nn.Module, slice]]:
        """Return each network with its agents, as a slice of the agent axis. Called with a batch, a network returns
        logits [batch, n_actions] and values [batch]; see `GradientAccumulation` for large networks."""
        ...

    def extended(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return the observation [n, n_agents, ...] with the further channels that the networks read."""
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


class PPO:
    """Learner with clipped-surrogate updates of a policy from rollouts.

    Minibatches mix time, games and agents; for recurrent policies they consist of whole stretches of episodes. With
    separate networks, each is updated from its own agent's samples, with its own optimizer, advantage normalisation and
    gradient clipping (independent learners).

    Attributes:
        updaters: optimizer steps, one for each of the policy's groups.
    """

    def __init__(self, policy: TrainedPolicy, settings: PPOSettings, teacher: Teacher | None = None) -> None:
        self.policy, self.settings, self.teacher = policy, settings, teacher
        self.updaters = self._new_updaters()
        self.updates = 0
        self.scale = RewardScale(settings.gamma)
        self._first_scale = self.scale.state_dict()

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Train for `epochs` on one rollout; return means of losses and diagnostics over minibatches and networks.

        Raises:
            ConfigError: `drop_last` with fewer samples than a minibatch holds.
            Diverged: a loss or a gradient is not finite.
        """
        advice = self.begin(rollout)
        advantage, target = self.estimate(rollout)
        return self.fit(rollout, advantage, target, generator, self.updaters, advice)

    def begin(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Start an update: update the scale of rewards and the learning rate, and return the teacher's advice."""
        if self.settings.scale_rewards:
            self.scale.see(rollout.reward.detach(), rollout.terminated | rollout.truncated)
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
        reward = rollout.reward / self.scale.deviation if s.scale_rewards else rollout.reward
        ended = rollout.terminated | rollout.truncated
        done = ended[..., None].expand_as(rollout.reward)
        if s.baseline == "none":
            nothing = torch.zeros_like(reward)
            to_go = generalized_advantages(reward, nothing, nothing, done, s.gamma, 1.0)
            return to_go, to_go
        next_value = rollout.next_value
        if not s.bootstrap_truncation:
            next_value = torch.where(ended[..., None], 0.0, next_value)
        advantage = generalized_advantages(reward, rollout.value, next_value, done, s.gamma, s.gae_lambda)
        return advantage, advantage + rollout.value

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

        `advantage` and `target` are [T, n_envs, n_agents]; `advice` is the teacher's, [T, n_envs, n_agents, ...].
        """
        records: list[Record] = []
        for (_, agents), updater in zip(self.policy.groups(), updaters, strict=True):
            data = self.samples(rollout, agents)
            data |= {
                "advantage": self.normalize_over_rollout(advantage[:, :, agents].reshape(-1), *advantage.shape[:2]),
                "target": target[:, :, agents].reshape(-1),
            }
            data |= {name: x[:, :, agents].flatten(0, 2) for name, x in (advice or {}).items()}
            minibatches = self._minibatches(rollout, agents, data)
            records += self.epochs(updater, (minibatches.epoch(generator) for _ in range(self.settings.epochs)))
        # One transfer for all minibatches.
        means = torch.stack([torch.stack([record[name] for name in OWN]) for record in records]).mean(0).tolist()
        unexplained = unexplained_variance(target.detach().flatten(), rollout.value.flatten())
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
        if not self.policy.recurrent:
            return Minibatches(data, size, self.settings.drop_last)
        assert rollout.state is not None
        state = rollout.state[:, agents]
        first = rollout.episode_start[:, :, None].expand(-1, -1, state.shape[1]).flatten(1)
        return SequenceMinibatches(data, size, first, state.flatten(0, 1))

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
        logits, value = updater.forward(batch)
        log_prob, entropy = categorical.log_prob_entropy(logits, batch["action"])
        log_ratio = log_prob - batch["log_prob"]
        ratio = log_ratio.exp()
        policy_loss = -surrogate(ratio, batch["weight"], s.clip).mean(-1)
        mean_entropy = entropy.mean(-1)
        if s.baseline == "value":
            value_loss = 0.5 * value_error(value, batch["value"], batch["target"], s.value_clip).mean(-1)
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
            teacher_loss, teacher_metrics = self.teacher.loss(batch, logits)
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

    def begin_with(self, scale: State) -> None:
        """Use the reward scale `scale` (a state of `RewardScale`) of loaded weights; `reset` returns to it."""
        self._first_scale = scale
        self.scale.load_state_dict(scale)

    def reset(self, keep_moments: bool = False) -> None:
        """Restart learning-rate decay, reward scale, the teacher's schedule and, unless kept, Adam's moments."""
        if not keep_moments:
            self.updaters = self._new_updaters()
        self.updates = 0
        self.scale.load_state_dict(self._first_scale)
        if self.teacher is not None:
            self.teacher.reset()

    def state_dict(self) -> State:
        teacher = None if self.teacher is None else self.teacher.state_dict()
        optimizers = [updater.state_dict() for updater in self.updaters]
        scale = self.scale.state_dict()
        return {"optimizers": optimizers, "updates": self.updates, "teacher": teacher, "scale": scale}

    def load_state_dict(self, state: State) -> None:
        self.updates = state["updates"]
        self.scale.load_state_dict(state["scale"])
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


def value_error(value: torch.Tensor, old: torch.Tensor, target: torch.Tensor, clip: float | None) -> torch.Tensor:
    """Return the squared error [...] of `value`; with `clip`, at least that of `value` clipped to `old` +- `clip`."""
    error = (value - target).square()
    if clip is None:
        return error
    clipped = old + (value - old).clamp(-clip, clip)
    return torch.maximum(error, (clipped - target).square())


def unexplained_variance(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the variance of `target` - `value` over the variance of `target`, both [..., n], as [...]."""
    variance = target.var(-1, correction=0).clamp_min(1e-8)
    return (target - value).var(-1, correction=0) / variance


def split_minibatches(order: torch.Tensor, size: int | None, drop_last: bool) -> tuple[torch.Tensor, ...]:
    """Split permutations of n samples, [..., n], into minibatches [..., size], of which the last may be smaller.

    Args:
        order: permutations of the samples.
        size: samples of a minibatch; None: all.
        drop_last: drop the last minibatch if it is smaller, as torch's `BatchSampler` does.

    Raises:
        ConfigError: no minibatch would be left.
    """
    n = order.shape[-1]
    size = size or n
    if drop_last and size > n:
        raise ConfigError(
            f"agent.ppo.drop_last leaves nothing to learn from: an update has {n} samples for a network, fewer than "
            f"agent.ppo.minibatch_size={size}; play more games or steps, or take smaller minibatches"
        )
    return torch.split(order[..., : n - n % size] if drop_last else order, size, dim=-1)


class Minibatches:
    """Minibatches of independent samples.

    Args:
        data: samples by name, each [n, ...].
        size: samples of a minibatch; None: all.
        drop_last: drop the last minibatch of an epoch if it is smaller.
    """

    def __init__(self, data: Batch, size: int | None, drop_last: bool = False) -> None:
        self.data, self.size, self.drop_last = data, size, drop_last
        self.n = data["action"].shape[0]

    def epoch(self, generator: torch.Generator) -> Iterator[Batch]:
        """Yield minibatches of all samples (except those dropped) in random order.

        Raises:
            ConfigError: as `split_minibatches`.
        """
        order = torch.randperm(self.n, generator=generator, device=generator.device).to(self.data["action"].device)
        for indices in split_minibatches(order, self.size, self.drop_last):
            yield {name: x[indices] for name, x in self.data.items()}


class SequenceMinibatches:
    """Minibatches of stretches of episodes, for recurrent networks.

    A stretch begins with an episode, or with the rollout and then with the memory at its start. A minibatch is the
    concatenation of whole stretches without padding, and holds at least `size` samples; the last one, which may be
    smaller, is never dropped.

    Args:
        data: samples by name, each [n, ...], with n = T * n_rows and time slowest.
        size: samples of a minibatch; None: all.
        first: starts of episodes, [T, n_rows] bool; a row is one agent of one game.
        state: memory before the first step, [n_rows, state_size].
    """

    def __init__(self, data: Batch, size: int | None, first: torch.Tensor, state: torch.Tensor) -> None:
        self.data, self.size = data, size
        steps, rows = first.shape
        starts = first.cpu().clone()
        starts[0] = True
        found = starts.T.nonzero()  # by row, then by time
        row, start = found[:, 0], found[:, 1]
        last = torch.ones(len(row), dtype=torch.bool)
        last[:-1] = row[1:] != row[:-1]
        end = torch.where(last, steps, torch.roll(start, -1))
        self.lengths = end - start
        self.indices = [
            torch.arange(a, b) * rows + r for r, a, b in zip(row.tolist(), start.tolist(), end.tolist(), strict=True)
        ]
        began = first[0].to(state.device)[:, None]
        carried = torch.where(began, 0, state)[row.to(state.device)]
        self.state = torch.where((start == 0).to(state.device)[:, None], carried, 0)

    def epoch(self, generator: torch.Generator) -> Iterator[Batch]:
        """Yield minibatches of all samples, stretches in random order, with `lengths` and `state` of each stretch."""
        order = torch.randperm(len(self.indices), generator=generator, device=generator.device).cpu()
        until = self.lengths[order].cumsum(0)
        size = self.size or int(until[-1])
        device = self.data["action"].device
        begin = 0
        while begin < len(order):
            so_far = 0 if begin == 0 else int(until[begin - 1])
            end = int(torch.searchsorted(until, so_far + size)) + 1
            chosen = order[begin:end]
            begin = end
            indices = torch.cat([self.indices[i] for i in chosen.tolist()]).to(device)
            batch = {name: x[indices] for name, x in self.data.items()}
            yield batch | {"lengths": self.lengths[chosen], "state": self.state[chosen.to(self.state.device)]}
