"""Proximal policy optimisation: the one implementation, for every policy with features and heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from llmrl.core.limits import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.protocols import Teacher
from llmrl.core.records import State
from llmrl.learners.advantages import generalized_advantages
from llmrl.learners.rollout import Rollout
from llmrl.networks import categorical
from llmrl.networks.actor_critic import PLAYER, ActorCritic, SocietyPolicy


@dataclass(frozen=True)
class PPOSettings:
    """Hyperparameters of Schulman et al. (2017); meanings, units and ranges are in `conf/agent/ppo.yaml`."""

    learning_rate: PositiveFloat
    adam_eps: PositiveFloat
    gamma: UnitInterval
    gae_lambda: UnitInterval
    epochs: PositiveInt
    minibatch_size: PositiveInt
    clip: PositiveFloat
    value_clip: PositiveFloat | None
    normalize_advantage: bool
    entropy_coefficient: NonNegativeFloat
    value_coefficient: NonNegativeFloat
    max_grad_norm: PositiveFloat
    target_kl: PositiveFloat | None
    bootstrap_truncation: bool


class PPO:
    """Clipped-surrogate updates of a `SocietyPolicy` from rollouts.

    Minibatches mix time, games and agents. With separate networks, each is updated from its own agent's samples, with
    its own optimizer, advantage normalisation and gradient clipping (independent learners).
    """

    def __init__(self, policy: SocietyPolicy, settings: PPOSettings, teacher: Teacher | None = None) -> None:
        self.policy, self.settings, self.teacher = policy, settings, teacher
        self.optimizers = self._new_optimizers()

    def reset(self) -> None:
        """Forget the optimizers' moments."""
        self.optimizers = self._new_optimizers()

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """A few epochs over one rollout; returns the mean of each loss and diagnostic over minibatches and networks."""
        s = self.settings
        ended = rollout.terminated | rollout.truncated
        next_value = rollout.next_value
        if not s.bootstrap_truncation:
            next_value = torch.where(ended[..., None], 0.0, next_value)
        advantage = generalized_advantages(
            rollout.reward, rollout.value, next_value, ended[..., None].expand_as(next_value), s.gamma, s.gae_lambda
        )
        target = advantage + rollout.value
        records: list[torch.Tensor] = []
        extra: dict[str, list[float]] = {}
        for (network, agents), optimizer in zip(self.policy.groups(), self.optimizers, strict=True):
            data = self._flatten(rollout, agents)
            data |= {
                "advantage": advantage[:, :, agents].reshape(-1),
                "target": target[:, :, agents].reshape(-1),
            }
            records += self._update_network(network, optimizer, data, generator, extra)
        names = ("policy", "value", "entropy", "kl", "clip_fraction", "grad_norm")
        means = torch.stack(records).mean(0).tolist()  # one transfer for all minibatches
        metrics = {f"loss/{name}": value for name, value in zip(names, means, strict=True)}
        variance = target.var(correction=0)
        unexplained = (target - rollout.value).var(correction=0) / variance.clamp_min(1e-8)
        metrics["loss/explained_variance"] = float(1 - unexplained)
        metrics["loss/updates"] = float(len(records))
        return metrics | {name: sum(values) / len(values) for name, values in extra.items()}

    def _flatten(self, rollout: Rollout, agents: slice) -> dict[str, torch.Tensor]:
        """The samples of some agents with time, games and agents merged, [T * n_envs * k, ...]."""
        steps, n_envs, _ = rollout.action.shape
        tensors = {"action": rollout.action, "log_prob": rollout.log_prob, "value": rollout.value}
        tensors |= rollout.observation
        if rollout.features is not None:
            tensors["features"] = rollout.features
        else:
            identity = self.policy.get_buffer("identity")
            tensors[PLAYER] = identity.expand(steps, n_envs, *identity.shape)
        return {name: x[:, :, agents].flatten(0, 2) for name, x in tensors.items()}

    def _update_network(
        self,
        network: ActorCritic,
        optimizer: torch.optim.Optimizer,
        data: dict[str, torch.Tensor],
        generator: torch.Generator,
        extra: dict[str, list[float]],
    ) -> list[torch.Tensor]:
        s = self.settings
        parameters = [p for p in network.parameters() if p.requires_grad]
        n = data["action"].shape[0]
        records: list[torch.Tensor] = []
        for _ in range(s.epochs):
            order = torch.randperm(n, generator=generator, device=generator.device).to(data["action"].device)
            for indices in torch.split(order, s.minibatch_size):
                batch = {name: x[indices] for name, x in data.items()}
                features = batch["features"] if "features" in batch else network.encode(batch)
                logits, value = network.heads(features, batch.get("action_mask"))
                log_prob, entropy = categorical.log_prob_entropy(logits, batch["action"])
                advantage = batch["advantage"]
                if s.normalize_advantage and len(indices) > 1:
                    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                log_ratio = log_prob - batch["log_prob"]
                ratio = log_ratio.exp()
                surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - s.clip, 1 + s.clip) * advantage)
                policy_loss = -surrogate.mean()
                value_loss = 0.5 * self._value_error(value, batch["value"], batch["target"]).mean()
                mean_entropy = entropy.mean()
                loss = policy_loss + s.value_coefficient * value_loss - s.entropy_coefficient * mean_entropy
                if self.teacher is not None:
                    teacher_loss, teacher_metrics = self.teacher.loss(batch, logits)
                    loss = loss + teacher_loss
                    for name, x in teacher_metrics.items():
                        extra.setdefault(name, []).append(x)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                grad_norm = nn.utils.clip_grad_norm_(parameters, s.max_grad_norm)
                optimizer.step()
                with torch.no_grad():
                    # KL(old || new) by the k3 estimator: unbiased and never negative (Schulman 2020).
                    kl = (ratio - 1 - log_ratio).mean()
                    clipped = ((ratio - 1).abs() > s.clip).float().mean()
                    records.append(
                        torch.stack([policy_loss, value_loss, mean_entropy, kl, clipped, grad_norm]).detach()
                    )
            if s.target_kl is not None and records[-1][3] > s.target_kl:
                break
        return records

    def _value_error(self, value: torch.Tensor, old: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Squared error, or the larger of it and that of the clipped prediction where `value_clip` is set."""
        error = (value - target).square()
        if self.settings.value_clip is None:
            return error
        clipped = old + (value - old).clamp(-self.settings.value_clip, self.settings.value_clip)
        return torch.maximum(error, (clipped - target).square())

    def state_dict(self) -> State:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state: State) -> None:
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def _new_optimizers(self) -> Sequence[torch.optim.Optimizer]:
        return [
            torch.optim.Adam(
                [p for p in network.parameters() if p.requires_grad],
                lr=self.settings.learning_rate,
                eps=self.settings.adam_eps,
                fused=True,  # one kernel for all parameters instead of several for each
            )
            for network, _ in self.policy.groups()
        ]
