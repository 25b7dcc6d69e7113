"""The updates of several societies, in one batched computation where their networks can be stacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from llmrl.core.protocols import Agent
from llmrl.core.rollouts import Rollout
from llmrl.learners.ppo import OWN, PPO, unexplained_variance
from llmrl.learners.side_by_side import split
from llmrl.learners.stacked import Dealt, Stacked, alike
from llmrl.learners.updaters import Record
from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.society import SocietyPolicy
from llmrl.networks.stacked import StackedNetwork, cells_of, stackable, stacks


@runtime_checkable
class LearnsByPPO(Protocol):
    """An agent whose learning may be computed together with that of others like it."""

    @property
    def learner(self) -> PPO | None:
        """The learner whose update is all that the agent's `update` does; None: there is none, or it does more."""
        ...


class Together:
    """Agents that each learn from their own equal group of games, in order: the updates each would make alone.

    They are computed in one batch, to float tolerance, where agents learn by PPO with the same settings, a network of
    the same shape, no memory, no teacher and no stop by KL (whose epochs would differ). Otherwise, and where one after
    the other is faster (convolutions of large minibatches on a processor), each agent updates by itself.

    Args:
        agents: one a group of games.
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        self.agents = agents
        self._learners = _stackable_learners(agents)
        self._stacks: dict[tuple[int, int], Stacked] = {}

    def update(self, rollout: Rollout, generators: Sequence[torch.Generator]) -> list[dict[str, float]]:
        """Improve every policy; returns the metrics of each.

        Args:
            rollout: of all games.
            generators: of each agent's minibatches; one object each, though they may stand at the same number.

        Raises:
            ConfigError, Diverged: as `PPO.update`.
        """
        if self._learners is not None:
            networks = [network for ppo in self._learners for network, _ in ppo.policy.groups()]
            pieces = stacks(networks, *self._minibatch(rollout))  # type: ignore[arg-type]
            updaters = [updater for ppo in self._learners for updater in ppo.updaters]
            if any(piece.stop - piece.start > 1 for piece in pieces) and alike(updaters):
                return self._stacked(self._learners, rollout, generators, pieces)
        rollouts = split(rollout, len(self.agents))
        parts = zip(self.agents, rollouts, generators, strict=True)
        return [agent.update(own, generator) for agent, own, generator in parts]

    def _minibatch(self, rollout: Rollout) -> tuple[int, int]:
        """Samples in a minibatch of one network, and the cells of a sample's map or picture."""
        assert self._learners is not None
        first = self._learners[0]
        network, agents = first.policy.groups()[0]
        assert isinstance(network, ActorCritic)
        n = rollout.reward[:, :, agents].numel() // len(self.agents)
        return min(first.settings.minibatch_size or n, n), cells_of(network, rollout.observation)

    def _stacked(
        self, learners: Sequence[PPO], rollout: Rollout, generators: Sequence[torch.Generator], parts: Sequence[slice]
    ) -> list[dict[str, float]]:
        for ppo in learners:
            ppo.begin(rollout)
        first, k = learners[0], len(learners)
        advantage, target = first.estimate(rollout)
        data = first.samples(rollout, slice(None))
        where = owned(rollout.reward.shape, k, len(first.updaters)).to(advantage.device)
        weight = torch.empty_like(advantage).flatten()
        weight[where] = first.over_rollout(advantage.flatten()[where], len(advantage), advantage.shape[1] // k)
        data |= {"advantage": weight, "target": target.flatten()}
        orders = torch.stack([self._orders(first, generator, where.shape[1]) for generator in generators])
        orders = orders.flatten(0, 1).to(where.device)
        updaters = [updater for ppo in learners for updater in ppo.updaters]
        records = []
        for part in parts:
            stacked = self._stack(learners, part)
            stacked.read(updaters[part])
            settings = first.settings
            dealt = Dealt(data, where[part], orders[part], settings.minibatch_size, settings.drop_last)
            records.append(first.epochs(stacked, dealt.epochs()))
            stacked.write_back()
        means = _means(records).view(len(OWN), k, -1).mean(2)
        unexplained = unexplained_variance(*(_by_society(x, k) for x in (target, rollout.value)))
        columns = torch.cat([means, unexplained[None]]).T.tolist()
        steps = len(records[0]) * len(first.updaters)
        return [ppo.report(own[:-1], steps, own[-1]) for ppo, own in zip(learners, columns, strict=True)]

    def _stack(self, learners: Sequence[PPO], part: slice) -> Stacked:
        key = (part.start, part.stop)
        if key not in self._stacks:
            networks = [network for ppo in learners for network, _ in ppo.policy.groups()][part]
            self._stacks[key] = Stacked(StackedNetwork(networks))  # type: ignore[arg-type]
        return self._stacks[key]

    @staticmethod
    def _orders(ppo: PPO, generator: torch.Generator, n: int) -> torch.Tensor:
        """What a society draws for its minibatches, [n_networks, epochs, n], network after network."""
        draws = range(len(ppo.updaters) * ppo.settings.epochs)
        drawn = [torch.randperm(n, generator=generator, device=generator.device) for _ in draws]
        return torch.stack(drawn).view(len(ppo.updaters), ppo.settings.epochs, n)


def owned(shape: Sequence[int], societies: int, groups: int) -> torch.Tensor:
    """Which samples of a rollout [T, n_envs, n_agents], flattened, are each network's own: [societies * groups, n], a
    society's networks side by side, its samples in the order of its own rollout. A network plays n_agents / groups."""
    steps, games, agents = shape
    index = torch.arange(steps * games * agents).view(steps, societies, games // societies, groups, agents // groups)
    return index.permute(1, 3, 0, 2, 4).reshape(societies * groups, -1)


def _stackable_learners(agents: Sequence[Agent]) -> list[PPO] | None:
    """The agents' learners, if they can be computed together."""
    learners = [agent.learner for agent in agents if isinstance(agent, LearnsByPPO)]
    found = [ppo for ppo in learners if type(ppo) is PPO and type(ppo.policy) is SocietyPolicy]
    if len(found) < len(agents) or len({id(ppo.policy) for ppo in found}) < len(agents):
        return None
    first = found[0]
    agree = all(
        ppo.settings == first.settings
        and ppo.teacher is None
        and ppo.policy.channels == first.policy.channels
        and [agents for _, agents in ppo.policy.groups()] == [agents for _, agents in first.policy.groups()]
        for ppo in found
    )
    if not agree or first.settings.target_kl is not None or first.settings.scale_rewards or first.policy.recurrent:
        return None
    return found if stackable([network for ppo in found for network, _ in ppo.policy.groups()]) else None


def _means(records: Sequence[Sequence[Record]]) -> torch.Tensor:
    """Means over steps of what stacks recorded, in the order of `OWN`: [len(OWN), n_networks]."""
    parts = [torch.stack([torch.stack([step[name] for name in OWN]) for step in each]).mean(0) for each in records]
    return torch.cat(parts, dim=1)


def _by_society(x: torch.Tensor, societies: int) -> torch.Tensor:
    """[T, n_envs, n_agents] -> [societies, n]."""
    return x.detach().reshape(len(x), societies, -1).transpose(0, 1).flatten(1)
