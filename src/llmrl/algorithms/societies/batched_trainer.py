"""Updates of several societies (groups of agents), in one batched computation if their networks can be stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch

from llmrl.algorithms.adam import Adam
from llmrl.algorithms.minibatches import index_network_samples
from llmrl.algorithms.optimizer_step import Batch, LossFunction, LossRecord, OptimizerStep, Updater
from llmrl.algorithms.ppo import PPO, fit
from llmrl.algorithms.societies.partitioned_policy import split_rollout
from llmrl.algorithms.societies.stacked_networks import (
    StackedNetwork,
    are_stackable,
    choose_stack_slices,
    count_cells,
    make_member_views,
    pad_inputs,
)
from llmrl.core.errors import Diverged
from llmrl.core.protocols import Agent
from llmrl.core.rollouts import Rollout
from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.multi_agent_policy import SocietyPolicy

MOMENT_KEYS = ("exp_avg", "exp_avg_sq")
"""Keys of the moments in Adam's state of a parameter."""
MAX_CACHED_STACKS = 32
"""Maximum number of stacks that are cached."""


@runtime_checkable
class HasPPOLearner(Protocol):
    """Agent whose updates may be computed together with those of similar agents."""

    @property
    def learner(self) -> PPO | None:
        """PPO learner, if the agent's `update` does nothing but update it; else None."""
        ...


class BatchedTrainer:
    """Trainer of agents, of which agent i learns from the i-th of equal groups of games.

    Each agent gets the update that it would compute alone. Agents are batched if they learn by PPO with networks of one
    shape, without memory, teacher or stop by KL (whose numbers of epochs would differ), with equal hyperparameters and
    with optimizers at the same step. Results are bit for bit independent of the other agents. All other agents are
    updated one after the other.

    Args:
        agents: one agent for each group of games.
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        self.agents = agents
        self._learners = _find_stackable_learners(agents)
        self._stacks: dict[tuple[int, ...], StackedOptimizerStep] = {}

    @classmethod
    def reuse_or_create(cls, agents: Sequence[Agent], previous: BatchedTrainer | None) -> BatchedTrainer:
        """Return a trainer of these agents, which is `previous` if that trains the same agents."""
        return previous if previous is not None and list(previous.agents) == list(agents) else cls(agents)

    def update(self, rollout: Rollout, generators: Sequence[torch.Generator]) -> list[dict[str, float] | Diverged]:
        """Update every policy; return its metrics, or the exception if its losses are not finite.

        Args:
            rollout: rollout of all games.
            generators: generator of each agent's minibatches: distinct objects, which may have equal states.

        Raises:
            ConfigError: see `PPO.update`.
        """
        if self._learners is None:
            arguments = zip(self.agents, split_rollout(rollout, len(self.agents)), generators, strict=True)
            return [_update_alone(*x) for x in arguments]
        results: dict[int, dict[str, float] | Diverged] = {}
        for group in self._group_by_step(self._learners):
            results |= self._update_stacked(self._learners, group, rollout, [generators[i] for i in group])
        return [results[i] for i in range(len(results))]

    @staticmethod
    def _group_by_step(learners: Sequence[PPO]) -> list[list[int]]:
        """Return the indices of learners, in groups whose optimizer steps can be taken together."""
        keys = [(ppo.settings, [_make_step_key(updater) for updater in ppo.updaters]) for ppo in learners]
        first_indices = [keys.index(key) for key in keys]
        return [[i for i, first in enumerate(first_indices) if first == k] for k in sorted(set(first_indices))]

    def _update_stacked(
        self, all_learners: Sequence[PPO], group: Sequence[int], rollout: Rollout, generators: Sequence[torch.Generator]
    ) -> dict[int, dict[str, float] | Diverged]:
        """Update the agents of a group, whose networks are stacked; return metrics or an exception by agent index."""
        learners = [all_learners[i] for i in group]
        if rollout.features is not None:
            rollout = replace(rollout, features=pad_inputs(rollout.features))  # once rather than in every minibatch
        for ppo in learners:
            ppo.begin_update(rollout)
        first_learner = learners[0]
        networks = [network for ppo in learners for network, _ in ppo.policy.list_networks()]
        optimizer_steps = [updater for ppo in learners for updater in ppo.updaters]

        def iterate_updaters(n_samples: int) -> Iterator[tuple[slice, Updater]]:
            n_cells = count_cells(networks[0], rollout.observation)  # type: ignore[arg-type]
            for network_slice in choose_stack_slices(networks, n_samples, n_cells):  # type: ignore[arg-type]
                stack = self._get_stack(tuple(group), network_slice, networks[network_slice])  # type: ignore[arg-type]
                stack.read(optimizer_steps[network_slice])
                yield network_slice, stack
                stack.write_back()

        indices = index_network_samples(rollout.reward.shape, len(all_learners), len(first_learner.updaters))
        indices = indices.view(len(all_learners), -1, indices.shape[1])[list(group)].flatten(0, 1)
        estimates = first_learner.estimate_advantages(rollout)
        return dict(zip(group, fit(learners, rollout, *estimates, generators, iterate_updaters, indices), strict=True))

    def _get_stack(self, group: tuple[int, ...], part: slice, networks: Sequence[ActorCritic]) -> StackedOptimizerStep:
        """Return the cached stack of `networks`, which are the slice `part` of the group's networks."""
        key = (part.start, part.stop, *group)
        if key not in self._stacks:
            if len(self._stacks) >= MAX_CACHED_STACKS:
                self._stacks.clear()
            self._stacks[key] = StackedOptimizerStep(StackedNetwork(networks))
        return self._stacks[key]


def _update_alone(agent: Agent, rollout: Rollout, generator: torch.Generator) -> dict[str, float] | Diverged:
    """Return the metrics of the update of a single agent, or the exception that ended it."""
    try:
        return agent.update(rollout, generator)
    except Diverged as error:
        return error


def _find_stackable_learners(agents: Sequence[Agent]) -> list[PPO] | None:
    """Return the agents' learners if all can be trained in stacks, else None. Their hyperparameters may differ."""
    learners = [agent.learner for agent in agents if isinstance(agent, HasPPOLearner)]
    candidates = [ppo for ppo in learners if type(ppo) is PPO and type(ppo.policy) is SocietyPolicy]
    if len(candidates) < len(agents) or len({id(ppo.policy) for ppo in candidates}) < len(agents):
        return None
    policy = candidates[0].policy
    have_same_structure = all(
        ppo.is_stackable
        and ppo.policy.channels == policy.channels
        and [agents for _, agents in ppo.policy.list_networks()] == [agents for _, agents in policy.list_networks()]
        for ppo in candidates
    )
    networks = [network for ppo in candidates for network, _ in ppo.policy.list_networks()]
    return candidates if have_same_structure and are_stackable(networks) else None


class StackedOptimizerStep:
    """Updater of stacked networks that takes the steps of their `OptimizerStep`s in one computation.

    The results of a network are bit for bit independent of the other networks in the stack, because sums run along the
    last axis, over each network's own numbers.

    A loss is a vector [k] with one element per network. Adam works elementwise, so one optimizer over the stacked
    parameters equals one for each network; the gradient of a network is clipped by its norm.

    Between `read` and `write_back`, the ordinary updaters and their networks stay unchanged.

    Args:
        stack: the stacked networks.
    """

    def __init__(self, stack: StackedNetwork) -> None:
        self.stack = stack
        trainable = {name: p for name, p in stack.network.named_parameters() if p.requires_grad}
        self._parameter_by_name = trainable
        self.parameters = list(trainable.values())
        self._member_parameters = [members for p, members in stack.parameters if p.requires_grad]
        self._optimizer_steps: Sequence[OptimizerStep] = ()

    def read(self, optimizer_steps: Sequence[OptimizerStep]) -> None:
        """Copy weights, moments and step size of `optimizer_steps`, one updater per network, all at the same step."""
        self.stack.read()
        self._optimizer_steps = optimizer_steps
        group = optimizer_steps[0].optimizer.param_groups[0]
        self.optimizer = Adam(self.parameters, lr=group["lr"], eps=group["eps"], betas=group["betas"], fused=True)
        for p, members in zip(self.parameters, self._member_parameters, strict=True):
            pairs = zip(optimizer_steps, members, strict=True)
            states = [state for updater, member in pairs if (state := updater.optimizer.state.get(member))]
            if states:
                stack_state = self.optimizer.state[p] = {"step": states[0]["step"].clone()}
                for name in MOMENT_KEYS:
                    stack_state[name] = torch.zeros_like(p)
                    torch._foreach_copy_(
                        make_member_views(stack_state[name], members[0]), [state[name] for state in states]
                    )

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        outputs, value = self.stack.network(batch)
        return outputs, value

    def step(self, batch: Batch, loss: LossFunction) -> LossRecord:
        losses, record = loss(batch)
        self.optimizer.zero_grad()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        norms = []
        for names in self._optimizer_steps[0].clipping_groups:
            gradients = [g for name in names if (g := self._parameter_by_name[name].grad) is not None]
            if gradients:
                norms.append(self._clip_gradients(gradients))
        self.optimizer.step()
        return record | {"grad_norm": torch.linalg.vector_norm(torch.stack(norms, dim=-1), dim=-1)}

    def _clip_gradients(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Clip the gradient norm of each network; return the norms before, [k]."""
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients], dim=-1)
        total_norms: torch.Tensor = torch.linalg.vector_norm(norms, dim=-1)
        scale = (self._optimizer_steps[0].max_grad_norm / (total_norms + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, [scale.view(-1, *[1] * (g.dim() - 1)) for g in gradients])
        return total_norms

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy weights to the networks, and moments and steps to the ordinary optimizers."""
        self.stack.write()
        new_moments: list[torch.Tensor] = []
        old_moments: list[torch.Tensor] = []
        for p, members in zip(self.parameters, self._member_parameters, strict=True):
            if not (state := self.optimizer.state.get(p)):
                continue
            moments = {name: make_member_views(state[name], members[0]) for name in MOMENT_KEYS}
            for i, (updater, parameter) in enumerate(zip(self._optimizer_steps, members, strict=True)):
                updater_state = updater.optimizer.state[parameter]
                updater_state["step"] = state["step"].clone()
                for name in MOMENT_KEYS:
                    new_moments.append(moments[name][i])
                    old_moments.append(updater_state.setdefault(name, torch.empty_like(parameter)))
        if new_moments:
            torch._foreach_copy_(old_moments, new_moments)


def _make_step_key(updater: OptimizerStep) -> list[object]:
    """Return the settings of an updater, and the number of steps of each parameter."""
    [group] = updater.optimizer.param_groups
    states = [updater.optimizer.state.get(p) for p in updater.parameters]
    steps = [float(state["step"]) if state else None for state in states]
    return [updater.max_grad_norm, updater.clipping_groups, group["lr"], group["eps"], group["betas"], steps]
