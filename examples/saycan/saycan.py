"""Say what is useful, do what can be done: a policy that weighs a language model's scores with affordances.

Ahn et al. 2022 (arXiv 2204.01691): pi(a | s) is proportional to p(name of a | prompt) times the chance that a succeeds
in s. Here the chance is read off what lies in front of the agent: nobody can walk into a wall or pick up nothing.

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

AHEAD, OWN = (3, 5), (3, 6)
"""The cell in front of the agent in its view [7, 7, 3], and that on which it stands."""
Likely = Annotated[float, Interval(gt=0, le=1)]


def affordances(view: np.ndarray, n_actions: int, unlikely: float) -> np.ndarray:
    """Return the probability that each action changes anything, [n, n_actions], for views [n, 7, 7, 3].

    It is `unlikely` for actions without effect. Actions are MiniGrid's: left, right, forward, pick up, drop, toggle;
    others always work.
    """
    kind, color, state = (view[:, *AHEAD, i] for i in range(3))
    carried = view[:, *OWN]  # on its own cell it sees what it carries
    free_hands = np.isin(carried[:, 0], (UNSEEN, EMPTY))
    its_key = (carried[:, 0] == KEY) & (carried[:, 1] == color)
    thing = np.isin(kind, (KEY, BALL, BOX))
    works = np.ones((len(view), n_actions), dtype=bool)
    possible = (
        np.isin(kind, (EMPTY, FLOOR, GOAL)) | ((kind == DOOR) & (state == OPEN)),
        thing & free_hands,
        (kind == EMPTY) & ~free_hands,
        (kind == BOX) | ((kind == DOOR) & ((state != LOCKED) | its_key)),
    )
    for action, each in zip(range(2, n_actions), possible, strict=False):
        works[:, action] = each
    return np.where(works, 1.0, unlikely)


class SayCanPolicy:
    """log pi(a | s) = log p(name of a | prompt) + log affordance(a, s) + constant."""

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
        said = self.scorer.score(prompts, self.spec.continuations("prompt")).cpu()
        view = observation["view"].cpu().numpy()[:, 0]
        can = torch.from_numpy(affordances(view, self.spec.n_actions, self.unlikely)).float()
        logits = (said + can.log())[:, None]
        return PolicyOutput(logits.argmax(-1) if greedy else sample_categorical(logits, generator), logits=logits)

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return zeros, because the policy has no value function."""
        return torch.zeros(self.spec.n_envs, self.spec.n_agents)


class SayCanAgent(NonLearningAgent):
    """Plays, never learns.

    Args:
        spec: of the environment.
        scorer: the language model.
        unlikely: affordance of what would change nothing, above 0 so that nothing is ruled out.
    """

    def __init__(self, spec: EnvSpec, scorer: Scorer, unlikely: Likely = 0.01) -> None:
        self.policy = SayCanPolicy(spec, scorer, unlikely)

    def describe(self) -> dict[str, Any]:
        return {"policy": f"{self.policy.scorer.label}, weighed with affordances", "parameters": 0}
