"""Policies of several societies (groups of agents) in one batch; each one acts in one of equal groups of games."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from llmrl.algorithms.societies.compiled_acting import CompiledSocieties, is_compilable
from llmrl.algorithms.societies.stacked_networks import StackedNetwork, are_stackable, choose_stack_slices, count_cells
from llmrl.core.model_protocols import ConversationGenerator, ConversingPolicy, merge_conversations, run_conversation
from llmrl.core.observers import StepObserver, Transition
from llmrl.core.protocols import Camera, NeedsCamera, Policy, fixed_weights
from llmrl.core.records import Observation, PolicyOutput
from llmrl.core.rollouts import Rollout
from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.multi_agent_policy import SocietyPolicy

SAMPLE_MULTIPLE = 8
"""Number of which sample counts are padded to a multiple: on a CPU, products of 7 rows take 20% longer than of 8."""


class PartitionedPolicy:
    """Policy composed of several policies, of which policy i acts in the i-th of equal groups of games.

    Groups that share a generator use the same random numbers for their actions. Started from the same games
    (`VecEnv.reset`), they compare their policies under common random numbers.

    Networks of one shape, even a single one, are computed in one batch (`stacked_networks`). The output of a policy is
    therefore bit for bit independent of the other policies. Weights are stacked once within `fixed_weights`
    (`Memoizing`), and at every call outside of it.

    Args:
        policies: policies, one for each group.
        games: number of games in each group.

    Attributes:
        is_stackable: whether the policies are computed in one batch.
    """

    def __init__(self, policies: Sequence[Policy], games: int) -> None:
        self.policies, self.games = policies, games
        self.channels = policies[0].channels
        self.is_stackable = are_policies_stackable(policies)
        # Chat model whose requests of all policies are sent together; None: policies act one after the other.
        models = [policy.llm if isinstance(policy, ConversingPolicy) else None for policy in policies]
        self._llm = None if None in models else models[0]
        self._stacked: StackedPolicies | None = None
        self._has_fixed_weights = False  # within a `fixed_weights` block
        self._has_current_weights = False  # the weights were stacked within the current `fixed_weights` block

    @contextmanager
    def fixed_weights(self) -> Iterator[None]:
        """Return the context in which the weights of all policies are constant (`Memoizing`)."""
        with ExitStack() as contexts:
            for policy in self.policies:
                contexts.enter_context(fixed_weights(policy))
            if self._has_fixed_weights:
                yield
                return
            self._has_fixed_weights, self._has_current_weights = True, False
            try:
                yield
            finally:
                self._has_fixed_weights = False

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        assert generator is not None
        generators = [generator] * len(self.policies) if isinstance(generator, torch.Generator) else list(generator)
        if (stack := self._update_stack(observation)) is not None:
            return stack.act(observation, generators, greedy)
        initial_states = {id(x): x.get_state() for x in generators}
        outputs: list[PolicyOutput] = []
        conversations: list[ConversationGenerator[PolicyOutput]] = []
        for i, policy in enumerate(self.policies):
            generator = generators[i]
            generator.set_state(initial_states[id(generator)])
            inputs = *self._slice_inputs(observation, state, i), generator, greedy
            if self._llm is None:
                outputs.append(policy.act(*inputs))
            else:
                conversations.append(policy.act_as_conversation(*inputs))  # type: ignore[attr-defined]
        if self._llm is not None:
            outputs = run_conversation(merge_conversations(conversations), self._llm.chat)
        names = ("log_prob", "value", "features", "state", "logits")
        return PolicyOutput(
            action=torch.cat([x.action for x in outputs]),
            notes=[row for x in outputs for row in x.notes or ()] if all(x.notes for x in outputs) else None,
            **{name: _concatenate_if_complete([getattr(x, name) for x in outputs]) for name in names},
        )

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        if (stack := self._update_stack(observation)) is not None:
            return stack.values(observation)
        policies = enumerate(self.policies)
        return torch.cat([policy.values(*self._slice_inputs(observation, state, i)) for i, policy in policies])

    def _update_stack(self, observation: dict[str, torch.Tensor]) -> StackedPolicies | None:
        """Return the stacked policies after copying new weights into them; None if they cannot be stacked."""
        if not self.is_stackable:
            return None
        if self._stacked is None:
            self._stacked = StackedPolicies(self.policies, self.games, observation)  # type: ignore[arg-type]
        elif not (self._has_fixed_weights and self._has_current_weights):
            self._stacked.read()
        self._has_current_weights = self._has_fixed_weights
        return self._stacked

    def _slice_inputs(
        self, observation: dict[str, torch.Tensor], state: torch.Tensor | None, i: int
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        """Return the observation and the memory state of group `i`."""
        games = self._game_slice(i)
        return {name: x[games] for name, x in observation.items()}, None if state is None else state[games]

    def _game_slice(self, i: int) -> slice:
        return slice(i * self.games, (i + 1) * self.games)


class ObservingPartitionedPolicy(PartitionedPolicy):
    """`PartitionedPolicy` that passes steps to the policies that observe them (`StepObserver`)."""

    def __init__(self, policies: Sequence[Policy], games: int) -> None:
        super().__init__(policies, games)
        self._camera: Camera | None = None

    @property
    def camera(self) -> Camera | None:
        """Camera of all games for the policies that observe frames; the collector sets it."""
        return self._camera

    @camera.setter
    def camera(self, camera: Camera | None) -> None:
        self._camera = camera
        for i, policy in enumerate(self.policies):
            if isinstance(policy, NeedsCamera):
                policy.camera = None if camera is None else _offset_camera(camera, i * self.games)

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        for i, policy in enumerate(self.policies):
            if isinstance(policy, StepObserver):
                games_slice = self._game_slice(i)
                policy.on_reset(games[games_slice], {name: x[games_slice] for name, x in observation.items()})

    def on_step(self, transition: Transition) -> None:
        for i, policy in enumerate(self.policies):
            if isinstance(policy, StepObserver):
                policy.on_step(transition.select(self._game_slice(i), slice(None)))


def _offset_camera(camera: Camera, offset: int) -> Camera:
    return lambda game: camera(offset + game)


class StackedPolicies:
    """Batched computation of `SocietyPolicy`s, of which policy i acts in the i-th of equal groups of games.

    Args:
        policies: K policies for which `are_policies_stackable` is true, each with G networks of k agents.
        games: number of games of each policy.
        observation: example observation of all games.
    """

    def __init__(self, policies: Sequence[SocietyPolicy], games: int, observation: dict[str, torch.Tensor]) -> None:
        self.policies, self.games = policies, games
        self._n_networks = len(policies[0].members)
        self._compiled: CompiledSocieties | None = None
        if is_compilable(policies[0], games):
            self._compiled = CompiledSocieties(policies, games, observation)
            return
        members = [network for policy in policies for network, _ in policy.list_networks()]
        self._n_samples = games * (policies[0].n_agents // self._n_networks)
        self._stack_slices = choose_stack_slices(members, self._n_samples, count_cells(members[0], observation))
        self._stacks = [StackedNetwork(members[x]) for x in self._stack_slices]

    def read(self) -> None:
        """Copy the weights of the policies."""
        if self._compiled is not None:
            self._compiled.read()
            return
        for stack in self._stacks:
            stack.read()

    @torch.inference_mode()
    def act(
        self, observation: dict[str, torch.Tensor], generators: Sequence[torch.Generator], greedy: bool = False
    ) -> PolicyOutput:
        """Return the actions in all games; groups that share a generator object use the same random numbers."""
        distribution = self.policies[0].distribution
        if self._compiled is not None:
            one_hots = self.policies[0].player_one_hots
            uniform = None if greedy else self._draw_uniform(one_hots, distribution.n_uniforms, generators)
            return self._compiled.act(observation, uniform)
        outputs, value, features = self._compute_outputs(observation)
        if greedy:
            action = distribution.mode(outputs)
        else:
            action = distribution.sample_from_uniform(
                outputs, self._draw_uniform(outputs, distribution.n_uniforms, generators)
            )
        log_prob, _ = distribution.log_prob_entropy(outputs, action)
        core_features = features if self.policies[0].core_frozen else None
        logits = outputs if distribution.outputs_are_logits else None
        return PolicyOutput(action, log_prob, value, core_features, logits=logits)

    @torch.inference_mode()
    def values(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return state values [n_envs, n_agents]."""
        if self._compiled is not None:
            value = self._compiled.act(observation, None).value
            assert value is not None
            return value
        return self._compute_outputs(observation)[1]

    def _compute_outputs(self, observation: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return outputs [n_envs, n_agents, n_outputs], values [n_envs, n_agents], features [n_envs, n_agents, F]."""
        samples = {name: self._group_samples(x) for name, x in self.policies[0].extend_observation(observation).items()}
        stack_outputs = []
        for stack_slice, stack in zip(self._stack_slices, self._stacks, strict=True):
            inputs = {name: x[stack_slice] for name, x in samples.items()}
            network: ActorCritic = stack.network
            features = network.encode(inputs)
            stack_outputs.append(
                (network.outputs(features, inputs.get("action_mask")), network.value(features, inputs), features)
            )
        outputs, value, features = (
            self._ungroup_samples(torch.cat(parts)[:, : self._n_samples]) for parts in zip(*stack_outputs, strict=True)
        )
        return outputs, value, features

    def _group_samples(self, x: torch.Tensor) -> torch.Tensor:
        """Map [n_envs, n_agents, ...] to [K * G, games * k, ...], zero-padded to a multiple of `SAMPLE_MULTIPLE`."""
        k = x.shape[1] // self._n_networks
        split = x.reshape(-1, self.games, self._n_networks, k, *x.shape[2:])  # [K, games, G, k, ...]
        samples = split.transpose(1, 2).flatten(2, 3).flatten(0, 1)
        if not (n_padding := -self._n_samples % SAMPLE_MULTIPLE):
            return samples
        return functional.pad(samples, (*[0, 0] * (samples.dim() - 2), 0, n_padding))

    def _ungroup_samples(self, x: torch.Tensor) -> torch.Tensor:
        """Invert `_group_samples` for unpadded samples."""
        k = x.shape[1] // self.games
        split = x.reshape(-1, self._n_networks, self.games, k, *x.shape[2:])  # [K, G, games, k, ...]
        return split.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def _draw_uniform(self, like: torch.Tensor, n: int, generators: Sequence[torch.Generator]) -> torch.Tensor:
        """Return `n` uniform random numbers per action, [n_envs, n_agents, n], with device and dtype of `like`."""
        shape = (self.games, self.policies[0].n_agents, n)
        numbers: dict[int, torch.Tensor] = {}
        for generator in generators:
            if (key := id(generator)) not in numbers:
                numbers[key] = torch.rand(shape, generator=generator, device=generator.device, dtype=like.dtype)
        return torch.cat([numbers[id(generator)] for generator in generators]).to(
            like.device, non_blocking=like.is_cuda
        )


def are_policies_stackable(policies: Sequence[object]) -> bool:
    """Return whether all policies are `SocietyPolicy`s with networks of one shape and without memory."""
    societies = [policy for policy in policies if type(policy) is SocietyPolicy and not policy.recurrent]
    if len(societies) < len(policies):
        return False
    shapes = {(policy.n_agents, len(policy.members), policy.core_frozen, policy.channels) for policy in societies}
    return len(shapes) == 1 and are_stackable(
        [network for policy in societies for network, _ in policy.list_networks()]
    )


def split_rollout(rollout: Rollout, n_groups: int) -> list[Rollout]:
    """Return one rollout for each of `n_groups` equal groups of games; tensors are views."""
    if n_groups == 1:
        return [rollout]
    n_games = rollout.reward.shape[1] // n_groups
    group_rollouts = []
    for i in range(n_groups):
        game_slice = slice(i * n_games, (i + 1) * n_games)
        group_fields: dict[str, Any] = {
            field.name: _select_games(getattr(rollout, field.name), game_slice)
            for field in fields(rollout)
            if field.name not in ("episodes", "state")
        }
        group_fields["episodes"] = [episode for episode in rollout.episodes if episode.game // n_games == i]
        group_fields["state"] = None if rollout.state is None else rollout.state[game_slice]
        group_rollouts.append(replace(rollout, **group_fields))
    return group_rollouts


def _select_games(x: Any, games: slice) -> Any:
    """Return some games of an array [T, n_envs, ...] or of each array in a dict; None unchanged."""
    if isinstance(x, dict):
        return {name: value[:, games] for name, value in x.items()}
    return None if x is None else x[:, games]


def _concatenate_if_complete(tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    available = [x for x in tensors if x is not None]
    return torch.cat(available) if len(available) == len(tensors) else None
