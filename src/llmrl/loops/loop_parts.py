"""The parts of a run, which every loop gets in addition to its settings, and the results of training."""

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
from llmrl.run.artifacts import ADAPTER
from llmrl.run.run import Run

if TYPE_CHECKING:
    from llmrl.llms.client import ChatClient
    from llmrl.loops.reference_measurements import References


def min_rollout_steps(agents: Sequence[Agent], games: int) -> int:
    """Return the smallest number of steps of each of an agent's `games` games that all `agents` can learn from."""
    return max(
        (agent.min_rollout_steps(games) for agent in agents if isinstance(agent, RequiresMinRolloutSteps)), default=1
    )


def check_rollout_steps(agents: Sequence[Agent], steps: int, games: int) -> None:
    """Check that agents can learn from `steps` steps of each of their `games` games.

    Raises:
        ConfigError: a minibatch has more samples.
    """
    if steps < (min_steps := min_rollout_steps(agents, games)):
        raise ConfigError(
            f"agent.ppo.drop_last=true drops all samples: an update has {steps} steps of {games} games for each "
            f"society, and a minibatch (agent.ppo.minibatch_size) needs {min_steps} steps. Use more games or steps, "
            "smaller minibatches or agent.ppo.drop_last=false"
        )


@dataclass(frozen=True)
class LoopParts:
    """The parts of a run.

    Attributes:
        env, agents: environment, and one agent for each society.
        seeds: root of the loop's random numbers.
        device: torch device of the policy.
        objective: welfare measure of a society; None: the environment's own.
        spending_cost: loss of welfare for each unit of reward that the mechanism pays out beyond what it takes.
        principal: principal of the run; None without one.
        teacher: teacher of the agents, whose channels rollouts also hold; None without one.
        meter: totals of a language model's calls, which are logged; None if none is used.
        observers: the user's own observers of the games.
        cores: processes that play episodes of games without a batched engine; None: as many as there are cores.
        load_references: function that returns the results of reference runs; None until these are finished.
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
        """Welfare measure of a society, and the cost of spending."""
        return self.objective or self.env.spec.objective, self.spending_cost

    @property
    def teacher_channels(self) -> Sequence[str]:
        """Observation channels that rollouts hold for the teacher."""
        return () if self.teacher is None else self.teacher.channels


def describe_run(run: Run, env: str, agent: Agent) -> dict[str, Any]:
    """Return the keys of `results.json` that identify the run of an agent in an environment."""
    return {"env": env, "agent": agent.describe(), "llm": run.status.llm, "seed": run.seed}


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
    rows: list[dict[str, Any]] = [make_episode_row(episode, objective, spending_cost) for episode in episodes]
    write_results(run.folder, rows, learned=True, about=describe_run(run, env, agent))
    return [row["objective"] for row in rows]


def write_trained_adapter(run: Run, part: object, subfolder: str = "") -> None:
    """Write the adapter that an agent or a principal has trained into the run folder; do nothing if there is none."""
    if isinstance(part, TrainsAdapter):
        part.write_adapter(run.folder / ADAPTER / subfolder)
