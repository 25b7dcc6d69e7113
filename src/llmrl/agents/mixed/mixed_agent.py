"""Agent `agent=mixed`, in which several agents (members) control different players of the same games.

Game: one parallel copy of the environment. Player: an agent of the environment; seat: its index in the game.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch.nn import functional

from llmrl.core.agent_interfaces import RequiresMinRolloutSteps, pause_recording
from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.model_protocols import (
    ChatModel,
    ConversationGenerator,
    ConversingPolicy,
    merge_conversations,
    run_conversation,
)
from llmrl.core.observers import StepObserver, Transition
from llmrl.core.protocols import Agent, AgentLoop, Camera, EstimatesCalls, NeedsCamera, Policy, Teacher, fixed_weights
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import CallEstimate, ChatReply, ChatRequest, Observation, PolicyOutput, State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.services import PartFactory
from llmrl.core.spaces import EnvSpec


@dataclass(frozen=True)
class Member:
    """Players that one agent controls.

    Attributes:
        name: name of the member in metrics and tables.
        agent: factory of the agent.
        count: number of players; None: `slots` lists them.
        slots: seats of the players; None: the first unassigned seats.
        begins: whether initial weights come from `MixedAgent.init_from`.
    """

    name: str
    agent: PartFactory
    count: PositiveInt | None = None
    slots: list[NonNegativeInt] | None = None
    begins: bool = False


class MixedAgent:
    """Agent whose players belong to several members, each with a separate agent.

    An agent learns only from the steps of its players. Inputs of a network contain the seat of a player, so that the
    weights of a network that was trained for all players can be loaded.

    Args:
        spec: spec of the environment.
        seeds: seed tree; the agent of member i gets the child `members/i`.
        members: the members; those with only `count` get unassigned seats in order. Together they must cover all seats.
            In a config they are written like `{count: 5, agent: ppo}`, which is replaced when a run is composed
            (`experiment.config_completion`).
        init_from: run folder whose newest checkpoint contains the weights of the members with `begins`; None: these
            have the initial weights of their agents.
        init_from_seed: seed of that run; not used here, because `init_from` already names the run.
        teacher: must be None.

    Attributes:
        kinds: name of a member -> seats of its players.

    Raises:
        ConfigError: the members do not cover all seats exactly once, a member's agent has a loop of its own or raises
            an error, or there is a teacher.
    """

    loop: ClassVar[AgentLoop] = "learn"

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        members: list[Any],
        init_from: str | None = None,
        init_from_seed: Literal["own", "shared"] | NonNegativeInt = "own",
        teacher: Teacher | None = None,
    ) -> None:
        if teacher is not None:
            raise Incompatible(
                IncompatibilityReason.NOT_TRAINABLE,
                "agent=mixed cannot have a teacher, which advises all players of a game; use teacher=none",
            )
        valid_members = [member for member in members if isinstance(member, Member)]
        if len(valid_members) < len(members):
            raise ConfigError("agent.members must be `Member` objects; compose the config with `llmrl.compose`")
        names = [member.name for member in valid_members]
        repetitions = [names[:i].count(name) for i, name in enumerate(names)]
        self._member_names = [f"{name}_{n + 1}" if n else name for name, n in zip(names, repetitions, strict=True)]
        self.spec = spec
        self._seats = assign_seats(valid_members, spec)
        self.agents: list[Agent] = []
        for i, (member, seats) in enumerate(zip(valid_members, self._seats, strict=True)):
            init_options = {"init_from": init_from} if member.begins else {}
            reads_texts = getattr(member.agent.target, "reads_texts", False)
            services = {"spec": spec.select_seats(seats, reads_texts), "seeds": seeds.child("members").child(i)}
            agent: Agent = member.agent(init_options, **services, member=i, teacher=None)
            if agent.loop not in ("learn", "play"):
                raise ConfigError(
                    f"{member.agent.key}: {type(agent).__name__} has its own loop (`{agent.loop}`) and cannot play "
                    "in a mixed society; use an agent that learns from rollouts or only plays"
                )
            self.agents.append(agent)
        policies = [agent.policy for agent in self.agents]
        talks = {i: talk for i, policy in enumerate(policies) if (talk := getattr(policy, "talk", None)) is not None}
        if talks:
            from llmrl.agents.llm_player.talk import connect_talks

            connect_talks(list(talks.values()), [self._seats[i] for i in talks])
        self.learns = any(agent.learns for agent in self.agents)
        self.policy = MixedPolicy(list(map(SeatedPolicy, policies, self._seats)), spec.n_agents)
        self.kinds: Mapping[str, tuple[int, ...]] = dict(zip(self._member_names, self._seats, strict=True))
        learners = {name: agent for name, agent in zip(self._member_names, self.agents, strict=True) if agent.learns}
        feature_widths = {name: getattr(agent.policy, "frozen_feature_width", None) for name, agent in learners.items()}
        if len(set(feature_widths.values())) > 1:
            raise ConfigError(
                "agent=mixed: learners need frozen cores with features of the same width, or no frozen cores, but the "
                "widths are "
                + ", ".join(f"{name} {width or '(not frozen)'}" for name, width in feature_widths.items())
                + "; use the same agent.members[i].freeze and agent.members[i].features"
            )

    @property
    def carried_states(self) -> tuple[str, ...]:
        """Names of the states that members' agents pass on from an episode to the next one of the same game."""
        return tuple(dict.fromkeys(name for agent in self.agents for name in getattr(agent, "carried_states", ())))

    def min_rollout_steps(self, games: int) -> int:
        learners = [agent for agent in self.agents if isinstance(agent, RequiresMinRolloutSteps)]
        return max((agent.min_rollout_steps(games) for agent in learners), default=1)

    def pause_recording(self) -> AbstractContextManager[None]:
        """Return the context of episodes from which no agent learns, such as evaluations."""
        return pause_recording(self.agents)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Update every agent that learns, one after the other; return their metrics as `<member>/<metric>`."""
        metrics: dict[str, float] = {}
        for i, (name, agent, seats) in enumerate(zip(self._member_names, self.agents, self._seats, strict=True)):
            if agent.learns:
                member_rollout = slice_rollout(rollout, seats, agent.policy.channels, self.policy.state_widths.get(i))
                metrics |= {f"{name}/{metric}": x for metric, x in agent.update(member_rollout, generator).items()}
        return metrics

    def metrics(self) -> dict[str, float]:
        """Return the agents' metrics other than those of learning, as `<member>/<metric>`."""
        metrics: dict[str, float] = {}
        for name, agent in zip(self._member_names, self.agents, strict=True):
            metrics |= {f"{name}/{metric}": x for metric, x in getattr(agent, "metrics", dict)().items()}
        return metrics

    def estimate(self, steps: int, n: int, n_earlier_outcomes: int = 0) -> CallEstimate:
        """Return the sum of the estimates of agents with a language model; `n`: number of episodes of `steps` steps."""
        return CallEstimate.add_up(
            [agent.estimate(steps, n, n_earlier_outcomes) for agent in self.agents if isinstance(agent, EstimatesCalls)]
        )

    def reset(self) -> None:
        for agent in self.agents:
            agent.reset()

    def describe(self) -> dict[str, Any]:
        return {
            f"{len(seats)} x {name}": ", ".join(f"{key}: {value}" for key, value in agent.describe().items())
            for name, agent, seats in zip(self._member_names, self.agents, self._seats, strict=True)
        }

    def state_dict(self) -> State:
        return {"members": [agent.state_dict() for agent in self.agents], "widths": dict(self.policy.state_widths)}

    def load_state_dict(self, state: State) -> None:
        for agent, member_state in zip(self.agents, state["members"], strict=True):
            agent.load_state_dict(member_state)
        self.policy.state_widths = dict(state["widths"])


def assign_seats(members: Sequence[Member], spec: EnvSpec) -> list[tuple[int, ...]]:
    """Return the seats of each member in ascending order.

    Raises:
        ConfigError: the members do not cover all seats exactly once.
    """
    players_text = f"env={spec.name} has {spec.n_agents}: {', '.join(spec.player_names)}"
    for i, member in enumerate(members):
        if (member.count is None) == (member.slots is None):
            raise ConfigError(f"agent.members[{i}] needs either count (number of players) or slots (indices from 0)")
    explicit_slots = [slot for member in members for slot in member.slots or ()]
    if unknown_slots := [slot for slot in explicit_slots if slot >= spec.n_agents]:
        raise ConfigError(f"agent.members: there is no player {unknown_slots[0]} (from 0); {players_text}")
    if len(set(explicit_slots)) < len(explicit_slots):
        duplicate_slot = next(slot for slot in explicit_slots if explicit_slots.count(slot) > 1)
        raise ConfigError(f"agent.members: player {duplicate_slot} (from 0) is given twice; assign each player once")
    n_assigned = len(explicit_slots) + sum(member.count or 0 for member in members)
    if n_assigned != spec.n_agents:
        raise ConfigError(f"agent.members has {n_assigned} players, but {players_text}")
    free_seats = [seat for seat in range(spec.n_agents) if seat not in explicit_slots]
    seats = []
    for member in members:
        if member.slots is not None:
            seats.append(tuple(sorted(member.slots)))
        else:
            assert member.count is not None
            seats.append(tuple(free_seats[: member.count]))
            free_seats = free_seats[member.count :]
    return seats


@dataclass(frozen=True)
class SeatedPolicy:
    """Policy of a member, and the seats of its players in every game.

    Attributes:
        policy: policy of `len(seats)` players.
        seats: seats of these players, in ascending order.
    """

    policy: Policy
    seats: tuple[int, ...]


class MixedPolicy:
    """Policy that consists of the policies of members, each for the players in its seats.

    Each member gets the channels that it reads, for its players. Members draw from one random generator in turn.
    Outputs that a member does not have (such as log-probabilities of a chat model) are zeros.

    Args:
        members: the members; together they cover every seat once.
        n_agents: number of players of a game.

    Attributes:
        state_widths: index of a member -> width of its memory state, for members with a memory; known after the first
            `act`, and part of the agent's checkpoint state.
    """

    def __init__(self, members: Sequence[SeatedPolicy], n_agents: int) -> None:
        self.members, self.n_agents = tuple(members), n_agents
        self.channels = tuple(dict.fromkeys(name for member in members for name in member.policy.channels))
        self.state_widths: dict[int, int] = {}
        self._camera: Camera | None = None

    @property
    def llm(self) -> ChatModel | None:
        """Chat model that all members with a chat model share; None if there are none."""
        return next((member.policy.llm for member in self.members if isinstance(member.policy, ConversingPolicy)), None)

    @property
    def camera(self) -> Camera | None:
        """Camera for all players of a game, for the members that observe frames; the collector sets it."""
        return self._camera

    @camera.setter
    def camera(self, camera: Camera | None) -> None:
        self._camera = camera
        for member in self.members:
            if isinstance(member.policy, NeedsCamera):
                member.policy.camera = None if camera is None else _make_seat_camera(camera, member.seats)

    @property
    def episodes(self) -> Sequence[int] | None:
        """Numbers of the games' present episodes, for the members that include them in their requests."""
        return next((member.policy.episodes for member in self.members if hasattr(member.policy, "episodes")), None)

    @episodes.setter
    def episodes(self, episodes: Sequence[int] | None) -> None:
        for member in self.members:
            if hasattr(member.policy, "episodes"):
                member.policy.episodes = episodes

    @contextmanager
    def fixed_weights(self) -> Iterator[None]:
        """Return the context in which the weights of all members are constant (`Memoizing`)."""
        with ExitStack() as stack:
            for member in self.members:
                stack.enter_context(fixed_weights(member.policy))
            yield

    def act(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        return run_conversation(self.act_as_conversation(observation, state, generator, greedy), self._send_requests)

    def act_as_conversation(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> ConversationGenerator[PolicyOutput]:
        outputs: dict[int, PolicyOutput] = {}
        conversations: dict[int, ConversationGenerator[PolicyOutput]] = {}
        for i, member in enumerate(self.members):
            inputs = *self._slice_inputs(i, observation, state), generator, greedy
            if isinstance(member.policy, ConversingPolicy):
                conversations[i] = member.policy.act_as_conversation(*inputs)
                continue
            outputs[i] = output = member.policy.act(*inputs)
            if output.state is not None:
                self.state_widths[i] = output.state.shape[-1]
        return self._finish_conversations(outputs, conversations)

    def _finish_conversations(
        self, outputs: dict[int, PolicyOutput], conversations: dict[int, ConversationGenerator[PolicyOutput]]
    ) -> ConversationGenerator[PolicyOutput]:
        """Run the conversations of members that query a chat model; return the merged outputs of all members."""
        conversation_outputs = yield from merge_conversations(list(conversations.values()))
        output_by_index = outputs | dict(zip(conversations, conversation_outputs, strict=True))
        outputs_in_order = [output_by_index[i] for i in range(len(self.members))]
        names = ("action", "log_prob", "value", "features", "state", "logits")
        tensors: dict[str, Any] = {name: self._merge([getattr(x, name) for x in outputs_in_order]) for name in names}
        return PolicyOutput(**tensors, notes=self._merge_notes([x.notes for x in outputs_in_order]))

    def _send_requests(self, requests: Sequence[ChatRequest]) -> Sequence[ChatReply]:
        assert self.llm is not None
        return self.llm.chat(requests)

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        values = self._merge(
            [member.policy.values(*self._slice_inputs(i, observation, state)) for i, member in enumerate(self.members)]
        )
        assert values is not None
        return values

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        for member in self.members:
            if isinstance(member.policy, StepObserver):
                member.policy.on_reset(games, {name: x[:, list(member.seats)] for name, x in observation.items()})

    def on_step(self, transition: Transition) -> None:
        for member in self.members:
            if isinstance(member.policy, StepObserver):
                member.policy.on_step(transition.select(slice(None), list(member.seats)))

    def _slice_inputs(
        self, i: int, observation: dict[str, Any], state: torch.Tensor | None
    ) -> tuple[dict[str, Any], torch.Tensor | None]:
        """Return the observation and the memory of the players of member `i`."""
        seats = list(self.members[i].seats)
        member_state = None if state is None or i not in self.state_widths else state[:, seats, : self.state_widths[i]]
        return {name: observation[name][:, seats] for name in self.members[i].policy.channels}, member_state

    def _merge(self, tensors: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """Merge the members' tensors into one, [n_envs, n_agents, ...]; None if no member has one.

        Members without a tensor get zeros, and narrower tensors are padded with zeros.
        """
        present = [x for x in tensors if x is not None]
        if not present:
            return None
        first = present[0]
        tensor_widths = [x.shape[-1] for x in present if x.dim() > 2]
        shape = (first.shape[0], self.n_agents, *([max(tensor_widths)] if tensor_widths else []))
        output = torch.zeros(shape, dtype=first.dtype, device=first.device)
        for member, x in zip(self.members, tensors, strict=True):
            if x is None:
                continue
            tensor = x.to(first.device)
            if tensor_widths and tensor.shape[-1] < max(tensor_widths):
                tensor = functional.pad(tensor, (0, max(tensor_widths) - tensor.shape[-1]))
            output[:, list(member.seats)] = tensor
        return output

    def _merge_notes(
        self, member_notes: Sequence[list[list[dict[str, Any]]] | None]
    ) -> list[list[dict[str, Any]]] | None:
        present = [notes for notes in member_notes if notes is not None]
        if not present:
            return None
        all_notes: list[list[dict[str, Any]]] = [[{} for _ in range(self.n_agents)] for _ in present[0]]
        for member, notes in zip(self.members, member_notes, strict=True):
            for game, row in enumerate(notes or []):
                for seat, note in zip(member.seats, row, strict=True):
                    all_notes[game][seat] = note
        return all_notes


_PLAYER_FIELDS = ("features", "action", "log_prob", "value", "reward", "base_reward", "next_value", "reward_jacobian")
"""Names of the fields of a rollout that are arrays [T, n_envs, n_agents, ...] or None."""
_EPISODE_FIELDS = ("returns", "base_returns", "n_gain_steps", "gain_step_sums")
"""Names of the fields of a finished episode that are arrays [n_agents, ...]."""


def slice_rollout(rollout: Rollout, seats: Sequence[int], channels: Sequence[str], width: int | None) -> Rollout:
    """Return the part of a rollout from which the players in `seats` learn.

    Args:
        rollout: rollout of all players.
        seats: seats of these players.
        channels: channels that their policy reads.
        width: width of the memory state of their policy; None: it has none.
    """
    seat_indices = list(seats)
    arrays: dict[str, Any] = {
        name: x[:, :, seat_indices] for name in _PLAYER_FIELDS if (x := getattr(rollout, name)) is not None
    }
    episodes: list[Any] = [
        replace(episode, **{name: getattr(episode, name)[seat_indices] for name in _EPISODE_FIELDS})
        for episode in rollout.episodes
    ]
    return replace(
        rollout,
        **arrays,
        observation={name: x[:, :, seat_indices] for name, x in rollout.observation.items() if name in channels},
        state=None if rollout.state is None or width is None else rollout.state[:, seat_indices, :width],
        episodes=episodes,
    )


def _make_seat_camera(camera: Camera, seats: Sequence[int]) -> Camera:
    """Return the camera of the players in `seats`, which are in ascending order."""
    return lambda game: [frame for seat, frame in enumerate(camera(game)) if seat in seats]
