"""The teacher's loss: the student's policy is drawn towards what plans do in the states the student visits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.teachers.debate import Debate
from llmrl.teachers.llm_planner import LLMPlanner
from llmrl.teachers.plan_policy import PlanPolicy
from llmrl.teachers.schedules import Schedule
from llmrl.teachers.teacher_policy import TeacherPolicy

if TYPE_CHECKING:
    from llmrl.core.rollouts import Rollout

ADVICE = "advice"
"""What joins the minibatches: the teacher's action probabilities."""


class PolicyTeacher:
    """Adds weight * H(pi_T, pi_theta) to the student's loss, with the cross-entropy -sum_a pi_T(a|s) log pi_theta(a|s).

    After LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373): the student acts, the teacher says what it would have
    done in each state. Up to a constant the cross-entropy is KL(pi_T || pi_theta).

    Where the schedule's weight is 0 no scene is described and nothing is asked.

    Args:
        plan_policy: gives pi_T.
        schedule: weight of the loss in each update.
        seeds: draw the plans of the guide's `hard` mode, for each update from a stream of its own.

    Attributes:
        channels: what the domain reads.
        policy: the guide as a player.
        keeps_draws: plans are drawn, and kept for all states that read the same: so all episodes share them.
        updates: rollouts advised on so far.
        weight: of the loss in the present update.
    """

    def __init__(self, plan_policy: PlanPolicy, schedule: Schedule, seeds: Seeds) -> None:
        self.plan_policy, self.schedule = plan_policy, schedule
        self.channels = plan_policy.domain.channels
        self.policy = TeacherPolicy(plan_policy)
        planner = plan_policy.planner.planner if isinstance(plan_policy.planner, Debate) else plan_policy.planner
        self.keeps_draws = isinstance(planner, LLMPlanner)
        self._seeds = seeds.child("plans")
        self.updates, self.queries, self.weight = 0, 0, 0.0
        self._memory: np.ndarray | None = None

    def advise(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """advice: pi_T in every state, [T, n_envs, n_agents, n_actions] float32; nothing at weight 0.

        Raises:
            LLMError: the planner's language model failed for good.
        """
        weight = self.schedule(self.updates)
        if weight == 0.0:
            self._memory = None  # it would be of other episodes when the teacher speaks again
            advice = {}
        else:
            advice = {ADVICE: self._advice(rollout)}
        self.weight = weight
        self.updates += 1
        return advice

    def loss(
        self, minibatch: dict[str, torch.Tensor], logits: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The weighted cross-entropy, mean over the minibatch; 0 where there is no advice.

        Metrics: teacher/cross_entropy in nats; teacher/agreement, the share of states in which the student's likeliest
        action is (one of) the teacher's. Actions that an `action_mask` forbids are taken out of the advice, and states
        in which none is left do not count.
        """
        if ADVICE not in minibatch:
            return logits.new_zeros(()), {}
        advice = minibatch[ADVICE]
        counted = torch.ones_like(advice[..., 0])
        log_probs = logits.log_softmax(-1)
        if "action_mask" in minibatch:
            allowed = minibatch["action_mask"].bool()
            advice = advice * allowed
            total = advice.sum(-1, keepdim=True)
            counted = (total[..., 0] > 0).to(advice.dtype)
            advice = advice / total.clamp_min(torch.finfo(advice.dtype).tiny)
            log_probs = log_probs.masked_fill(~allowed, 0.0)
        n = counted.sum().clamp_min(1.0)
        cross_entropy = (-(advice * log_probs).sum(-1) * counted).sum() / n
        chosen = advice.gather(-1, logits.argmax(-1, keepdim=True))[..., 0]
        agreement = ((chosen >= advice.amax(-1)) * counted).sum() / n
        metrics = {"teacher/cross_entropy": cross_entropy.detach(), "teacher/agreement": agreement}
        return self.weight * cross_entropy, metrics

    def metrics(self) -> dict[str, float]:
        """teacher/weight of the present update; teacher/queries, states looked up, and teacher/states, distinct
        sentences among them, since the start of the run; and the planner's."""
        return {
            "teacher/weight": self.weight,
            "teacher/queries": float(self.queries),
            "teacher/states": float(len(self.plan_policy.sentences)),
            **self.plan_policy.planner.metrics(),
        }

    def describe(self) -> dict[str, str]:
        """What a plan of the run says of it: who plans, and how that is taught."""
        plan_policy = self.plan_policy
        tell = getattr(plan_policy.planner, "describe", None)  # not every planner has it
        words = {"planner": type(plan_policy.planner).__name__} if tell is None else tell()
        several = {"sharing": plan_policy.sharing} if plan_policy.n_agents > 1 else {}
        flawed = str(plan_policy.domain.parity).lower()
        return {
            **words,
            "domain": plan_policy.domain.name,
            "mode": plan_policy.mode,
            **several,
            "parity": flawed,
            "schedule": str(self.schedule),
        }

    def taught(self, updates: int) -> int:
        """In how many of a student's first `updates` updates it has a say."""
        return sum(self.schedule(update) > 0 for update in range(updates))

    def reset(self) -> None:
        """Begin the schedule anew."""
        self.updates, self._memory = 0, None

    def state_dict(self) -> State:
        return {
            "updates": self.updates,
            "queries": self.queries,
            "weight": self.weight,
            "memory": None if self._memory is None else self._memory.copy(),
            "plan_policy": self.plan_policy.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.updates, self.queries, self.weight = state["updates"], state["queries"], state["weight"]
        self._memory = None if state["memory"] is None else np.array(state["memory"])
        self.plan_policy.load_state_dict(state["plan_policy"])

    def _advice(self, rollout: Rollout) -> torch.Tensor:
        observation = {name: rollout.observation[name].cpu().numpy() for name in self.channels}
        steps, n_envs, n_agents = rollout.action.shape
        memory: np.ndarray | None = None
        if self.plan_policy.domain.memory:
            # A copy: if a model fails, nothing has happened.
            blank = np.zeros((n_envs, n_agents, self.plan_policy.domain.memory))
            memory = blank if self._memory is None else self._memory.copy()
            first = rollout.episode_start.cpu().numpy()
            scenes = []
            for t in range(steps):
                memory[first[t]] = 0.0
                scenes += self.plan_policy.scenes({name: x[t] for name, x in observation.items()}, memory)
        else:
            merged = {name: x.reshape(steps * n_envs, *x.shape[2:]) for name, x in observation.items()}
            scenes = self.plan_policy.scenes(merged)
        uniform = self._seeds.numpy(self.updates).random(len(scenes)) if self.plan_policy.mode == "hard" else None
        advice = self.plan_policy.advise(scenes, uniform)
        self._memory = memory
        self.queries += len(scenes)
        return torch.from_numpy(advice).reshape(steps, n_envs, n_agents, -1).to(rollout.action.device)
