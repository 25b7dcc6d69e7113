"""Advice from observations: scenes, plans for all distinct sentences in one call, and the action of each plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.records import State
from llmrl.teachers.debate import Debate
from llmrl.teachers.domain import Domain, Scene
from llmrl.teachers.planners import Distribution, Planner
from llmrl.teachers.plans import Plan, plan_text

Mode = Literal["soft", "hard"]
Sharing = Literal["own", "mixture"]


class PlanPolicy:
    """Distribution over actions from a planner's plans: pi_T(a | s) = sum_k Pr(plan k | sentence of s) [k does a in s].

    It follows LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373).

    Args:
        domain: domain that describes states and executes skills.
        planner: planner that maps sentences to plans.
        mode: `soft` gives pi_T itself; `hard` puts all probability on the action of one plan, drawn for every state.
        sharing: `own` advises each agent by its own plans; `mixture` advises all agents of a game by the mean over
            them.
        n_agents: number of agents in a game.

    Attributes:
        sentences: all sentences looked up so far.
    """

    def __init__(
        self,
        domain: Domain,
        planner: Planner,
        mode: Mode = "soft",
        sharing: Sharing = "own",
        n_agents: int = 1,
    ) -> None:
        self.domain, self.planner, self.mode = domain, planner, mode
        self.sharing, self.n_agents = sharing, n_agents
        self.sentences: set[str] = set()

    def scenes(self, observation: Mapping[str, np.ndarray], memory: np.ndarray | None = None) -> list[Scene]:
        """Return the scenes of observations [n, n_agents, ...], game by game; write to `memory` [n, n_agents, k]."""
        channels = {name: observation[name] for name in self.domain.channels}
        n, n_agents = next(iter(channels.values())).shape[:2]
        scene = self.domain.scene
        return [
            scene(
                {name: x[i, agent] for name, x in channels.items()}, agent, None if memory is None else memory[i, agent]
            )
            for i in range(n)
            for agent in range(n_agents)
        ]

    def plans(self, scenes: Sequence[Scene]) -> list[Distribution]:
        """Return the plans of each scene, after one call of the planner with all distinct sentences.

        With a `Debate` the scenes must be those of whole games, game by game.

        Raises:
            LLMError, ConfigError: see `Planner.plans`.
        """
        sentences = [scene.sentence for scene in scenes]
        distinct = list(dict.fromkeys(sentences))
        if isinstance(self.planner, Debate):
            size = len(self.planner.names)
            games = [tuple(sentences[i : i + size]) for i in range(0, len(sentences), size)]
            distributions = [plans for game in self.planner.deliberate(games) for plans in game]
        else:
            answers = dict(zip(distinct, self.planner.plans(distinct), strict=True))
            distributions = [answers[sentence] for sentence in sentences]
        self.sentences.update(distinct)
        return distributions

    def advise(self, scenes: Sequence[Scene], uniform: np.ndarray | None = None) -> np.ndarray:
        """Return action probabilities for each scene, [n, n_actions] float32.

        `uniform` [n], random numbers in [0, 1), selects the plans of `hard` mode.

        Raises:
            LLMError: see `Planner.plans`.
            ConfigError: see `Planner.plans`; or the domain returns an invalid action.
            ValueError: `hard` mode without `uniform`.
        """
        if self.mode == "hard" and uniform is None:
            raise ValueError("mode=hard draws plans and needs a random number for each scene; pass `uniform`")
        distributions = self.plans(scenes)
        if self.mode == "hard" and uniform is not None:
            draws = zip(distributions, uniform.tolist(), strict=True)
            distributions = [((_draw(plans, u), 1.0),) for plans, u in draws]
        probabilities = np.zeros((len(scenes), self.domain.n_actions))
        for row, scene, plans in zip(probabilities, scenes, distributions, strict=True):
            for plan, probability in plans:
                row[self._action(scene, plan)] += probability
        if self.sharing == "mixture":
            mean = probabilities.reshape(-1, self.n_agents, probabilities.shape[1]).mean(1)
            probabilities = np.repeat(mean, self.n_agents, axis=0)
        return probabilities.astype(np.float32)

    def _action(self, scene: Scene, plan: Plan) -> int:
        """Return the action of a plan in a scene.

        Raises:
            ConfigError: the domain returns an invalid action.
        """
        action = self.domain.action(scene, plan)
        if not isinstance(action, int | np.integer) or not 0 <= action < self.domain.n_actions:
            raise ConfigError(
                f"the teacher's domain {type(self.domain).__name__} returned the action {action!r} for the plan "
                f"{plan_text(plan)!r} in the state {scene.sentence!r}; actions are 0 to {self.domain.n_actions - 1}"
            )
        return int(action)

    def state_dict(self) -> State:
        return {"sentences": sorted(self.sentences), "planner": self.planner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.sentences = set(state["sentences"])
        self.planner.load_state_dict(state["planner"])


def _draw(plans: Distribution, u: float) -> Plan:
    """Return the plan whose interval of the cumulative distribution on [0, 1) contains `u`."""
    edges = accumulate(probability for _, probability in plans)
    return next((plan for (plan, _), edge in zip(plans, edges, strict=True) if u < edge), plans[-1][0])
