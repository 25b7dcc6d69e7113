"""Results at the end of training: the trained agent's final episodes, and a trained adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmrl.core.learner_protocols import TrainsAdapter
from llmrl.core.protocols import Agent
from llmrl.core.rollouts import Episode
from llmrl.core.welfare_measures import Objective
from llmrl.rollout.episode_summaries import episode_row, write_results
from llmrl.run.artifacts import ADAPTER
from llmrl.run.run import Run


def write_trained_results(
    run: Run, env: str, agent: Agent, episodes: Sequence[Episode], objective: Objective, spending_cost: float
) -> list[float]:
    """Write `results.json` of the final episodes of a trained agent; return the objective of each.

    Args:
        run: run of the agent.
        env: name of the environment.
        agent: the trained agent.
        episodes: its final episodes.
        objective, spending_cost: welfare measure.
    """
    rows: list[dict[str, Any]] = [episode_row(episode, objective, spending_cost) for episode in episodes]
    description = {"env": env, "agent": agent.describe(), "llm": run.status.llm, "seed": run.seed}
    write_results(run.folder, rows, learned=True, about=description)
    return [row["objective"] for row in rows]


def write_trained_adapter(run: Run, part: object) -> None:
    """Write the adapter that an agent or a principal has trained into the run folder; do nothing if there is none."""
    if isinstance(part, TrainsAdapter):
        part.write_adapter(run.folder / ADAPTER)
