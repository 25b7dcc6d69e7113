"""From observations to advice: scenes, then plans for all their sentences at once, then what each plan does."""

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


class Guide:
    """What a planner's plans say about actions: pi_T(a | s) = sum_k Pr(plan k | sentence of s) [plan k does a in s].

    After LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373).

    Args:
        domain: describes states and knows the skills.
        planner: gives plans for descriptions.
        mode: `soft` gives pi_T itself; `hard` all probability to what one plan does, drawn anew for every state.
        sharing: `own` teaches each agent what its own plans do; `mixture` teaches all agents of a game the mean of that
            over them.
        n_agents: of a game.

    Attributes:
        sentences: all that were looked up so far.
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
        """The scenes of [n, n_agents] observations, game by game; `memory` [n, n_agents, k] is written to."""
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
        """The plans of each scene; the planner is asked once, for every sentence that occurs. Where there is a debate,
        scenes must be those of whole games, game by game.

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
        """Action probabilities for each scene, [n, n_actions] float32; each row sums to 1.

        `uniform` [n], numbers in [0, 1), draws the plans of `hard` mode.

        Raises:
            LLMError: see `Planner.plans`.
            ConfigError: likewise; or the domain says something that is no action.
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
        # Games are often in one state, and then share the scene.
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
        """What a plan does.

        Raises:
            ConfigError: the domain says something that is no action.
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
    """The plan in whose share of [0, 1) `u` falls."""
    edge = 0.0
    for plan, probability in plans:
        edge += probability
        if u < edge:
            return plan
    return plans[-1][0]
