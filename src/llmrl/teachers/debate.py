"""Debate: agents of a game hear what the others mean to do, and may change their minds."""

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
"""The sentence of each agent of a game, in order."""

ANNOUNCED = "The others mean to do this: "
"""Between an agent's own sentence and the plans of the others."""

NO_PLAN = "has no plan yet"
"""Announced of an agent whose planner gave none that could be used: what it does instead is nobody's plan."""

_BRACKETS = re.compile("[<>]")


class Debate:
    """A planner whose agents agree in rounds, as multi-agent debate does (Du et al., 2023, arXiv 2305.14325).

    Before the first round every agent's plans come from its own sentence alone. In each round all agents are asked
    again, at the same time, with their sentence followed by the plan that each other agent of the game found likeliest
    in the round before. The plans of the last round count: with p_i their distribution, agent i is taught
    pi_T^i = sum_k p_i(k) pi_{k,i}, which sums to 1 for each agent.

    What was announced names no objects to a plan: an agent may only use those of its own sentence. It may tell an agent
    what it cannot see, such as a goal that somebody means to tell it; a student that does not hear the debate can then
    only learn what agents do on average in what it sees.

    Args:
        planner: answers; it keeps what it was told, so a state in which the same is announced is asked for once.
        names: of the agents of a game.
        rounds: of debate.

    Attributes:
        looked_up, changed: agents so far, and those of them whose likeliest plan is not the one they began with.

    Raises:
        ConfigError: there is nobody to debate with.
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
        """The plans of agents that hear nobody."""
        return self.planner.plans(sentences)

    def deliberate(self, games: Sequence[Game]) -> list[tuple[Distribution, ...]]:
        """For each game the plans of each agent; all questions of a round, for all games, are asked together.

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
        """teacher/debate_changes: share of agents whose likeliest plan is another after the debate, since the start of
        the run; and the planner's."""
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
        """The sentences of a game, each followed by what the others announce."""
        unplanned = getattr(self.planner, "no_plan", None)
        announced = [
            f"{name}: {NO_PLAN if p is unplanned else _BRACKETS.sub('', plan_text(likeliest(p)))}"
            for name, p in zip(self.names, plans, strict=True)
        ]
        return tuple(
            f"{sentence} {ANNOUNCED}{'; '.join(announced[:i] + announced[i + 1 :])}." for i, sentence in enumerate(game)
        )


def likeliest(plans: Distribution) -> Plan:
    """The likeliest plan; of equally likely ones the first in alphabetical order, however answers were ordered."""
    most = max(probability for _, probability in plans)
    return min((plan for plan, probability in plans if probability == most), key=plan_text)
