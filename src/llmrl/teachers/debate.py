"""Debate: the agents of a game (copy of an environment) hear each other's plans and may revise their plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.core.state_fields import StateFields
from llmrl.teachers.domain import ANNOUNCEMENT_PREFIX
from llmrl.teachers.llm_planner import LLMPlanner
from llmrl.teachers.planners import PlanDistribution
from llmrl.teachers.plans import Plan, format_plan

AgentSentences = tuple[str, ...]
"""Sentence of the state of each agent of a game, in order."""

NO_PLAN_TEXT = "has no plan yet"
"""Announcement of an agent without a valid plan, which did not choose the fallback that it follows."""


class Debate(StateFields):
    """Planner with rounds of announcements, as in multi-agent debate (Du et al., 2023, arXiv 2305.14325).

    Before the first round, the plans of an agent depend only on its sentence. In each round, new plans of all agents
    are requested simultaneously; in these requests the sentence of an agent is followed by the most probable plan of
    each other agent in the previous round. The plans of the last round are used.

    Plans may contain only objects of the agent's sentence, not objects of announcements. Announcements may reveal
    information that an agent cannot observe, e.g. its goal. A student without access to the debate then learns only
    the average behavior given its observation.

    Args:
        planner: planner of single agents; it stores plans, so equal announcements cause no new requests.
        agent_names: names of the agents of a game.
        n_rounds: number of rounds of announcements.

    Attributes:
        looked_up: number of look-ups so far, one for each agent of each game.
        changed: number of look-ups in which the debate changed the most probable plan.

    Raises:
        ConfigError: a game has a single agent.
    """

    _state_fields = ("looked_up", "changed", "planner")

    def __init__(self, planner: LLMPlanner, agent_names: Sequence[str], n_rounds: PositiveInt) -> None:
        if len(agent_names) < 2:
            raise ConfigError(
                f"teacher.debate_rounds={n_rounds} needs several agents in a game, but there is only one; set "
                "teacher.debate_rounds=0"
            )
        self.planner, self.agent_names, self.n_rounds = planner, tuple(agent_names), n_rounds
        self.domain = planner.domain
        self.looked_up, self.changed = 0, 0

    def plans(self, sentences: Sequence[str]) -> list[PlanDistribution]:
        """Return the plans for each sentence without a debate."""
        return self.planner.plans(sentences)

    def deliberate(self, games: Sequence[AgentSentences]) -> list[tuple[PlanDistribution, ...]]:
        """Return the plans of each agent in each game after the debate, with one batch of requests per round.

        Raises:
            LLMError, ConfigError: see `Planner.plans`; the counters then do not change.
        """
        game_counts = Counter(games)
        distinct_games = list(game_counts)
        initial_plans = final_plans = self._request_plans(distinct_games)
        for _ in range(self.n_rounds):
            pairs = zip(distinct_games, final_plans, strict=True)
            final_plans = self._request_plans([self._append_announcements(game, plans) for game, plans in pairs])
        for game, initial, final in zip(distinct_games, initial_plans, final_plans, strict=True):
            likeliest_plans = ((find_likeliest_plan(plans) for plans in by_agent) for by_agent in (initial, final))
            self.changed += game_counts[game] * sum(old != new for old, new in zip(*likeliest_plans, strict=True))
        self.looked_up += len(games) * len(self.agent_names)
        plans_by_game = dict(zip(distinct_games, final_plans, strict=True))
        return [plans_by_game[game] for game in games]

    def describe(self) -> dict[str, str]:
        return {**self.planner.describe(), "debate rounds": str(self.n_rounds)}

    def metrics(self) -> dict[str, float]:
        """Return the planner's metrics and teacher/debate_changes, the fraction `changed` / `looked_up`."""
        changed_fraction = self.changed / self.looked_up if self.looked_up else 0.0
        return {"teacher/debate_changes": changed_fraction, **self.planner.metrics()}

    def _request_plans(self, games: Sequence[AgentSentences]) -> list[tuple[PlanDistribution, ...]]:
        distinct_sentences = list(dict.fromkeys(sentence for game in games for sentence in game))
        plans_by_sentence = dict(zip(distinct_sentences, self.planner.plans(distinct_sentences), strict=True))
        return [tuple(plans_by_sentence[sentence] for sentence in game) for game in games]

    def _append_announcements(self, game: AgentSentences, plans: tuple[PlanDistribution, ...]) -> AgentSentences:
        """Return the sentences of a game, each followed by the announcements of the other agents."""
        announcements = []
        for name, distribution in zip(self.agent_names, plans, strict=True):
            has_plan = distribution is not self.planner.fallback_plans
            text = format_plan(find_likeliest_plan(distribution)) if has_plan else NO_PLAN_TEXT
            announcements.append(f"{name}: {text.replace('<', '').replace('>', '')}")
        return tuple(
            f"{sentence} {ANNOUNCEMENT_PREFIX}{'; '.join(announcements[:i] + announcements[i + 1 :])}."
            for i, sentence in enumerate(game)
        )


def find_likeliest_plan(plans: PlanDistribution) -> Plan:
    """Return the most probable plan; ties are broken alphabetically, independently of the order of replies."""
    max_probability = max(probability for _, probability in plans)
    return min((plan for plan, probability in plans if probability == max_probability), key=format_plan)
