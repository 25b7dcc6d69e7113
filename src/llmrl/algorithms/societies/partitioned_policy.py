"""Several societies in one batch: each plays its own, equally large group of games and learns from it alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from llmrl.algorithms.societies.stacked_networks import StackedNetwork, cells_of, stackable, stacks
from llmrl.core.observers import StepObserver, Transition
from llmrl.core.protocols import Camera, NeedsCamera, Policy, unchanged
from llmrl.core.records import Observation, PolicyOutput
from llmrl.core.rollouts import Rollout
from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.multi_agent_policy import SocietyPolicy

ROWS = 8
"""Multiple to which samples are padded: products of 7 rows take a CPU a fifth longer than of 8."""


class PartitionedPolicy:
    """Policy composed of policies that each play one group of games, in order; all groups are equally large.

    Groups that share a generator draw the same random numbers for their actions. Started from the same games
    (`VecEnv.reset`), they compare their policies under common random numbers.

    Networks of one shape, even a single one, are computed in one batch (`stacked_networks`). The output of a policy is
    therefore the same to the last bit whatever other policies there are. Weights are stacked once within `unchanged`
    (`Memoizing`), and at every call outside of it.

    Args:
        policies: policies, one for each group.
        games: games of each group.

    Attributes:
        stackable: whether the policies are computed in one batch.
    """

    def __init__(self, policies: Sequence[Policy], games: int) -> None:
        self.policies, self.games = policies, games
        self.channels = policies[0].channels
        self.stackable = stackable_policies(policies)
        self._stacked: StackedPolicies | None = None
        self._held = False  # inside `unchanged`
        self._current = False  # the weights were stacked inside the present `unchanged`

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Promise that all policies stay unchanged within the `with` block, as in `Memoizing`."""
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
    ) -> PolicyOutput:
        assert generator is not None
        own = [generator] * len(self.policies) if isinstance(generator, torch.Generator) else list(generator)
        if (stacked := self._stack(observation)) is not None:
            return stacked.act(observation, own, greedy)
        start, acts = {id(each): each.get_state() for each in own}, []
        for i, policy in enumerate(self.policies):
            own[i].set_state(start[id(own[i])])
            acts.append(policy.act(self._own(observation, i), self._games(state, i), own[i], greedy))
        return PolicyOutput(
            action=torch.cat([act.action for act in acts]),
            log_prob=_joined([act.log_prob for act in acts]),
            value=_joined([act.value for act in acts]),
            features=_joined([act.features for act in acts]),
            state=_joined([act.state for act in acts]),
            logits=_joined([act.logits for act in acts]),
            entropy=_joined([act.entropy for act in acts]),
            notes=[row for act in acts for row in act.notes or ()] if all(act.notes for act in acts) else None,
        )

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        if (stacked := self._stack(observation)) is not None:
            return stacked.values(observation)
        policies = enumerate(self.policies)
        return torch.cat([policy.values(self._own(observation, i), self._games(state, i)) for i, policy in policies])

    def _stack(self, observation: dict[str, torch.Tensor]) -> StackedPolicies | None:
        """Return the stacked policies with current weights; None if they cannot be stacked."""
        if not self.stackable:
            return None
        if self._stacked is None:
            self._stacked = StackedPolicies(self.policies, self.games, observation)  # type: ignore[arg-type]
        elif not (self._held and self._current):
            self._stacked.read()
        self._current = self._held
        return self._stacked

    def _own(self, observation: dict[str, torch.Tensor], i: int) -> dict[str, torch.Tensor]:
        return {name: x[i * self.games : (i + 1) * self.games] for name, x in observation.items()}

    def _games(self, state: torch.Tensor | None, i: int) -> torch.Tensor | None:
        return None if state is None else state[i * self.games : (i + 1) * self.games]


class ToldPartitionedPolicy(PartitionedPolicy):
    """`PartitionedPolicy` of policies some of which are told of steps (`StepObserver`), each of its own games."""

    def __init__(self, policies: Sequence[Policy], games: int) -> None:
        super().__init__(policies, games)
        self._camera: Camera | None = None

    @property
    def camera(self) -> Camera | None:
        """Frames of all games; set by whoever plays, for the policies that are shown frames."""
        return self._camera

    @camera.setter
    def camera(self, camera: Camera | None) -> None:
        self._camera = camera
        for i, policy in enumerate(self.policies):
            if isinstance(policy, NeedsCamera):
                policy.camera = None if camera is None else _from(camera, i * self.games)

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        for i, policy in enumerate(self.policies):
            if isinstance(policy, StepObserver):
                own = self._place(i)
                policy.on_reset(games[own], {name: x[own] for name, x in observation.items()})

    def on_step(self, transition: Transition) -> None:
        for i, policy in enumerate(self.policies):
            if isinstance(policy, StepObserver):
                policy.on_step(transition.part(self._place(i), slice(None)))

    def _place(self, i: int) -> slice:
        return slice(i * self.games, (i + 1) * self.games)


def partitioned(policies: Sequence[Policy], games: int) -> PartitionedPolicy:
    """Return policies as one policy, which is told of steps if one of them is."""
    told = any(isinstance(policy, StepObserver) for policy in policies)
    return ToldPartitionedPolicy(policies, games) if told else PartitionedPolicy(policies, games)


def _from(camera: Camera, first: int) -> Camera:
    return lambda game: camera(first + game)


class StackedPolicies:
    """Batched computation of `SocietyPolicy`s that each play their own, equally large group of games, in order.

    Args:
        policies: K `stackable_policies`, each with G networks of k agents.
        games: games of each policy.
        observation: example observation of all games.
    """

    def __init__(self, policies: Sequence[SocietyPolicy], games: int, observation: dict[str, torch.Tensor]) -> None:
        self.policies, self.games = policies, games
        self._groups = len(policies[0].members)
        members = [network for policy in policies for network, _ in policy.groups()]
        agents = policies[0].n_agents // self._groups
        self._samples = games * agents
        self._parts = stacks(members, self._samples, cells_of(members[0], observation))
        self._stacks = [StackedNetwork(members[part]) for part in self._parts]

    def read(self) -> None:
        """Copy the weights of the policies."""
        for stack in self._stacks:
            stack.read()

    @torch.inference_mode()
    def act(
        self, observation: dict[str, torch.Tensor], generators: Sequence[torch.Generator], greedy: bool = False
    ) -> PolicyOutput:
        """Return the actions of all games; groups that share a generator object draw the same numbers."""
        outputs, value, features = self._play(observation)
        actions = self.policies[0].distribution
        if greedy:
            action = actions.mode(outputs)
        else:
            action = actions.choose(outputs, self._uniform(outputs, actions.n_draws, generators))
        log_prob, entropy = actions.log_prob_entropy(outputs, action)
        kept = features if self.policies[0].core_frozen else None
        logits = outputs if actions.logits else None
        return PolicyOutput(action, log_prob, value, kept, logits=logits, entropy=entropy)

    @torch.inference_mode()
    def values(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return state values [n_envs, n_agents]."""
        return self._play(observation)[1]

    def _play(self, observation: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return outputs [n_envs, n_agents, n_outputs], values [n_envs, n_agents], features [n_envs, n_agents, F]."""
        samples = {name: self._dealt(x) for name, x in self.policies[0].extended(observation).items()}
        found = []
        for part, stack in zip(self._parts, self._stacks, strict=True):
            own = {name: x[part] for name, x in samples.items()}
            network: ActorCritic = stack.network
            features = network.encode(own)
            found.append((network.outputs(features, own.get("action_mask")), network.value(features, own), features))
        outputs, value, features = (
            self._gathered(torch.cat(parts)[:, : self._samples]) for parts in zip(*found, strict=True)
        )
        return outputs, value, features

    def _dealt(self, x: torch.Tensor) -> torch.Tensor:
        """Map [n_envs, n_agents, ...] to [K * G, games * k, ...], padded with zeros to a multiple of `ROWS`."""
        k = x.shape[1] // self._groups
        split = x.reshape(-1, self.games, self._groups, k, *x.shape[2:])  # [K, games, G, k, ...]
        samples = split.transpose(1, 2).flatten(2, 3).flatten(0, 1)
        if not (missing := -self._samples % ROWS):
            return samples
        return functional.pad(samples, (*[0, 0] * (samples.dim() - 2), 0, missing))

    def _gathered(self, x: torch.Tensor) -> torch.Tensor:
        """Invert `_dealt` for unpadded samples."""
        k = x.shape[1] // self.games
        split = x.reshape(-1, self._groups, self.games, k, *x.shape[2:])  # [K, G, games, k, ...]
        return split.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def _uniform(self, outputs: torch.Tensor, n: int, generators: Sequence[torch.Generator]) -> torch.Tensor:
        """Draw the `n` numbers an action that each policy would draw alone (`sample`), [n_envs, n_agents, n]."""
        shape = (self.games, outputs.shape[1], n)
        drawn: dict[int, torch.Tensor] = {}
        for each in generators:
            if id(each) not in drawn:
                drawn[id(each)] = torch.rand(shape, generator=each, device=each.device, dtype=outputs.dtype)
        return torch.cat([drawn[id(each)] for each in generators]).to(outputs.device, non_blocking=outputs.is_cuda)


def stackable_policies(policies: Sequence[object]) -> bool:
    """Return whether the policies are societies of networks of one shape without memory."""
    found = [policy for policy in policies if type(policy) is SocietyPolicy and not policy.recurrent]
    if len(found) < len(policies):
        return False
    alike = {(policy.n_agents, len(policy.members), policy.core_frozen, policy.channels) for policy in found}
    return len(alike) == 1 and stackable([network for policy in found for network, _ in policy.groups()])


def split(rollout: Rollout, groups: int) -> list[Rollout]:
    """Split a rollout into one rollout per group of games, `groups` equally large ones; tensors are views."""
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
                episode_start=rollout.episode_start[:, own],
                next_value=rollout.next_value[:, own],
                info={name: x[:, own] for name, x in rollout.info.items()},
                episodes=[episode for episode in rollout.episodes if episode.game // games == i],
                reward_jacobian=None if rollout.reward_jacobian is None else rollout.reward_jacobian[:, own],
                state=None if rollout.state is None else rollout.state[own],
            )
        )
    return parts


def _joined(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    given = [x for x in tensors if x is not None]
    return torch.cat(given) if len(given) == len(tensors) else None
