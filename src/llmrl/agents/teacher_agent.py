"""Agent `agent=teacher`, which follows a teacher's policy, so that the teacher can be evaluated."""

from __future__ import annotations

from typing import Any

from llmrl.core.agent_interfaces import NonLearningAgent
from llmrl.core.errors import IncompatibilityReason, Incompatible
from llmrl.core.protocols import Teacher


class TeacherAgent(NonLearningAgent):
    """Agent that follows the policy of `teacher` and never learns.

    Raises:
        Incompatible: there is no teacher, or it has no policy.
    """

    _state_fields = ("teacher",)

    def __init__(self, teacher: Teacher | None) -> None:
        if teacher is None or teacher.policy is None:
            raise Incompatible(
                IncompatibilityReason.MISSING_PART,
                "agent=teacher needs a teacher that can play; choose teacher=offline, teacher=oracle or teacher=llm",
            )
        self.policy, self.teacher = teacher.policy, teacher
        # All episodes of a run share the plans that a language model sampled once.
        self.shares_learning = bool(getattr(teacher, "shares_plan_samples", False))

    def describe(self) -> dict[str, Any]:
        return {"policy": "the teacher's", "parameters": 0}
