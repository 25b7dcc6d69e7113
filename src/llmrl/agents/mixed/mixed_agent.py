"""Agent `agent=mixed`: a society of several kinds of agents, who learn, read, or follow a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from llmrl.agents.mixed.mixed_policy import MixedPolicy, Seated, rollout_of
from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.part_factory import PartFactory
from llmrl.core.protocols import Agent, AgentLoop, EstimatesCalls, NeedsSteps, Teacher
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import CallEstimate, State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec


@dataclass(frozen=True)
class Member:
    """Players of one kind.

    Attributes:
        name: what they are called in metrics and tables.
        agent: builds their agent.
        count: number of players; None: `slots` says which they are.
        slots: indices of the players, from 0; None: the first ones that are free.
        begins: whether `MixedAgent.init_from` gives their initial weights.
    """

    name: str
    agent: PartFactory
    count: PositiveInt | None = None
    slots: list[NonNegativeInt] | None = None
    begins: bool = False


class MixedAgent:
    """Society whose players are of several kinds, each an agent of its own.

    Learners learn from their own players' steps alone. Weights of a shared network of the whole game fit, since a
    player keeps its index in the game.

    Args:
        spec: spec of the environment.
        seeds: seed tree; kind i is built from `members/i`.
        members: the kinds, each a `Member`; with `count` alone they take free players in their order. Together they are
            all players. As typed (`{count: 5, agent: ppo}`) they stand in a config only until a run is composed
            (`experiment.members`).
        init_from: run folder whose newest checkpoint gives the weights of the members that `begin` with it; None:
            they have weights of their own.
        init_from_seed: seed of that run; unused here, since `init_from` names the run already.
        teacher: must be None.

    Attributes:
        kinds: indices of the players of each kind, by name.

    Raises:
        ConfigError: the members are not as many as the players, or a player is given twice; a kind does not play
            beside others; a teacher is given; or as the agents of the members.
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
                Misfit.UNTAUGHT, "agent=mixed: a teacher advises all players of a game alike; use teacher=none"
            )
        kinds = [member for member in members if isinstance(member, Member)]
        if len(kinds) < len(members):
            raise ConfigError("agent.members: the options of members are looked up when a run is composed")
        self.spec, self._names = spec, _distinct([member.name for member in kinds])
        self._seats = seats_of(kinds, spec)
        self.agents: list[Agent] = []
        for i, (member, seats) in enumerate(zip(kinds, self._seats, strict=True)):
            begun = {"init_from": init_from} if member.begins else {}
            texts = getattr(member.agent.target, "reads_texts", False)
            own = {"spec": spec.part(seats, texts), "seeds": seeds.child("members").child(i)}
            agent: Agent = member.agent(begun, **own, teacher=None)
            if agent.loop not in ("learn", "play"):
                raise ConfigError(
                    f"{member.agent.where}: {type(agent).__name__} learns in a loop of its own (`{agent.loop}`), and "
                    "not beside other players; use one that learns from rollouts, or only plays"
                )
            self.agents.append(agent)
        self.learns = any(agent.learns for agent in self.agents)
        seated = zip(self._names, self.agents, self._seats, strict=True)
        self.policy = MixedPolicy([Seated(name, agent.policy, seats) for name, agent, seats in seated], spec.n_agents)
        self.kinds: Mapping[str, tuple[int, ...]] = dict(zip(self._names, self._seats, strict=True))
        learners = {name: agent for name, agent in zip(self._names, self.agents, strict=True) if agent.learns}
        widths = {name: getattr(agent.policy, "frozen_features", None) for name, agent in learners.items()}
        if len(set(widths.values())) > 1:
            raise ConfigError(
                "agent=mixed: a rollout has the observations of all learners, or the features of all their frozen "
                "cores in one width, and these widths are "
                + ", ".join(f"{name} {width or '(not frozen)'}" for name, width in widths.items())
                + "; set agent.members[i].freeze and agent.members[i].features alike"
            )

    @property
    def carried(self) -> tuple[str, ...]:
        """What any kind takes from an episode to the next one of the same game."""
        return tuple(dict.fromkeys(what for agent in self.agents for what in getattr(agent, "carried", ())))

    def min_rollout_steps(self, games: int) -> int:
        return max((a.min_rollout_steps(games) for a in self.agents if isinstance(a, NeedsSteps)), default=1)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Let every kind that learns do so, one after the other; return their metrics as `<kind>/<metric>`."""
        found: dict[str, float] = {}
        for name, agent, seats in zip(self._names, self.agents, self._seats, strict=True):
            if agent.learns:
                width = self.policy.memory_of(name)
                part = rollout_of(rollout, seats, agent.policy.channels, width)
                found |= {f"{name}/{metric}": x for metric, x in agent.update(part, generator).items()}
        return found

    def metrics(self) -> dict[str, float]:
        """Return what players count beside learning, as `<kind>/<metric>`."""
        told = ((name, getattr(a, "metrics", None)) for name, a in zip(self._names, self.agents, strict=True))
        return {
            f"{name}/{metric}": x for name, metrics in told if metrics is not None for metric, x in metrics().items()
        }

    def estimate(self, steps: int, n: int, known: int = 0) -> CallEstimate:
        """Return the estimate of all kinds that ask a language model, for `n` episodes of `steps` steps."""
        return CallEstimate.total([a.estimate(steps, n, known) for a in self.agents if isinstance(a, EstimatesCalls)])

    def reset(self) -> None:
        for agent in self.agents:
            agent.reset()

    def describe(self) -> dict[str, Any]:
        return {
            f"{len(seats)} x {name}": ", ".join(f"{what}: {value}" for what, value in agent.describe().items())
            for name, agent, seats in zip(self._names, self.agents, self._seats, strict=True)
        }

    def state_dict(self) -> State:
        return {"members": [agent.state_dict() for agent in self.agents], "widths": dict(self.policy.widths)}

    def load_state_dict(self, state: State) -> None:
        for agent, saved in zip(self.agents, state["members"], strict=True):
            agent.load_state_dict(saved)
        self.policy.widths = dict(state["widths"])


def seats_of(members: Sequence[Member], spec: EnvSpec) -> list[tuple[int, ...]]:
    """Return the players of each member, as indices in increasing order.

    Raises:
        ConfigError: the members are not as many as the players of a game, or a player is given twice.
    """
    players = f"env={spec.name} has {spec.n_agents}: {', '.join(spec.player_names)}"
    for i, member in enumerate(members):
        if (member.count is None) == (member.slots is None):
            raise ConfigError(f"agent.members[{i}]: say either how many they are (count) or which (slots, from 0)")
    given = [slot for member in members for slot in member.slots or ()]
    if outside := [slot for slot in given if slot >= spec.n_agents]:
        raise ConfigError(f"agent.members: there is no player {outside[0]} (from 0); {players}")
    if len(set(given)) < len(given):
        twice = next(slot for slot in given if given.count(slot) > 1)
        raise ConfigError(f"agent.members: player {twice} (from 0) is given twice")
    wanted = len(given) + sum(member.count or 0 for member in members)
    if wanted != spec.n_agents:
        raise ConfigError(f"agent.members are {wanted} players, and {players}")
    free = [seat for seat in range(spec.n_agents) if seat not in given]
    found = []
    for member in members:
        if member.slots is not None:
            found.append(tuple(sorted(member.slots)))
        else:
            assert member.count is not None
            found.append(tuple(free[: member.count]))
            free = free[member.count :]
    return found


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, with a number after those that occur before."""
    return [
        name if names[:i].count(name) == 0 else f"{name}_{names[:i].count(name) + 1}" for i, name in enumerate(names)
    ]
