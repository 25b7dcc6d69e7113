"""SayCan policy, which combines the scores of a language model with affordances.

Ahn et al. 2022 (arXiv 2204.01691): pi(a | s) is proportional to p(name of a | prompt) times the probability that a
succeeds in s. Here, this probability is computed from the cell in front of the agent: for example, walking into a wall
and picking up from an empty cell have no effect.

    PYTHONPATH=examples/saycan llmrl-train --config-dir examples/saycan/conf env=mixed_train agent=saycan \
        llm=local_scorer_seq2seq llm.model=google/flan-t5-small
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Interval

from llmrl.core.agent_interfaces import NonLearningAgent
from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import Scorer
from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec
from llmrl.envs.rooms.grid_world import BALL, BOX, DOOR, EMPTY, FLOOR, GOAL, KEY, LOCKED, OPEN, UNSEEN
from llmrl.networks.action_distributions import sample_categorical

FRONT_CELL, AGENT_CELL = (3, 5), (3, 6)
"""Cell in front of the agent, and cell of the agent, in its view [7, 7, 3]."""
PositiveProbability = Annotated[float, Interval(gt=0, le=1)]


def compute_affordances(view: np.ndarray, n_actions: int, unlikely: float) -> np.ndarray:
    """Return the affordance of each action, which is 1 for actions with an effect and `unlikely` for others.

    Args:
        view: views of the agents, [n, 7, 7, 3].
        n_actions: number of actions in the order of MiniGrid: left, right, forward, pick up, drop, toggle. Further
            actions always have an effect.
        unlikely: affordance of actions without effect.

    Returns:
        Affordances, [n, n_actions].
    """
    kind, color, state = (view[:, *FRONT_CELL, i] for i in range(3))
    inventory = view[:, *AGENT_CELL]  # the carried object is encoded in the cell of the agent
    has_free_hands = np.isin(inventory[:, 0], (UNSEEN, EMPTY))
    has_key = (inventory[:, 0] == KEY) & (inventory[:, 1] == color)
    is_object = np.isin(kind, (KEY, BALL, BOX))
    has_effect = np.ones((len(view), n_actions), dtype=bool)
    possible = (
        np.isin(kind, (EMPTY, FLOOR, GOAL)) | ((kind == DOOR) & (state == OPEN)),
        is_object & has_free_hands,
        (kind == EMPTY) & ~has_free_hands,
        (kind == BOX) | ((kind == DOOR) & ((state != LOCKED) | has_key)),
    )
    for action, is_possible in zip(range(2, n_actions), possible, strict=False):
        has_effect[:, action] = is_possible
    return np.where(has_effect, 1.0, unlikely)


class SayCanPolicy:
    """Policy with log pi(a | s) = log p(name of a | prompt) + log affordance(a, s) + constant."""

    def __init__(self, spec: EnvSpec, scorer: Scorer, unlikely: float) -> None:
        if missing := [name for name in ("prompt", "view") if name not in spec.observation]:
            raise ConfigError(f"agent=saycan needs the channel {missing[0]!r}; use env=babyai_text or mixed_train")
        self.spec, self.scorer, self.unlikely = spec, scorer, unlikely
        self.channels: tuple[str, ...] = ("prompt", "view")

    @torch.no_grad()
    def act(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Return actions [n_envs, 1]."""
        prompts = [str(text) for text in np.asarray(observation["prompt"], dtype=object).ravel()]
        scores = self.scorer.score(prompts, self.spec.continuations("prompt")).cpu()
        view = observation["view"].cpu().numpy()[:, 0]
        affordances = torch.from_numpy(compute_affordances(view, self.spec.n_actions, self.unlikely)).float()
        logits = (scores + affordances.log())[:, None]
        return PolicyOutput(logits.argmax(-1) if greedy else sample_categorical(logits, generator), logits=logits)

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return zeros, because the policy has no value function."""
        return torch.zeros(self.spec.n_envs, self.spec.n_agents)


class SayCanAgent(NonLearningAgent):
    """Agent with the SayCan policy, which does not learn.

    Args:
        spec: spec of the environment.
        scorer: language model.
        unlikely: affordance of actions without effect, in (0, 1], so that no action is excluded.
    """

    def __init__(self, spec: EnvSpec, scorer: Scorer, unlikely: PositiveProbability = 0.01) -> None:
        self.policy = SayCanPolicy(spec, scorer, unlikely)

    def describe(self) -> dict[str, Any]:
        return {"policy": f"{self.policy.scorer.label}, weighed with affordances", "parameters": 0}
