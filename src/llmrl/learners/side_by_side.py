"""Several societies side by side: each plays its own equal group of the games, and learns from it alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch

from llmrl.core.protocols import Policy, unchanged
from llmrl.core.records import Act
from llmrl.core.rollouts import Rollout
from llmrl.networks.stacked_policies import StackedPolicies, stackable_policies


class SideBySide:
    """Policies that each play one of equal groups of games, in order, as one policy.

    Groups given one generator, all of them or some, draw the same random numbers for their actions (and start from the
    same games, `VecEnv.reset`), so that what differs between them is what they were given to compare: common random
    numbers.

    Networks of one shape are computed in one batch, to float tolerance; their weights are put together once in a span
    of `unchanged` (`Memoizing`), and at every call outside of one.

    Args:
        policies: one a group.
        games: of each group.
    """

    def __init__(self, policies: Sequence[Policy], games: int) -> None:
        self.policies, self.games = policies, games
        self.channels = policies[0].channels
        self._stackable = stackable_policies(policies)
        self._stacked: StackedPolicies | None = None
        self._held = False  # inside of `unchanged`
        self._current = False  # the stacked weights are those that the policies have in it

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """As `Memoizing`: all policies stay as they are."""
        with ExitStack() as spans:
            for policy in self.policies:
                spans.enter_context(unchanged(policy))
            if self._held:
                yield
                return
            self._held, self._current = True, False
            try:
                yield
            finally:
                self._held = False

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        greedy: bool = False,
    ) -> Act:
        assert generator is not None
        own = [generator] * len(self.policies) if isinstance(generator, torch.Generator) else list(generator)
        if (stacked := self._stack(observation)) is not None:
            return stacked.act(observation, own, greedy)
        start, acts = {id(each): each.get_state() for each in own}, []
        for i, policy in enumerate(self.policies):
            own[i].set_state(start[id(own[i])])
            acts.append(policy.act(self._own(observation, i), self._games(state, i), own[i], greedy))
        return Act(
            action=torch.cat([act.action for act in acts]),
            log_prob=_joined([act.log_prob for act in acts]),
            value=_joined([act.value for act in acts]),
            features=_joined([act.features for act in acts]),
            state=_joined([act.state for act in acts]),
            logits=_joined([act.logits for act in acts]),
            entropy=_joined([act.entropy for act in acts]),
        )

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        if (stacked := self._stack(observation)) is not None:
            return stacked.values(observation)
        policies = enumerate(self.policies)
        return torch.cat([policy.values(self._own(observation, i), self._games(state, i)) for i, policy in policies])

    def _stack(self, observation: dict[str, torch.Tensor]) -> StackedPolicies | None:
        """The policies as one, if that can be had and pays."""
        if self._stackable and self._stacked is None:
            self._stacked = StackedPolicies(self.policies, self.games, observation)  # type: ignore[arg-type]
            self._stackable = self._stacked.pays
        elif self._stacked is not None and not (self._held and self._current):
            self._stacked.read()
        self._current = self._held
        return self._stacked if self._stackable else None

    def _own(self, observation: dict[str, torch.Tensor], i: int) -> dict[str, torch.Tensor]:
        return {name: x[i * self.games : (i + 1) * self.games] for name, x in observation.items()}

    def _games(self, state: torch.Tensor | None, i: int) -> torch.Tensor | None:
        return None if state is None else state[i * self.games : (i + 1) * self.games]


def split(rollout: Rollout, groups: int) -> list[Rollout]:
    """What each of equal groups of games saw, as a rollout of its own (views, no copies)."""
    if groups == 1:
        return [rollout]
    games = rollout.reward.shape[1] // groups
    parts = []
    for i in range(groups):
        own = slice(i * games, (i + 1) * games)
        parts.append(
            replace(
                rollout,
                observation={name: x[:, own] for name, x in rollout.observation.items()},
                features=None if rollout.features is None else rollout.features[:, own],
                action=rollout.action[:, own],
                log_prob=rollout.log_prob[:, own],
                value=rollout.value[:, own],
                reward=rollout.reward[:, own],
                base_reward=rollout.base_reward[:, own],
                terminated=rollout.terminated[:, own],
                truncated=rollout.truncated[:, own],
                first=rollout.first[:, own],
                next_value=rollout.next_value[:, own],
                info={name: x[:, own] for name, x in rollout.info.items()},
                episodes=[episode for episode in rollout.episodes if episode.game // games == i],
                exposure=None if rollout.exposure is None else rollout.exposure[:, own],
                state=None if rollout.state is None else rollout.state[own],
            )
        )
    return parts


def _joined(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    given = [x for x in tensors if x is not None]
    return torch.cat(given) if len(given) == len(tensors) else None
