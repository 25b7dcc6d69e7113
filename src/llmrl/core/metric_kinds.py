"""The kinds of rows of metrics, and their counters."""

from __future__ import annotations

from typing import Literal

Kind = Literal[
    "update", "adaptation", "proposal", "confirmation", "recommendation", "episode", "race", "evaluation", "probe"
]
"""The subject of a row of metrics.

- update: one or several updates of an agent's weights, and the rollouts they used.
- adaptation: a round in which a society plays under a mechanism and is updated.
- proposal: the last proposals, their outcomes, and the metrics of the proposer.
- episode: all episodes so far of agents that only play; of an external learner, the episodes since the last row.
- confirmation: a principal step that measured the leading candidates again.
- recommendation: the evaluation of the vectors that a principal recommends after some measurements.
- race: a round in which the best few policies of a search were measured again.
- evaluation: agents, or the result of a search, measured without learning.
- probe: probabilities of actions in a fixed set of situations.
"""
Counter = Literal[
    "env_steps",
    "updates",
    "rounds",
    "proposals",
    "measurements",
    "principal_steps",
    "iterations",
    "episodes",
    "samples",
]
"""Counters of rows of metrics, from the beginning of the run.

- env_steps: environment steps, summed over games, that were played for learning or for evaluating proposals.
- updates: updates of an agent's weights.
- rounds: adaptation rounds, over all principal steps.
- proposals: vectors evaluated, including random ones before a search.
- measurements: vectors evaluated by the steps of a principal, confirmations included.
- principal_steps, iterations: calls of a principal's `ask`, in mechanism design and in policy search.
- episodes: finished episodes.
- samples: recorded steps that an imitator was trained on, counted with repetitions.
"""
