"""`agent=teacher`: the teacher plays itself, to be measured."""

from __future__ import annotations

from typing import Any

from llmrl.core.errors import Incompatible, Misfit
from llmrl.core.non_learning_agent import NonLearningAgent
from llmrl.core.protocols import Teacher
from llmrl.core.records import State


class TeacherAgent(NonLearningAgent):
    """Plays the policy of `teacher=`, learns nothing.

    Raises:
        ConfigError: there is no teacher, or it cannot play.
    """

    def __init__(self, teacher: Teacher | None) -> None:
        if teacher is None or teacher.policy is None:
            raise Incompatible(
                Misfit.ABSENT,
                "agent=teacher plays a teacher; choose one, e.g. teacher=offline, teacher=oracle, teacher=llm",
            )
        self.policy, self.teacher = teacher.policy, teacher
        # Plans that a language model drew once are those of every episode of the run.
        self.shares_learning = bool(getattr(teacher, "keeps_draws", False))

    def describe(self) -> dict[str, Any]:
        return {"policy": "the teacher's", "parameters": 0}

    def state_dict(self) -> State:
        return {"teacher": self.teacher.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.teacher.load_state_dict(state["teacher"])
