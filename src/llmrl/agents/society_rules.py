"""Rules for players of a society: foragers, cleaners and turn-takers, and an escape room's crew.

A rule sees what one player observes, the step of the episode, and which player it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from llmrl.core.errors import ConfigError
from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec

Role = Literal["forager", "cleaner", "turn_taker"]
_YOU = (9, 5)
"""Row and column of the player's own cell in a view [11, 11]; row 0 is the farthest ahead."""
_REACH = 30
"""Steps within which a way is looked for."""
_MOVES = (("forward", -1, 0), ("step_left", 0, -1), ("step_right", 0, 1), ("backward", 1, 0))
"""Moves that do not turn, with the row and column that they lead to; the first of equally good ones is taken."""

_BEAM = (((-1, 0), (-2, 0), (-3, 0)), ((0, -1), (-1, -1), (-2, -1)), ((0, 1), (-1, 1), (-2, 1)))
"""The three lines of the cleaning beam, cell by cell, as rows and columns from the player; a wall ends a line."""


@dataclass(frozen=True)
class Rules:
    """How a society is played by rule.

    Attributes:
        channel: observation channel that is read.
        what: what is done, in a few words.
        act: actions [n_envs, k] of k players, from their observations [n_envs, k, ...], the steps of each episode so
            far [n_envs], and the players' indices in the game.
    """

    channel: str
    what: str
    act: Callable[[np.ndarray, np.ndarray, Sequence[int]], np.ndarray]


class SocietyRulePolicy:
    """Policy that follows `Rules`; its memory is the step of the episode.

    Args:
        spec: spec of the environment, or of a part of its players.
        rules: rules to follow.
    """

    def __init__(self, spec: EnvSpec, rules: Rules) -> None:
        if rules.channel not in spec.observation:
            raise ConfigError(
                f"the rule for {spec.name} reads the channel {rules.channel!r}, and there is only "
                f"{', '.join(spec.observation)}; see env.observe"
            )
        self.rules, self.seats = rules, spec.seats or tuple(range(spec.n_agents))
        self.channels: tuple[str, ...] = (rules.channel,)

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Return the same actions for the same observations and steps."""
        seen = observation[self.rules.channel].cpu().numpy()
        steps = torch.zeros((*seen.shape[:2], 1)) if state is None else state
        action = self.rules.act(seen, steps[:, 0, 0].cpu().numpy().astype(np.int64), self.seats)
        return PolicyOutput(torch.from_numpy(action.astype(np.int64)), state=steps + 1)

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return zeros: rules expect nothing."""
        return torch.zeros(observation[self.rules.channel].shape[:2])


def society_rules(spec: EnvSpec, role: Role | None, turn: int, at_once: int) -> Rules | None:
    """Return the rules of a society; None for other environments.

    Args:
        spec: spec of the environment.
        role: what a player of Clean Up or Harvest does; None: it forages.
        turn: steps for which turn-takers clean, before it is the next players' turn.
        at_once: number of players whose turn it is.

    Raises:
        ConfigError: the role is of another environment.
    """
    if spec.name == "escape_room":
        if role is not None:
            raise ConfigError(f"agent.role={role} is for env=cleanup and env=harvest; leave it null")
        return Rules("vector", "enough players hold the lever, the others leave", _Crew(spec).act)
    if spec.name not in ("cleanup", "harvest"):
        if role is not None:
            raise ConfigError(f"agent.role={role} is for env=cleanup and env=harvest; leave it null")
        return None
    if role in ("cleaner", "turn_taker") and "clean" not in spec.action_names:
        raise ConfigError(f"agent.role={role} needs a river to clean: use env=cleanup, or agent.role=forager")
    forager = _Gatherer(spec)
    if role == "cleaner":
        return Rules("grid", "cleans dirt in view, else looks for some", lambda seen, *_: forager.clean(seen))
    if role == "turn_taker":
        words = f"{at_once} players at once clean in turn, {turn} steps each, and forage otherwise"
        return Rules("grid", words, _Turns(forager, spec, turn, at_once).act)
    return Rules("grid", "walks to the nearest apple in view, else looks for some", lambda seen, *_: forager.eat(seen))


class _Gatherer:
    """Ways to what a player sees, on the map that it sees (`grid_text.grid_codes`)."""

    def __init__(self, spec: EnvSpec) -> None:
        planes = spec.observation["grid"].planes if "grid" in spec.observation else {}
        self._apple = planes.get("apple", (0, -1, -1))[1]
        self._dirt = planes.get("dirt", (0, -1, -1))[1]
        self._wall = planes.get("wall", (0, -1, -1))[1]
        self._action = {name: i for i, name in enumerate(spec.action_names)}

    def eat(self, seen: np.ndarray) -> np.ndarray:
        """Return the actions of foragers, [n_envs, k], from views [n_envs, k, 11, 11, 4]."""
        return self._towards(seen, seen[..., 0] == self._apple)

    def clean(self, seen: np.ndarray) -> np.ndarray:
        """Return the actions of cleaners, [n_envs, k], from views [n_envs, k, 11, 11, 4]."""
        dirt, wall = seen[..., 0] == self._dirt, seen[..., 0] == self._wall
        stands = np.zeros_like(dirt)  # cells from which the beam meets dirt, if one faces as one does now
        for line in _BEAM:
            open_ = np.ones_like(dirt)
            for down, right in line:
                stands |= open_ & _shifted(dirt, down, right)
                open_ &= ~_shifted(wall, down, right)
        y, x = _YOU
        return np.where(stands[..., y, x], self._action["clean"], self._towards(seen, stands))

    def _towards(self, seen: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Return the first moves of shortest ways to what is `wanted` [..., 11, 11]; where nothing can be reached, one
        looks for it: ahead until something is in the way, with a turn now and then."""
        free = (seen[..., 0] != self._wall) & (seen[..., 0] != 0) & (seen[..., 1] <= 1)
        reached = wanted & free
        first = np.full(wanted.shape[:-2], -1)
        y, x = _YOU
        for _ in range(_REACH):
            undecided = first < 0
            for name, down, right in _MOVES:
                arrived = reached[..., y + down, x + right] & undecided & (first < 0)
                first[arrived] = self._action[name]
            if (first >= 0).all():
                break
            grown = reached.copy()
            grown[..., 1:, :] |= reached[..., :-1, :]
            grown[..., :-1, :] |= reached[..., 1:, :]
            grown[..., :, 1:] |= reached[..., :, :-1]
            grown[..., :, :-1] |= reached[..., :, 1:]
            reached = grown & free
        blocked = ~free[..., y - 1, x]
        # Different views turn at different times, or players would walk in circles for ever.
        mark = (seen.reshape(*first.shape, -1).astype(np.int64) * np.arange(1, seen[0, 0].size + 1)).sum(-1)
        turning = blocked | (mark % 12 == 0)
        turn = np.where(mark % 2 == 0, self._action["turn_left"], self._action["turn_right"])
        return np.where(first >= 0, first, np.where(turning, turn, self._action["forward"]))


def _shifted(cells: np.ndarray, down: int, right: int) -> np.ndarray:
    """Return for each cell [..., 11, 11] what is so many rows below and columns to the right of it; False outside."""
    height, width = cells.shape[-2:]
    found = np.zeros_like(cells)
    rows, columns = max(0, -down), max(0, -right)
    inside = cells[..., max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)]
    found[..., rows : rows + inside.shape[-2], columns : columns + inside.shape[-1]] = inside
    return found


class _Turns:
    """Players who clean in turn and forage otherwise."""

    def __init__(self, gatherer: _Gatherer, spec: EnvSpec, turn: int, at_once: int) -> None:
        self._gatherer, self._players, self._turn, self._at_once = gatherer, spec.n_players, turn, at_once

    def act(self, seen: np.ndarray, steps: np.ndarray, seats: Sequence[int]) -> np.ndarray:
        first = (steps // self._turn) * self._at_once % self._players
        cleaning = (np.asarray(seats)[None] - first[:, None]) % self._players < self._at_once
        return np.where(cleaning, self._gatherer.clean(seen), self._gatherer.eat(seen))


class _Crew:
    """Players of an escape room: the first ones go to the lever that works, the others to the door."""

    def __init__(self, spec: EnvSpec) -> None:
        self._needed = int(spec.facts["min_at_lever"])
        self._levers = spec.n_actions - 2

    def act(self, seen: np.ndarray, steps: np.ndarray, seats: Sequence[int]) -> np.ndarray:
        lever: Any = seen[:, 0, -self._levers :].argmax(-1)
        holds = np.asarray(seats) < self._needed
        return np.where(holds[None], lever[:, None], self._levers)
