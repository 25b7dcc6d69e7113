"""The Contextual Escape Room in words: its rules, and what an agent sees."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmrl.core.spaces import EnvDescription, ParameterSpace
from llmrl.envs import mechanism_text
from llmrl.envs.mechanisms import CHARGED_EQUALLY

DOOR_REWARD = 10.0
MOVE_REWARD = -1.0
_UNFUNDED = "Nobody pays for these payments."


def game_text(
    places: Sequence[str],
    n_agents: int,
    min_at_lever: int,
    horizon: int,
    stay_penalty: bool,
    space: ParameterSpace | None,
    shown: bool,
    budget_balanced: bool = False,
) -> EnvDescription:
    """Return what agents are told before a game begins.

    Args:
        places: names of the levers, the door and the start, in the order of the actions.
        n_agents, min_at_lever, horizon, stay_penalty: of the game (`EscapeRoom`).
        space: the incentives that a planner sets; None: there are none.
        shown: whether agents see them.
        budget_balanced: whether all agents pay for them in equal shares.
    """
    fined = "every other player" if stay_penalty else "every other player that moved"
    base = (
        f"while the door is open, {DOOR_REWARD:g} for each player at the door and {MOVE_REWARD:g} for {fined}; while "
        f"it is closed, {MOVE_REWARD:g} for a player that moved and 0 for one that stayed"
    )
    paid = (
        f"A step is rewarded like this: {base}."
        if space is None
        else mechanism_text.rules_in_words(space, base, CHARGED_EQUALLY if budget_balanced else _UNFUNDED, shown)
    )
    goal = (
        f"{n_agents} players are in a room with {len(places) - 2} levers, a door and a start, where all begin. In each "
        "of "
        f"{horizon} steps all choose at once where to be next; a player stays by choosing its own place. One lever "
        f"works. The door is open in a step if at least {min_at_lever} players are at the working lever after moving. "
        f"{paid} Only your own reward counts for you, over the whole episode."
    )
    observation = [
        ("you_are_at", "your place"),
        ("working_lever", "the lever that works in this episode"),
        ("others_at", "how many other players are at each place, without empty ones"),
        ("steps_left", "steps until the episode is over"),
    ]
    if space is not None:
        observation += mechanism_text.fields(space, {}, shown)
    actions = tuple((f"go_to_{place}", f"be at {place} in the next step") for place in places)
    return EnvDescription(goal, tuple(observation), actions, example=_example(places, n_agents, horizon, space, shown))


def told(
    places: Sequence[str], at: Sequence[int], agent: int, lever: int, steps_left: int, more: Mapping[str, Any]
) -> str:
    """Return what one agent sees, as a JSON object.

    Args:
        places: names of all places.
        at: index of each agent's place.
        agent: index of the agent that looks.
        lever: index of the working lever.
        steps_left: steps until the end.
        more: what it is told of the incentives (`MechanismReport.told`).
    """
    others = [place for i, place in enumerate(at) if i != agent]
    counts = {name: others.count(i) for i, name in enumerate(places) if i in others}
    said = {"you_are_at": places[at[agent]], "working_lever": places[lever], "others_at": counts}
    return json.dumps({**said, "steps_left": steps_left, **more})


def _example(places: Sequence[str], n_agents: int, horizon: int, space: ParameterSpace | None, shown: bool) -> str:
    """Return an observation of typical length."""
    more: dict[str, Any] = {}
    if space is not None:
        more = mechanism_text.example(space, {}, shown)
    return told(places, [i % len(places) for i in range(n_agents)], 0, 0, horizon, more)
