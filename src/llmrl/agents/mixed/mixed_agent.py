"""Agent `agent=mixed`, a society of several kinds of agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from llmrl.agents.mixed.mixed_policy import MixedPolicy, SeatedPolicy, slice_rollout
from llmrl.core.agent_interfaces import NeedsSteps, unrecorded
from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.protocols import Agent, AgentLoop, EstimatesCalls, Teacher
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import CallEstimate, State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.services import PartFactory
from llmrl.core.spaces import EnvSpec


@dataclass(frozen=True)
class Member:
    """Players of one kind.

    Attributes:
        name: name of the kind in metrics and tables.
        agent: factory of their agent.
        count: number of players; None: `slots` lists them.
        slots: indices of the players, from 0; None: the first unassigned players.
        begins: whether `MixedAgent.init_from` provides their initial weights.
    """

    name: str
    agent: PartFactory
    count: PositiveInt | None = None
    slots: list[NonNegativeInt] | None = None
    begins: bool = False


class MixedAgent:
    """Society whose players are of several kinds, each played by a separate agent.

    Learners learn only from their own players' steps. Weights of a network shared by a whole game can be loaded, since
    a player keeps its index in the game.

    Args:
        spec: spec of the environment.
        seeds: seed tree; kind i is built from `members/i`.
        members: the kinds, each a `Member`; those with only `count` get unassigned players in order. Together they must
            cover all players. In a config they are typed like `{count: 5, agent: ppo}`, which is replaced when a run is
            composed (`experiment.config_completion`).
        init_from: run folder whose newest checkpoint gives the weights of the members with `begins`; None: they have
            their own weights.
        init_from_seed: seed of that run; unused here, since `init_from` names the run already.
        teacher: must be None.

    Attributes:
        kinds: indices of the players of each kind, by name.

    Raises:
        ConfigError: the members do not cover all players exactly once; a kind cannot play in a mixed society; a teacher
            is given; or an error of a member's agent.
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
                Misfit.UNTAUGHT,
                "agent=mixed cannot have a teacher, which advises all players of a game; use teacher=none",
            )
        kinds = [member for member in members if isinstance(member, Member)]
        if len(kinds) < len(members):
            raise ConfigError("agent.members must be `Member` objects; compose the config with `llmrl.compose`")
        self.spec, self._names = spec, _unique_names([member.name for member in kinds])
        self._seats = assign_seats(kinds, spec)
        self.agents: list[Agent] = []
        for i, (member, seats) in enumerate(zip(kinds, self._seats, strict=True)):
            init_options = {"init_from": init_from} if member.begins else {}
            texts = getattr(member.agent.target, "reads_texts", False)
            part_options = {"spec": spec.part(seats, texts), "seeds": seeds.child("members").child(i), "member": i}
            agent: Agent = member.agent(init_options, **part_options, teacher=None)
            if agent.loop not in ("learn", "play"):
                raise ConfigError(
                    f"{member.agent.where}: {type(agent).__name__} has its own loop (`{agent.loop}`) and cannot play "
                    "in a mixed society; use an agent that learns from rollouts or only plays"
                )
            self.agents.append(agent)
        policies = [agent.policy for agent in self.agents]
        talks = {i: talk for i, policy in enumerate(policies) if (talk := getattr(policy, "talk", None)) is not None}
        if talks:
            from llmrl.agents.llm_player.talk import connect_talks

            connect_talks(list(talks.values()), [self._seats[i] for i in talks])
        self.learns = any(agent.learns for agent in self.agents)
        triples = zip(self._names, self.agents, self._seats, strict=True)
        self.policy = MixedPolicy(
            [SeatedPolicy(name, agent.policy, seats) for name, agent, seats in triples], spec.n_agents
        )
        self.kinds: Mapping[str, tuple[int, ...]] = dict(zip(self._names, self._seats, strict=True))
        learners = {name: agent for name, agent in zip(self._names, self.agents, strict=True) if agent.learns}
        widths = {name: getattr(agent.policy, "frozen_features", None) for name, agent in learners.items()}
        if len(set(widths.values())) > 1:
            raise ConfigError(
                "agent=mixed: learners need frozen cores with features of the same width, or no frozen cores, but the "
                "widths are "
                + ", ".join(f"{name} {width or '(not frozen)'}" for name, width in widths.items())
                + "; use the same agent.members[i].freeze and agent.members[i].features"
            )

    @property
    def carried(self) -> tuple[str, ...]:
        """Names of the information that any kind passes from one episode to the next of the same game."""
        return tuple(dict.fromkeys(name for agent in self.agents for name in getattr(agent, "carried", ())))

    def min_rollout_steps(self, games: int) -> int:
        learners = [agent for agent in self.agents if isinstance(agent, NeedsSteps)]
        return max((agent.min_rollout_steps(games) for agent in learners), default=1)

    def unrecorded(self) -> AbstractContextManager[None]:
        """Return the context of episodes that no kind learns from, such as evaluations."""
        return unrecorded(self.agents)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Update every kind that learns, one after the other; return their metrics as `<kind>/<metric>`."""
        metrics: dict[str, float] = {}
        for name, agent, seats in zip(self._names, self.agents, self._seats, strict=True):
            if agent.learns:
                width = self.policy.memory_width(name)
                part = slice_rollout(rollout, seats, agent.policy.channels, width)
                metrics |= {f"{name}/{metric}": x for metric, x in agent.update(part, generator).items()}
        return metrics

    def metrics(self) -> dict[str, float]:
        """Return the agents' metrics other than those of learning, as `<kind>/<metric>`."""
        sources = (
            (name, getattr(agent, "metrics", None)) for name, agent in zip(self._names, self.agents, strict=True)
        )
        return {
            f"{name}/{metric}": x for name, metrics in sources if metrics is not None for metric, x in metrics().items()
        }

    def estimate(self, steps: int, n: int, n_earlier_outcomes: int = 0) -> CallEstimate:
        """Return the estimate of all kinds that ask a language model, for `n` episodes of `steps` steps."""
        return CallEstimate.total(
            [agent.estimate(steps, n, n_earlier_outcomes) for agent in self.agents if isinstance(agent, EstimatesCalls)]
        )

    def reset(self) -> None:
        for agent in self.agents:
            agent.reset()

    def describe(self) -> dict[str, Any]:
        return {
            f"{len(seats)} x {name}": ", ".join(f"{key}: {value}" for key, value in agent.describe().items())
            for name, agent, seats in zip(self._names, self.agents, self._seats, strict=True)
        }

    def state_dict(self) -> State:
        return {"members": [agent.state_dict() for agent in self.agents], "widths": dict(self.policy.widths)}

    def load_state_dict(self, state: State) -> None:
        for agent, member_state in zip(self.agents, state["members"], strict=True):
            agent.load_state_dict(member_state)
        self.policy.widths = dict(state["widths"])


def assign_seats(members: Sequence[Member], spec: EnvSpec) -> list[tuple[int, ...]]:
    """Return the players of each member, as indices in increasing order.

    Raises:
        ConfigError: the members do not cover all players exactly once.
    """
    players_text = f"env={spec.name} has {spec.n_agents}: {', '.join(spec.player_names)}"
    for i, member in enumerate(members):
        if (member.count is None) == (member.slots is None):
            raise ConfigError(f"agent.members[{i}] needs either count (number of players) or slots (indices from 0)")
    explicit_slots = [slot for member in members for slot in member.slots or ()]
    if unknown_slots := [slot for slot in explicit_slots if slot >= spec.n_agents]:
        raise ConfigError(f"agent.members: there is no player {unknown_slots[0]} (from 0); {players_text}")
    if len(set(explicit_slots)) < len(explicit_slots):
        duplicate = next(slot for slot in explicit_slots if explicit_slots.count(slot) > 1)
        raise ConfigError(f"agent.members: player {duplicate} (from 0) is given twice; assign each player once")
    n_total = len(explicit_slots) + sum(member.count or 0 for member in members)
    if n_total != spec.n_agents:
        raise ConfigError(f"agent.members has {n_total} players, but {players_text}")
    free = [seat for seat in range(spec.n_agents) if seat not in explicit_slots]
    seats = []
    for member in members:
        if member.slots is not None:
            seats.append(tuple(sorted(member.slots)))
        else:
            assert member.count is not None
            seats.append(tuple(free[: member.count]))
            free = free[member.count :]
    return seats


def _unique_names(names: Sequence[str]) -> list[str]:
    """Return the names, with a number appended to repeated ones."""
    return [
        name if names[:i].count(name) == 0 else f"{name}_{names[:i].count(name) + 1}" for i, name in enumerate(names)
    ]
