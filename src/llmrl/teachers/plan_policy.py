"""From observations to advice: scenes, plans for all their sentences at once, and the action of each plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    After LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373).

    Args:
        domain: domain that describes states and executes skills.
        planner: planner that maps sentences to plans.
        mode: `soft` gives pi_T itself; `hard` puts all probability on the action of one plan, drawn for every state.
        sharing: `own` teaches each agent the distribution of its own plans; `mixture` teaches all agents of a game the
            mean over them.
        n_agents: agents of a game.

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
        said = [scene.sentence for scene in scenes]
        distinct = list(dict.fromkeys(said))
        if isinstance(self.planner, Debate):
            size = len(self.planner.names)
            games = [tuple(said[i : i + size]) for i in range(0, len(said), size)]
            debated = self.planner.deliberate(games)
            self.sentences.update(distinct)
            return [plans for game in debated for plans in game]
        answers = dict(zip(distinct, self.planner.plans(distinct), strict=True))
        self.sentences.update(distinct)
        return [answers[sentence] for sentence in said]

    def advise(self, scenes: Sequence[Scene], uniform: np.ndarray | None = None) -> np.ndarray:
        """Return action probabilities for each scene, [n, n_actions] float32; each row sums to 1.

        `uniform` [n], random numbers in [0, 1), selects the plans of `hard` mode.

        Raises:
            LLMError: see `Planner.plans`.
            ConfigError: see `Planner.plans`; or the domain returns an invalid action.
            ValueError: `hard` mode without `uniform`.
        """
        rows = self._own(scenes, uniform)
        if self.sharing == "mixture":
            mean = rows.reshape(-1, self.n_agents, rows.shape[1]).mean(1)
            rows = np.repeat(mean, self.n_agents, axis=0)
        return rows.astype(np.float32)

    def _own(self, scenes: Sequence[Scene], uniform: np.ndarray | None) -> np.ndarray:
        rows = np.zeros((len(scenes), self.domain.n_actions))
        if self.mode == "hard":
            if uniform is None:
                raise ValueError("mode=hard draws plans, so it needs a random number for each scene")
            for row, scene, plans, u in zip(rows, scenes, self.plans(scenes), uniform.tolist(), strict=True):
                row[self._action(scene, _draw(plans, u))] = 1.0
            return rows
        # Games in the same state often share the scene object.
        done: dict[tuple[int, int], int] = {}
        for i, (scene, plans) in enumerate(zip(scenes, self.plans(scenes), strict=True)):
            first = done.setdefault((id(scene), id(plans)), i)
            if first != i:
                rows[i] = rows[first]
                continue
            for plan, probability in plans:
                rows[i, self._action(scene, plan)] += probability
        return rows

    def _action(self, scene: Scene, plan: Plan) -> int:
        """Return the action of a plan in a scene.

        Raises:
            ConfigError: the domain returns an invalid action.
        """
        action = self.domain.action(scene, plan)
        if not isinstance(action, int | np.integer) or not 0 <= action < self.domain.n_actions:
            raise ConfigError(
                f"the teacher's domain {type(self.domain).__name__}: the plan {plan_text(plan)!r} does the action "
                f"{action!r} in the state {scene.sentence!r}; there are 0 to {self.domain.n_actions - 1}"
            )
        return int(action)

    def state_dict(self) -> State:
        return {"sentences": sorted(self.sentences), "planner": self.planner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.sentences = set(state["sentences"])
        self.planner.load_state_dict(state["planner"])


def _draw(plans: Distribution, u: float) -> Plan:
    """Return the plan whose interval of the cumulative distribution on [0, 1) contains `u`."""
    edge = 0.0
    for plan, probability in plans:
        edge += probability
        if u < edge:
            return plan
    return plans[-1][0]
