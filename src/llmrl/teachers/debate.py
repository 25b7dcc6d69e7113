"""Debate: agents of a game are told the plans of the others and may revise their own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import State
from llmrl.teachers.planners import Distribution, Planner
from llmrl.teachers.plans import Plan, plan_text

Game = tuple[str, ...]
"""Sentence of each agent of a game, in order."""

ANNOUNCED = "The others mean to do this: "
"""Text between an agent's own sentence and the plans of the others."""

NO_PLAN = "has no plan yet"
"""Announced of an agent without a valid plan, instead of its fallback, which it did not choose."""

_BRACKETS = re.compile("[<>]")


class Debate:
    """Planner whose agents agree in rounds, as in multi-agent debate (Du et al., 2023, arXiv 2305.14325).

    Before the first round every agent's plans come from its own sentence alone. In each round all agents are asked
    again, simultaneously, with their sentence followed by the most probable plan of each other agent in the previous
    round. The plans of the last round count: with p_i their distribution, agent i is taught
    pi_T^i = sum_k p_i(k) pi_{k,i}, which sums to 1 for each agent.

    Plans may only use objects of the agent's own sentence, not those announced. Announcements may reveal what an agent
    cannot observe, e.g. its goal. A student without access to the debate then learns only the average behaviour given
    its observation.

    Args:
        planner: planner that answers; its memory avoids repeated questions about equal announcements.
        names: names of the agents of a game.
        rounds: rounds of debate.

    Attributes:
        looked_up: agents looked up so far, counted in every game.
        changed: agents among them whose most probable plan differs from their initial one.

    Raises:
        ConfigError: a game has a single agent.
    """

    def __init__(self, planner: Planner, names: Sequence[str], rounds: PositiveInt = 1) -> None:
        if len(names) < 2:
            raise ConfigError(
                f"teacher.debate_rounds={rounds} needs several agents in a game, and here there is one: set "
                "teacher.debate_rounds=0"
            )
        self.planner, self.names, self.rounds = planner, tuple(names), rounds
        self.domain = planner.domain
        self.looked_up, self.changed = 0, 0

    def plans(self, sentences: Sequence[str]) -> list[Distribution]:
        """Return the plans for each sentence without a debate."""
        return self.planner.plans(sentences)

    def deliberate(self, games: Sequence[Game]) -> list[tuple[Distribution, ...]]:
        """Return the plans of each agent of each game, with one batch of questions per round for all games.

        Raises:
            LLMError, ConfigError: see `Planner.plans`; nothing is counted then.
        """
        counts = Counter(games)
        distinct = list(counts)
        first = last = self._ask(distinct)
        for _ in range(self.rounds):
            last = self._ask([self._heard(game, plans) for game, plans in zip(distinct, last, strict=True)])
        for game, before, after in zip(distinct, first, last, strict=True):
            moved = sum(likeliest(a) != likeliest(b) for a, b in zip(before, after, strict=True))
            self.changed += counts[game] * moved
        self.looked_up += len(games) * len(self.names)
        results = dict(zip(distinct, last, strict=True))
        return [results[game] for game in games]

    def describe(self) -> dict[str, str]:
        tell = getattr(self.planner, "describe", None)
        words = {"planner": type(self.planner).__name__} if tell is None else tell()
        return {**words, "debate rounds": str(self.rounds)}

    def metrics(self) -> dict[str, float]:
        """Return the planner's metrics and teacher/debate_changes: the share of agents, since the start of the run,
        whose most probable plan changed in the debate."""
        share = self.changed / self.looked_up if self.looked_up else 0.0
        return {"teacher/debate_changes": share, **self.planner.metrics()}

    def state_dict(self) -> State:
        return {"looked_up": self.looked_up, "changed": self.changed, "planner": self.planner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.looked_up, self.changed = int(state["looked_up"]), int(state["changed"])
        self.planner.load_state_dict(state["planner"])

    def _ask(self, games: Sequence[Game]) -> list[tuple[Distribution, ...]]:
        distinct = list(dict.fromkeys(sentence for game in games for sentence in game))
        answers = dict(zip(distinct, self.planner.plans(distinct), strict=True))
        return [tuple(answers[sentence] for sentence in game) for game in games]

    def _heard(self, game: Game, plans: tuple[Distribution, ...]) -> Game:
        """Return the sentences of a game, each followed by the announcements of the others."""
        unplanned = getattr(self.planner, "no_plan", None)
        announced = [
            f"{name}: {NO_PLAN if p is unplanned else _BRACKETS.sub('', plan_text(likeliest(p)))}"
            for name, p in zip(self.names, plans, strict=True)
        ]
        return tuple(
            f"{sentence} {ANNOUNCED}{'; '.join(announced[:i] + announced[i + 1 :])}." for i, sentence in enumerate(game)
        )


def likeliest(plans: Distribution) -> Plan:
    """Return the most probable plan; ties are broken alphabetically, independently of the order of replies."""
    most = max(probability for _, probability in plans)
    return min((plan for plan, probability in plans if probability == most), key=plan_text)
