"""Updates of several societies, in one batched computation where their networks can be stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch

from llmrl.algorithms.adam import Adam
from llmrl.algorithms.minibatches import sample_indices
from llmrl.algorithms.optimizer_step import Batch, Loss, OptimizerStep, Record, Updater
from llmrl.algorithms.ppo import PPO, fit
from llmrl.algorithms.societies.partitioned_policy import split_rollout
from llmrl.algorithms.societies.stacked_networks import (
    StackedNetwork,
    are_stackable,
    count_cells,
    member_views,
    slices_to_stack,
)
from llmrl.core.errors import Diverged
from llmrl.core.protocols import Agent
from llmrl.core.rollouts import Rollout
from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.multi_agent_policy import SocietyPolicy

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Names of Adam's moments in its state of a parameter."""
MAX_STACKS = 32
"""Maximum number of stacks that are cached."""


@runtime_checkable
class HasPPOLearner(Protocol):
    """Agent whose learning may be computed together with that of similar agents."""

    @property
    def learner(self) -> PPO | None:
        """PPO learner, if the agent's `update` does nothing but update it; else None."""
        ...


class BatchedTrainer:
    """Trainer of agents that each learn from an equal group of games, in order.

    Each agent gets the update that it would compute alone. Agents are batched if they learn by PPO with networks of one
    shape, without memory, teacher or stop by KL (whose epochs would differ), with equal hyperparameters and with
    optimizers at the same step. The results are bit for bit independent of the other agents. All other agents are
    updated one after the other.

    Args:
        agents: one agent for each group of games.
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        self.agents = agents
        self._learners = _stackable_learners(agents)
        self._stacks: dict[tuple[int, ...], StackedOptimizerStep] = {}

    @classmethod
    def of(cls, agents: Sequence[Agent], previous: BatchedTrainer | None) -> BatchedTrainer:
        """Return a trainer of these agents: `previous`, if it trains the same agents."""
        return previous if previous is not None and list(previous.agents) == list(agents) else cls(agents)

    def update(self, rollout: Rollout, generators: Sequence[torch.Generator]) -> list[dict[str, float] | Diverged]:
        """Update every policy; return its metrics, or the exception if its losses are not finite.

        Args:
            rollout: rollout of all games.
            generators: generator of each agent's minibatches: distinct objects, which may have equal states.

        Raises:
            ConfigError: as `PPO.update`.
        """
        if self._learners is None:
            parts = zip(self.agents, split_rollout(rollout, len(self.agents)), generators, strict=True)
            return [_update_alone(*part) for part in parts]
        results: dict[int, dict[str, float] | Diverged] = {}
        for group in self._group_by_step(self._learners):
            results |= self._update_stacked(self._learners, group, rollout, [generators[i] for i in group])
        return [results[i] for i in range(len(results))]

    @staticmethod
    def _group_by_step(learners: Sequence[PPO]) -> list[list[int]]:
        """Return the indices of learners in groups whose steps can be taken together."""
        keys = [(ppo.settings, [_step_key(updater) for updater in ppo.updaters]) for ppo in learners]
        first_indices = [keys.index(key) for key in keys]
        return [[i for i, first in enumerate(first_indices) if first == k] for k in sorted(set(first_indices))]

    def _update_stacked(
        self, learners: Sequence[PPO], group: Sequence[int], rollout: Rollout, generators: Sequence[torch.Generator]
    ) -> dict[int, dict[str, float] | Diverged]:
        """Update the agents of a group, whose networks are stacked; return results by agent index."""
        group_learners = [learners[i] for i in group]
        for ppo in group_learners:
            ppo.begin(rollout)
        lead = group_learners[0]
        networks = [network for ppo in group_learners for network, _ in ppo.policy.groups()]
        steps = [updater for ppo in group_learners for updater in ppo.updaters]

        def updaters(samples: int) -> Iterator[tuple[slice, Updater]]:
            for part in slices_to_stack(networks, samples, count_cells(networks[0], rollout.observation)):  # type: ignore[arg-type]
                stack = self._stack(tuple(group), part, networks[part])  # type: ignore[arg-type]
                stack.read(steps[part])
                yield part, stack
                stack.write_back()

        indices = sample_indices(rollout.reward.shape, len(learners), len(lead.updaters))
        indices = indices.view(len(learners), -1, indices.shape[1])[list(group)].flatten(0, 1)
        results = fit(group_learners, rollout, *lead.estimate(rollout), generators, updaters, indices)
        return dict(zip(group, results, strict=True))

    def _stack(self, group: tuple[int, ...], part: slice, networks: Sequence[ActorCritic]) -> StackedOptimizerStep:
        """Return the cached stack of a part of the group's networks."""
        key = (part.start, part.stop, *group)
        if key not in self._stacks:
            if len(self._stacks) >= MAX_STACKS:
                self._stacks.clear()
            self._stacks[key] = StackedOptimizerStep(StackedNetwork(networks))
        return self._stacks[key]


def _update_alone(agent: Agent, rollout: Rollout, generator: torch.Generator) -> dict[str, float] | Diverged:
    """Return the metrics of an agent's own update, or the exception that ended it."""
    try:
        return agent.update(rollout, generator)
    except Diverged as error:
        return error


def _stackable_learners(agents: Sequence[Agent]) -> list[PPO] | None:
    """Return the agents' learners if their networks can be stacked, else None. Hyperparameters may differ."""
    learners = [agent.learner for agent in agents if isinstance(agent, HasPPOLearner)]
    candidates = [ppo for ppo in learners if type(ppo) is PPO and type(ppo.policy) is SocietyPolicy]
    if len(candidates) < len(agents) or len({id(ppo.policy) for ppo in candidates}) < len(agents):
        return None
    policy = candidates[0].policy
    have_same_structure = all(
        ppo.is_stackable
        and ppo.policy.channels == policy.channels
        and [agents for _, agents in ppo.policy.groups()] == [agents for _, agents in policy.groups()]
        for ppo in candidates
    )
    networks = [network for ppo in candidates for network, _ in ppo.policy.groups()]
    return candidates if have_same_structure and are_stackable(networks) else None


class StackedOptimizerStep:
    """Updater of stacked networks that takes the steps of their `OptimizerStep`s in one computation.

    The results of a network are bit for bit independent of the other networks in the stack, because sums run along the
    last axis, over each network's own numbers.

    A loss is a vector [k] with one element per network. Adam works elementwise, so one optimizer over the stacked
    parameters equals one for each network; a gradient is clipped by the norm of its own network only.

    Between `read` and `write_back`, the ordinary updaters and their networks stay unchanged.

    Args:
        stack: the stacked networks.
    """

    def __init__(self, stack: StackedNetwork) -> None:
        self.stack = stack
        trainable = {name: p for name, p in stack.network.named_parameters() if p.requires_grad}
        self._named = trainable
        self.parameters = list(trainable.values())
        self._members = [members for p, members in stack.parameters if p.requires_grad]
        self._ordinary: Sequence[OptimizerStep] = ()

    def read(self, ordinary: Sequence[OptimizerStep]) -> None:
        """Copy weights, moments and step size of `ordinary`, one updater per network, all at the same step."""
        self.stack.read()
        self._ordinary = ordinary
        group = ordinary[0].optimizer.param_groups[0]
        self.optimizer = Adam(self.parameters, lr=group["lr"], eps=group["eps"], betas=group["betas"], fused=True)
        for p, members in zip(self.parameters, self._members, strict=True):
            states = [
                updater.optimizer.state.get(parameter) for updater, parameter in zip(ordinary, members, strict=True)
            ]
            present = [state for state in states if state]
            if present:
                stack_state = self.optimizer.state[p] = {"step": present[0]["step"].clone()}
                for name in MOMENTS:
                    stack_state[name] = torch.zeros_like(p)
                    torch._foreach_copy_(
                        member_views(stack_state[name], members[0]), [state[name] for state in present]
                    )

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, value = self.stack.network(batch)
        return outputs, value

    def step(self, batch: Batch, loss: Loss) -> Record:
        value, record = loss(batch)
        self.optimizer.zero_grad()
        value.sum().backward()  # type: ignore[no-untyped-call]
        norms = []
        for part in self._ordinary[0].parts:
            gradients = [g for name in part if (g := self._named[name].grad) is not None]
            if gradients:
                norms.append(self._clip(gradients))
        self.optimizer.step()
        return record | {"grad_norm": torch.linalg.vector_norm(torch.stack(norms, dim=-1), dim=-1)}

    def _clip(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Clip the gradient norm of each network; return the norms before, [k]."""
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients], dim=-1)
        norm: torch.Tensor = torch.linalg.vector_norm(norms, dim=-1)
        scale = (self._ordinary[0].max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, [scale.view(-1, *[1] * (g.dim() - 1)) for g in gradients])
        return norm

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy weights to the networks, and moments and steps to the ordinary optimizers."""
        self.stack.write()
        new: list[torch.Tensor] = []
        old: list[torch.Tensor] = []
        for p, members in zip(self.parameters, self._members, strict=True):
            if not (state := self.optimizer.state.get(p)):
                continue
            moments = {name: member_views(state[name], members[0]) for name in MOMENTS}
            for i, (updater, parameter) in enumerate(zip(self._ordinary, members, strict=True)):
                updater_state = updater.optimizer.state[parameter]
                updater_state["step"] = state["step"].clone()
                for name in MOMENTS:
                    new.append(moments[name][i])
                    old.append(updater_state.setdefault(name, torch.empty_like(parameter)))
        if new:
            torch._foreach_copy_(old, new)


def _step_key(updater: OptimizerStep) -> list[object]:
    """Return the settings of an updater, and the number of steps of each parameter."""
    [group] = updater.optimizer.param_groups
    states = [updater.optimizer.state.get(p) for p in updater.parameters]
    steps = [float(state["step"]) if state else None for state in states]
    return [updater.max_grad_norm, updater.parts, group["lr"], group["eps"], group["betas"], steps]
