"""What players of a common-pool resource game are told, as a fishery, a pasture or a polluted river.

The three stories are those of GovSim (Piatti et al. 2024, arXiv 2404.16698), in other words. The game is the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.spaces import EnvDescription, Parameter, ParameterSpace
from llmrl.envs import mechanism_text

ScenarioName = Literal["fishery", "pasture", "pollution"]


@dataclass(frozen=True)
class Scenario:
    """Words of a story.

    Attributes:
        players: who the players are.
        opening: first sentence, with `{n}` players and `{capacity}` units at most.
        units: units of the stock, plural.
        choice: what each player decides every month.
        cost: what a unit of the harvest does to the stock.
        act: effect of an action, with `{amount}`.
        harvest: what is harvested, plural.
        left: what is left of the stock.
        earned: a unit of the player's own harvest.
        warning: universalization, with `{share}`.
    """

    players: str
    opening: str
    units: str
    choice: str
    cost: str
    act: str
    harvest: str
    left: str
    earned: str
    warning: str


SCENARIOS: Mapping[ScenarioName, Scenario] = {
    "fishery": Scenario(
        players="fishermen",
        opening="{n} fishermen share a lake, where at most {capacity} tons of fish can live.",
        units="tons of fish",
        choice="how many tons of fish to catch",
        cost="Each ton that is caught is gone from the lake",
        act="try to catch {amount} tons of fish",
        harvest="tons of fish",
        left="what is left of the fish",
        earned="ton of fish that you catch",
        warning="As things are, there will be fewer fish next month if every fisherman catches more than {share} tons.",
    ),
    "pasture": Scenario(
        players="shepherds",
        opening="{n} shepherds share a pasture, where at most {capacity} hectares of grass can grow.",
        units="hectares of grass",
        choice="how many flocks of sheep to let graze there",
        cost="Each flock eats 1 hectare of grass a month",
        act="try to let {amount} flocks of sheep graze",
        harvest="flocks of sheep",
        left="what is left of the grass",
        earned="flock that you let graze",
        warning="As things are, there will be less grass next month if every shepherd lets more than {share} flocks "
        "graze.",
    ),
    "pollution": Scenario(
        players="factory owners",
        opening="{n} factory owners share a river, which has at most {capacity} units of clean water.",
        units="units of clean water",
        choice="how many pallets of widgets to make",
        cost="Each pallet pollutes 1 unit of clean water",
        act="try to make {amount} pallets of widgets",
        harvest="pallets of widgets",
        left="what is left of the clean water",
        earned="pallet that you make",
        warning="As things are, there will be less clean water next month if every factory owner makes more than "
        "{share} pallets.",
    ),
}
"""With a capacity of 100, a unit of clean water is 1 % of the river, as published."""


@dataclass(frozen=True)
class CommonsText:
    """Texts of a game: the description before it begins, and each observation.

    Attributes:
        scenario: the story.
        n_agents: players.
        capacity: largest stock, units.
        growth: factor by which the stock grows each month.
        collapse_below: the stock collapses if less is left after a harvest, units.
        horizon: months of a game.
        amounts: amount of each action, units.
        show_end: whether players are told how many months a game lasts.
        universalization: whether they are told what happens if everybody takes more than the sustainable share.
        space: the taxes that a planner sets; None: there are none.
        shown: whether players see the taxes.
    """

    scenario: ScenarioName
    n_agents: int
    capacity: int
    growth: int
    collapse_below: int
    horizon: int
    amounts: tuple[int, ...]
    show_end: bool
    universalization: bool
    space: ParameterSpace | None = None
    shown: bool = False

    def description(self) -> EnvDescription:
        """Return what players are told before the game begins."""
        words = SCENARIOS[self.scenario]
        grows = {2: "doubles", 3: "triples"}.get(self.growth, f"becomes {self.growth} times as much")
        before, taken = 9 * self.capacity // 10, 3 * self.capacity // 10
        after = min(self.capacity, self.growth * (before - taken))
        end = f"After {self.horizon} months the game is over." if self.show_end else "The game goes on for many months."
        goal = (
            f"{words.opening.format(n=self.n_agents, capacity=self.capacity)} Every month all players decide at the "
            f"same time {words.choice}, and none knows what the others decide. {words.cost}. If players want more than "
            f"there is, it is handed out one unit after the other, each to a player who still wants more, drawn at "
            f"random, until nothing is left. At the end of the month, {words.left} {grows}, up to {self.capacity} "
            f"units. For example, if there are {before} and {taken} are taken, there will be {after} next month. If "
            f"fewer than {self.collapse_below} are left before they grow, the stock has collapsed and the game is "
            f"over. {end} {self._rewarded(words)} Only your own reward counts for you, over the whole game. At the end "
            "of each month all are told what each player got."
        )
        fields = [
            ("players", f"{words.players} in the game, you included"),
            ("stock", f"{words.units} now, before this month's decisions, 0 to {self.capacity}"),
            ("months_played", "months that are over"),
        ]
        if self.show_end:
            fields.append(("months_left", "months to be played, this one included"))
        fields += [
            ("last_month", f"{words.harvest} that each player got last month; not told in the first month"),
            ("total_last_month", f"{words.harvest} that all of them got last month together"),
            ("you_wanted", f"{words.harvest} that you wanted last month"),
            ("you_got", f"{words.harvest} that you got last month"),
            ("you_got_so_far", f"{words.harvest} that you got since the game began"),
        ]
        if self.universalization:
            fields.append(("if_everybody", "what happens if everybody takes more than a certain amount"))
        more: dict[str, Any] = {}
        if self.space is not None:
            fields += mechanism_text.fields(self.space, {}, self.shown)
            more = mechanism_text.example(self.space, {}, self.shown)
        actions = tuple((f"take_{n}", words.act.format(amount=n)) for n in self.amounts)
        example = self.told(0, self.capacity, 1, self.capacity // 10, [10] * self.n_agents, 10, 10, more)
        amount = words.choice if self.amounts == tuple(range(len(self.amounts))) else ""
        return EnvDescription(goal, tuple(fields), actions, example=example, amount=amount)

    def told(
        self,
        agent: int,
        stock: int,
        month: int,
        share: int,
        taken: Sequence[int],
        wanted: int,
        total: int,
        more: Mapping[str, Any],
    ) -> str:
        """Return the observation of `agent` as a JSON object.

        Args:
            agent: index of the player who is told.
            stock: units now.
            month: months played.
            share: sustainable share of a player now, units.
            taken: units that each player got last month, [n_agents].
            wanted: units that the player wanted last month.
            total: units that the player got since the game began.
            more: what it is told of the taxes (`MechanismReport.told`).
        """
        said: dict[str, object] = {"players": self.n_agents, "stock": stock, "months_played": month}
        if self.show_end:
            said["months_left"] = self.horizon - month
        if month:
            said |= {
                "last_month": {f"player {i + 1}": each for i, each in enumerate(taken)},
                "total_last_month": sum(taken),
                "you_wanted": wanted,
                "you_got": taken[agent],
                "you_got_so_far": total,
            }
        if self.universalization and stock >= self.collapse_below:
            said["if_everybody"] = SCENARIOS[self.scenario].warning.format(share=share)
        return json.dumps({**said, **more})

    def _rewarded(self, words: Scenario) -> str:
        """Return what is rewarded, with the taxes if there are any."""
        if self.space is None:
            return f"You are rewarded with 1 for each {words.earned}."
        rule = "What is paid is shared equally among all players, those who paid it included."
        return mechanism_text.rules_in_words(self.space, f"1 for each {words.earned}", rule, self.shown)


def taxes(highest: float, harvest: str) -> ParameterSpace:
    """Return the space of the two taxes, on what is harvested (`harvest`, in words)."""
    told = (
        ("harvest_tax", f"paid by a player for each of its {harvest}", "{value:.3g} for each unit"),
        (
            "excess_tax",
            f"also paid for each of its {harvest} above its sustainable share: an equal part of the most that all can "
            "take without a smaller stock in the next step",
            "{value:.3g} more for each unit above the sustainable share",
        ),
    )
    parameters = (
        Parameter(name, 0.0, highest, "reward per unit", f"{meaning}; all players share what is paid equally", effect=e)
        for name, meaning, e in told
    )
    return ParameterSpace("harvest taxes", tuple(parameters), sentence="Takes {effects}; all agents share it equally.")
