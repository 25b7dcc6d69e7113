"""The updates of several societies, in one batched computation where their networks can be stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch

from llmrl.algorithms.minibatches import split_minibatches
from llmrl.algorithms.optimizer_step import Batch, Loss, OptimizerStep, Record
from llmrl.algorithms.ppo import OWN, PPO, unexplained_variance
from llmrl.algorithms.societies.partitioned_policy import split
from llmrl.algorithms.societies.stacked_networks import StackedNetwork, cells_of, places, stackable, stacks
from llmrl.core.errors import Diverged
from llmrl.core.protocols import Agent
from llmrl.core.rollouts import Rollout
from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.multi_agent_policy import SocietyPolicy

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What Adam keeps of a parameter beside its step."""
STACKS = 32
"""Stacks that are kept to be used again."""


@runtime_checkable
class HasPPOLearner(Protocol):
    """An agent whose learning may be computed together with that of others like it."""

    @property
    def learner(self) -> PPO | None:
        """The learner whose update is all that the agent's `update` does; None: there is none, or it does more."""
        ...


class BatchedTrainer:
    """Agents that each learn from their own equal group of games, in order: the updates each would make alone.

    Agents that learn by PPO with a network of the same shape, no memory, no teacher and no stop by KL (whose epochs
    would differ) are computed in batches, of those whose learning numbers are equal and whose optimizers are at the
    same step. What an agent learns is the same, to the last bit, whatever is beside it and however little. All other
    agents update by themselves, one after the other.

    Args:
        agents: one a group of games.
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        self.agents = agents
        self._learners = _stackable_learners(agents)
        self._stacks: dict[tuple[int, ...], StackedOptimizerStep] = {}

    @classmethod
    def of(cls, agents: Sequence[Agent], kept: BatchedTrainer | None) -> BatchedTrainer:
        """Return a trainer of these agents: the one that is kept, if they are its agents."""
        return kept if kept is not None and list(kept.agents) == list(agents) else cls(agents)

    def update(self, rollout: Rollout, generators: Sequence[torch.Generator]) -> list[dict[str, float] | Diverged]:
        """Improve every policy; returns the metrics of each, or what stopped it: its losses are no numbers any more.

        Args:
            rollout: of all games.
            generators: of each agent's minibatches; one object each, though they may stand at the same number.

        Raises:
            ConfigError: as `PPO.update`.
        """
        if self._learners is None:
            each = zip(self.agents, split(rollout, len(self.agents)), generators, strict=True)
            return [_told(*own) for own in each]
        found: dict[int, dict[str, float] | Diverged] = {}
        for alike in self._alike(self._learners):
            found |= self._stacked(self._learners, alike, rollout, [generators[i] for i in alike])
        return [found[i] for i in range(len(found))]

    @staticmethod
    def _alike(learners: Sequence[PPO]) -> list[list[int]]:
        """Numbers of the learners, in groups whose steps can be taken together."""
        groups: list[tuple[object, list[int]]] = []
        for i, ppo in enumerate(learners):
            place = (ppo.settings, [_place(each) for each in ppo.updaters])
            for other, members in groups:
                if other == place:
                    members.append(i)
                    break
            else:
                groups.append((place, [i]))
        return [members for _, members in groups]

    def _stacked(
        self, learners: Sequence[PPO], alike: Sequence[int], rollout: Rollout, generators: Sequence[torch.Generator]
    ) -> dict[int, dict[str, float] | Diverged]:
        """The updates of some of the agents, whose networks are stacked, by their numbers."""
        own = [learners[i] for i in alike]
        for ppo in own:
            ppo.begin(rollout)
        first, k = own[0], len(own)
        networks = [network for ppo in own for network, _ in ppo.policy.groups()]
        updaters = [updater for ppo in own for updater in ppo.updaters]
        advantage, target = first.estimate(rollout)
        steps, games = len(advantage), advantage.shape[1] // len(learners)
        index = sample_indices(rollout.reward.shape, len(learners), len(first.updaters))
        index = index.view(len(learners), -1, index.shape[1])[list(alike)].flatten(0, 1)
        # What is indexed lies as its index does: contiguously, whoever is beside it.
        where = index.contiguous().to(advantage.device)
        weight = torch.empty_like(advantage).flatten()
        weight[where] = first.normalize_over_rollout(advantage.flatten()[where], steps, games)
        data = first.samples(rollout, slice(None)) | {"advantage": weight, "target": target.flatten()}
        orders = torch.stack([self._orders(first, generator, where.shape[1]) for generator in generators])
        orders = orders.flatten(0, 1).to(where.device)
        size, drop_last = first.settings.minibatch_size, first.settings.drop_last
        samples = min(size or where.shape[1], where.shape[1])
        records = []
        for part in stacks(networks, samples, cells_of(networks[0], rollout.observation)):  # type: ignore[arg-type]
            stacked = self._stack(tuple(alike), part, networks[part])  # type: ignore[arg-type]
            stacked.read(updaters[part])
            minibatches = StackedMinibatches(data, where[part], orders[part], size, drop_last)
            records.append(first.epochs(stacked, minibatches.epochs()))
            stacked.write_back()
        means = _means(records).view(len(OWN), k, -1).mean(2)
        unexplained = unexplained_variance(*(x.detach().flatten()[where].view(k, -1) for x in (target, rollout.value)))
        columns = torch.cat([means, unexplained[None]]).T.tolist()
        taken = len(records[0]) * len(first.updaters)
        return {i: _reported(ppo, x, taken) for i, ppo, x in zip(alike, own, columns, strict=True)}

    def _stack(self, alike: tuple[int, ...], part: slice, networks: Sequence[ActorCritic]) -> StackedOptimizerStep:
        """The stack of a part of some agents' networks; one for each that there was."""
        key = (part.start, part.stop, *alike)
        if key not in self._stacks:
            if len(self._stacks) >= STACKS:
                self._stacks.clear()
            self._stacks[key] = StackedOptimizerStep(StackedNetwork(networks))
        return self._stacks[key]

    @staticmethod
    def _orders(ppo: PPO, generator: torch.Generator, n: int) -> torch.Tensor:
        """What a society draws for its minibatches, [n_networks, epochs, n], network after network."""
        draws = range(len(ppo.updaters) * ppo.settings.epochs)
        drawn = [torch.randperm(n, generator=generator, device=generator.device) for _ in draws]
        return torch.stack(drawn).view(len(ppo.updaters), ppo.settings.epochs, n)


def _reported(ppo: PPO, means: Sequence[float], steps: int) -> dict[str, float] | Diverged:
    try:
        return ppo.report(means[:-1], steps, means[-1])
    except Diverged as end:
        return end


def _told(agent: Agent, rollout: Rollout, generator: torch.Generator) -> dict[str, float] | Diverged:
    """The metrics of an agent's own update, or what stopped it."""
    try:
        return agent.update(rollout, generator)
    except Diverged as end:
        return end


def sample_indices(shape: Sequence[int], societies: int, groups: int) -> torch.Tensor:
    """Which samples of a rollout [T, n_envs, n_agents], flattened, are each network's own: [societies * groups, n], a
    society's networks side by side, its samples in the order of its own rollout. A network plays n_agents / groups."""
    steps, games, agents = shape
    index = torch.arange(steps * games * agents).view(steps, societies, games // societies, groups, agents // groups)
    return index.permute(1, 3, 0, 2, 4).reshape(societies * groups, -1)


def _stackable_learners(agents: Sequence[Agent]) -> list[PPO] | None:
    """The agents' learners, if they can be computed together; their learning numbers may differ."""
    learners = [agent.learner for agent in agents if isinstance(agent, HasPPOLearner)]
    found = [ppo for ppo in learners if type(ppo) is PPO and type(ppo.policy) is SocietyPolicy]
    if len(found) < len(agents) or len({id(ppo.policy) for ppo in found}) < len(agents):
        return None
    first = found[0].policy
    for ppo in found:
        s = ppo.settings
        if ppo.teacher is not None or s.target_kl is not None:
            return None
        if s.scale_rewards or s.normalize_values or s.joint_ratio:
            return None
        if any(type(each) is not OptimizerStep or each.divided for each in ppo.updaters):
            return None
    alike = all(
        ppo.policy.channels == first.channels
        and [agents for _, agents in ppo.policy.groups()] == [agents for _, agents in first.groups()]
        for ppo in found
    )
    if not alike or first.recurrent:
        return None
    return found if stackable([network for ppo in found for network, _ in ppo.policy.groups()]) else None


def _means(records: Sequence[Sequence[Record]]) -> torch.Tensor:
    """Means over steps of what stacks recorded, in the order of `OWN`: [len(OWN), n_networks]."""
    parts = [torch.stack([torch.stack([step[name] for name in OWN]) for step in each], dim=-1) for each in records]
    return torch.cat([part.mean(-1) for part in parts], dim=1)


class StackedOptimizerStep:
    """The steps that `OptimizerStep` updaters would make one after the other; those of a network, to the last bit, the
    same whatever is stacked with it. Sums go along the last axis, each network's numbers side by side.

    A loss is a vector [k], one number a network. As Adam works number by number, one of torch's over the stacked
    parameters is one for each network; a gradient is scaled down by the norm of its own network's part alone.

    Between `read` and `write_back` the ordinary updaters and their networks stay as they were.

    Args:
        stack: the networks.
    """

    def __init__(self, stack: StackedNetwork) -> None:
        self.stack = stack
        named = {name: p for name, p in stack.network.named_parameters() if p.requires_grad}
        self._named = named
        self.parameters = list(named.values())
        self._members = [members for p, members in stack.parameters if p.requires_grad]
        self._ordinary: Sequence[OptimizerStep] = ()

    def read(self, ordinary: Sequence[OptimizerStep]) -> None:
        """Begin with the weights, moments and step size of `ordinary`, one a network, all of them at one step."""
        self.stack.read()
        self._ordinary = ordinary
        group = ordinary[0].optimizer.param_groups[0]
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=group["lr"], eps=group["eps"], betas=group["betas"], fused=True
        )
        for p, members in zip(self.parameters, self._members, strict=True):
            states = [each.optimizer.state.get(own) for each, own in zip(ordinary, members, strict=True)]
            found = [state for state in states if state]
            if found:
                kept = self.optimizer.state[p] = {"step": found[0]["step"].clone()}
                for name in MOMENTS:
                    kept[name] = torch.zeros_like(p)
                    torch._foreach_copy_(places(kept[name], members[0]), [state[name] for state in found])

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
        """Scale each network's gradients down together; returns the norms before, [k]."""
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in gradients], dim=-1)
        norm: torch.Tensor = torch.linalg.vector_norm(norms, dim=-1)
        scale = (self._ordinary[0].max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, [scale.view(-1, *[1] * (g.dim() - 1)) for g in gradients])
        return norm

    @torch.no_grad()
    def write_back(self) -> None:
        """Give the networks their weights, and the ordinary optimizers their moments and steps."""
        self.stack.write()
        new: list[torch.Tensor] = []
        old: list[torch.Tensor] = []
        for p, members in zip(self.parameters, self._members, strict=True):
            if not (state := self.optimizer.state.get(p)):
                continue
            moments = {name: places(state[name], members[0]) for name in MOMENTS}
            for i, (each, own) in enumerate(zip(self._ordinary, members, strict=True)):
                kept = each.optimizer.state[own]
                kept["step"] = state["step"].clone()
                for name in MOMENTS:
                    new.append(moments[name][i])
                    old.append(kept.setdefault(name, torch.empty_like(own)))
        if new:
            torch._foreach_copy_(old, new)


class StackedMinibatches:
    """Minibatches of several networks at once: [k, b, ...], as Minibatches would deal them to each.

    Args:
        data: samples of all networks by name, each [n_all, ...].
        where: which of them are each network's own, [k, n] int64.
        orders: of each network's own, [k, epochs, n] int64: a permutation an epoch.
        size: samples of a minibatch and network; None: all.
        drop_last: leave the last minibatch of an epoch out if it is smaller.
    """

    def __init__(
        self, data: Batch, where: torch.Tensor, orders: torch.Tensor, size: int | None, drop_last: bool = False
    ) -> None:
        self.data, self.where, self.orders = data, where, orders
        self.size, self.drop_last = size, drop_last

    def epochs(self) -> Iterator[Iterator[Batch]]:
        """The minibatches of each epoch.

        Raises:
            ConfigError: as `split_minibatches`.
        """
        for order in self.orders.unbind(1):
            yield self._epoch(self.where.gather(1, order))

    def _epoch(self, order: torch.Tensor) -> Iterator[Batch]:
        for chosen in split_minibatches(order, self.size, self.drop_last):
            own = chosen.flatten()  # rows are picked by one list in half the time that a table of them takes
            yield {name: x.index_select(0, own).view(*chosen.shape, *x.shape[1:]) for name, x in self.data.items()}


def _place(updater: OptimizerStep) -> list[object]:
    """Settings, and the steps that each parameter has made."""
    [group] = updater.optimizer.param_groups
    states = [updater.optimizer.state.get(p) for p in updater.parameters]
    steps = [float(state["step"]) if state else None for state in states]
    return [updater.max_grad_norm, updater.parts, group["lr"], group["eps"], group["betas"], steps]
