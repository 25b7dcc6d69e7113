"""What every loop is given beside its settings: the parts of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmrl.core.objectives import Objective
from llmrl.core.observers import Observer
from llmrl.core.protocols import Agent, Meter, Proposer, Teacher, VecEnv
from llmrl.core.seeding import Seeds

if TYPE_CHECKING:
    from llmrl.loops.references import References


@dataclass(frozen=True)
class LoopParts:
    """The parts of a run.

    Attributes:
        env, agents: what plays; one agent for each society.
        seeds: root of the loop's random numbers.
        device: of the policy.
        objective, spending_cost: what a society is judged on, and what it loses for each unit of reward that its
            mechanism pays out beyond what it takes; None is the environment's own measure.
        principal: who proposes; None: nobody does.
        teacher: the agents', whose channels rollouts hold too; None if there is none.
        meter: totals of a language model's calls, which are logged; None if none is used.
        observers: the user's own, who watch the games.
        cores: processes that episodes are played in, where a game has no batched engine; None: as many as there are.
        known: tells what reference runs found, once they are finished; None before.
    """

    env: VecEnv
    agents: Sequence[Agent]
    seeds: Seeds
    device: str = "cpu"
    objective: Objective | None = None
    spending_cost: float = 0.0
    principal: Proposer | None = None
    teacher: Teacher | None = None
    meter: Meter | None = None
    observers: Sequence[Observer] = ()
    cores: int | None = None
    known: Callable[[], References | None] = lambda: None

    @property
    def judged(self) -> tuple[Objective, float]:
        """What a society is judged on: the measure, and the cost of spending."""
        return self.objective or self.env.spec.objective, self.spending_cost

    @property
    def kept(self) -> Sequence[str]:
        """Channels that rollouts hold for a teacher."""
        return () if self.teacher is None else self.teacher.channels
