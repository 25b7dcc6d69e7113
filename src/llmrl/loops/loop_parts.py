"""The parts of a run, which every loop receives in addition to its settings, and the files that training writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmrl.core.agent_interfaces import RequiresMinRolloutSteps, TrainsAdapter
from llmrl.core.errors import ConfigError
from llmrl.core.observers import Observer
from llmrl.core.protocols import Agent, Proposer, Teacher, VecEnv
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.core.welfare_measures import Objective
from llmrl.rollout.episode_summaries import make_episode_row, write_results
from llmrl.run.artifacts import ADAPTER_FOLDER
from llmrl.run.run import Run

if TYPE_CHECKING:
    from llmrl.llms.client import ChatClient
    from llmrl.loops.reference_measurements import References


def min_rollout_steps(agents: Sequence[Agent], n_games: int) -> int:
    """Return the minimum number of rollout steps of each game with which all agents, of `n_games` games each, learn."""
    return max(
        (agent.min_rollout_steps(n_games) for agent in agents if isinstance(agent, RequiresMinRolloutSteps)), default=1
    )


def check_rollout_steps(agents: Sequence[Agent], steps: int, n_games: int) -> None:
    """Check that agents with `n_games` games each can learn from `steps` rollout steps of each game.

    Raises:
        ConfigError: an agent drops all samples, because a minibatch has more samples than the rollout.
    """
    if steps < (min_steps := min_rollout_steps(agents, n_games)):
        raise ConfigError(
            f"agent.ppo.drop_last=true drops all samples: an update has {steps} steps of {n_games} games for each "
            f"society, and a minibatch (agent.ppo.minibatch_size) needs {min_steps} steps. Use more games or steps, "
            "smaller minibatches or agent.ppo.drop_last=false"
        )


@dataclass(frozen=True)
class LoopParts:
    """The parts of a run.

    Attributes:
        env: environment.
        agents: one agent for each society.
        seeds: root seed node of the loop.
        device: torch device of the policy.
        objective: welfare measure of a society; None: the default of the environment.
        spending_cost: loss of welfare for each unit of reward that the mechanism pays out beyond what it takes.
        principal: principal of the run; None without one.
        teacher: teacher of the agents; None without one.
        meter: client of the language model, whose totals of calls and costs are logged; None without language model.
        observers: user-defined observers of the games.
        cores: number of processes for games without a batched engine; None: the number of CPU cores.
        load_references: function that returns the results of the reference runs; it returns None without these.
    """

    env: VecEnv
    agents: Sequence[Agent]
    seeds: Seeds
    device: str = "cpu"
    objective: Objective | None = None
    spending_cost: float = 0.0
    principal: Proposer | None = None
    teacher: Teacher | None = None
    meter: ChatClient | None = None
    observers: Sequence[Observer] = ()
    cores: int | None = None
    load_references: Callable[[], References | None] = lambda: None

    @property
    def welfare_measure(self) -> tuple[Objective, float]:
        """Welfare measure of a society, and `spending_cost`."""
        return self.objective or self.env.spec.objective, self.spending_cost

    @property
    def teacher_channels(self) -> Sequence[str]:
        """Names of the observation channels that the teacher reads; rollouts must contain them."""
        return () if self.teacher is None else self.teacher.channels


def describe_run(run: Run, env: str, agent: Agent) -> dict[str, Any]:
    """Return the keys of `results.json` that identify the run of an agent in an environment."""
    return {"env": env, "agent": agent.describe(), "llm": run.status.llm, "seed": run.seed}


def write_trained_results(
    run: Run, env: str, agent: Agent, episodes: Sequence[Episode], objective: Objective, spending_cost: float
) -> list[float]:
    """Write `results.json` of the final evaluation of a trained agent; return the objective of each episode.

    Args:
        run: run of the agent.
        env: name of the environment.
        agent: the trained agent.
        episodes: episodes of the final evaluation.
        objective, spending_cost: see `LoopParts`.
    """
    rows: list[dict[str, Any]] = [make_episode_row(episode, objective, spending_cost) for episode in episodes]
    write_results(run.folder, rows, learned=True, extra_fields=describe_run(run, env, agent))
    return [row["objective"] for row in rows]


def write_trained_adapter(run: Run, part: object, subfolder: str = "") -> None:
    """Write the adapter that an agent or a principal has trained into the run folder; do nothing if there is none."""
    if isinstance(part, TrainsAdapter):
        part.write_adapter(run.folder / ADAPTER_FOLDER / subfolder)
