"""Policy that follows a planner's plans, and a loss that moves a student's policy towards it in visited states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from llmrl.core.agent_interfaces import PolicyWithoutValues
from llmrl.core.errors import ConfigError
from llmrl.core.records import PolicyOutput, State
from llmrl.core.seeding import Seeds
from llmrl.core.state_fields import StateFields
from llmrl.teachers.debate import Debate
from llmrl.teachers.domain import Scene
from llmrl.teachers.llm_planner import LLMPlanner
from llmrl.teachers.planners import PlanDistribution, Planner
from llmrl.teachers.plans import Plan, format_plan
from llmrl.teachers.schedules import Schedule

if TYPE_CHECKING:
    from llmrl.core.rollouts import Rollout

ADVICE_KEY = "advice"
"""Key of the teacher's action probabilities in minibatches."""

AdviceMode = Literal["soft", "hard"]
AdviceSharing = Literal["own", "mixture"]


class PlanPolicy:
    """Policy pi_T of plans: pi_T(a | s) is the sum of the probabilities of the plans whose action in state s is a.

    It follows LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373).

    Args:
        planner: planner that maps sentences to plans; its domain describes states and executes skills.
        mode: `soft`: pi_T; `hard`: probability 1 for the action of one plan, which is sampled for every state.
        sharing: `own`: each agent gets the probabilities of its plans; `mixture`: all agents of a game (copy of the
            environment) get the mean over the agents.
        n_agents: number of agents in a game.

    Attributes:
        sentences: all sentences that were looked up so far.
    """

    def __init__(
        self, planner: Planner, mode: AdviceMode = "soft", sharing: AdviceSharing = "own", n_agents: int = 1
    ) -> None:
        self.domain, self.planner, self.mode = planner.domain, planner, mode
        self.sharing, self.n_agents = sharing, n_agents
        self.sentences: set[str] = set()

    def scenes(self, observation: Mapping[str, np.ndarray], memory: np.ndarray | None = None) -> list[Scene]:
        """Return n * n_agents scenes, ordered by game, given observations [n, n_agents, ...].

        `memory` [n, n_agents, memory_size] is updated.
        """
        channels = {name: observation[name] for name in self.domain.channels}
        n, n_agents = next(iter(channels.values())).shape[:2]
        return [
            self.domain.scene(
                {name: x[i, agent] for name, x in channels.items()}, agent, None if memory is None else memory[i, agent]
            )
            for i in range(n)
            for agent in range(n_agents)
        ]

    def plans(self, scenes: Sequence[Scene]) -> list[PlanDistribution]:
        """Return the plans of each scene, after one call of the planner with all distinct sentences.

        With a `Debate`, the scenes must be those of all agents of one or more games, ordered by game.

        Raises:
            LLMError, ConfigError: see `Planner.plans`.
        """
        sentences = [scene.sentence for scene in scenes]
        distinct_sentences = list(dict.fromkeys(sentences))
        if isinstance(self.planner, Debate):
            n_agents = len(self.planner.agent_names)
            games = [tuple(sentences[i : i + n_agents]) for i in range(0, len(sentences), n_agents)]
            distributions = [plans for game in self.planner.deliberate(games) for plans in game]
        else:
            plans_by_sentence = dict(zip(distinct_sentences, self.planner.plans(distinct_sentences), strict=True))
            distributions = [plans_by_sentence[sentence] for sentence in sentences]
        self.sentences.update(distinct_sentences)
        return distributions

    def advise(self, scenes: Sequence[Scene], uniform_numbers: np.ndarray | None = None) -> np.ndarray:
        """Return action probabilities for each scene, [n, n_actions] float32.

        `uniform_numbers`: random numbers [n] in [0, 1), which select the plans in `hard` mode.

        Raises:
            LLMError: see `Planner.plans`.
            ConfigError: see `Planner.plans`; or the domain returned an invalid action.
            ValueError: the mode is `hard`, and `uniform_numbers` is missing.
        """
        if self.mode == "hard" and uniform_numbers is None:
            raise ValueError("mode=hard samples plans and needs a random number for each scene; pass `uniform_numbers`")
        distributions = self.plans(scenes)
        if self.mode == "hard" and uniform_numbers is not None:
            pairs = zip(distributions, uniform_numbers.tolist(), strict=True)
            distributions = [((_select_plan(plans, uniform_number), 1.0),) for plans, uniform_number in pairs]
        probabilities = np.zeros((len(scenes), self.domain.n_actions))
        for row, scene, plans in zip(probabilities, scenes, distributions, strict=True):
            for plan, probability in plans:
                row[self._choose_action(scene, plan)] += probability
        if self.sharing == "mixture":
            mean_probabilities = probabilities.reshape(-1, self.n_agents, probabilities.shape[1]).mean(1)
            probabilities = np.repeat(mean_probabilities, self.n_agents, axis=0)
        return probabilities.astype(np.float32)

    def _choose_action(self, scene: Scene, plan: Plan) -> int:
        """Return the action of a plan in a scene.

        Raises:
            ConfigError: the domain returned an invalid action.
        """
        action = self.domain.action(scene, plan)
        if not isinstance(action, int | np.integer) or not 0 <= action < self.domain.n_actions:
            raise ConfigError(
                f"the teacher's domain {type(self.domain).__name__} returned the action {action!r} for the plan "
                f"{format_plan(plan)!r} in the state {scene.sentence!r}; actions are 0 to {self.domain.n_actions - 1}"
            )
        return int(action)

    def state_dict(self) -> State:
        return {"sentences": sorted(self.sentences), "planner": self.planner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.sentences = set(state["sentences"])
        self.planner.load_state_dict(state["planner"])


def _select_plan(plans: PlanDistribution, uniform_number: float) -> Plan:
    """Return the plan whose interval of the cumulative distribution on [0, 1) contains `uniform_number`."""
    pairs = zip(plans, accumulate(probability for _, probability in plans), strict=True)
    return next((plan for (plan, _), edge in pairs if uniform_number < edge), plans[-1][0])


class PolicyTeacher(StateFields):
    """Teacher that adds weight * cross-entropy to the loss of a student with the policy pi_theta.

    It follows LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373): the student acts, and the teacher computes advice
    pi_T for each visited state. The cross-entropy -sum_a pi_T(a|s) log pi_theta(a|s) differs from KL(pi_T || pi_theta)
    by a constant.

    While the schedule's weight is 0, no state is described and the planner is not called.

    Args:
        plan_policy: policy pi_T.
        schedule: weight of the loss in each update.
        seeds: seed tree for the plans of `hard` mode, with a stream for each update.

    Attributes:
        channels: channels that the domain reads.
        policy: the teacher as a policy.
        shares_plan_samples: whether plans are sampled once per sentence, so that all episodes share them.
        updates: number of rollouts since the start or the last `reset`.
        queries: number of states looked up since the start of the run.
        weight: weight of the loss in the current update.
    """

    _state_fields = ("updates", "queries", "weight", "_memory", "plan_policy")

    def __init__(self, plan_policy: PlanPolicy, schedule: Schedule, seeds: Seeds) -> None:
        self.plan_policy, self.schedule = plan_policy, schedule
        self.channels = plan_policy.domain.channels
        self.policy = TeacherPolicy(plan_policy)
        self.shares_plan_samples = isinstance(plan_policy.planner, LLMPlanner | Debate)
        self._seeds = seeds.child("plans")
        self.updates, self.queries, self.weight = 0, 0, 0.0
        self._memory: np.ndarray | None = None

    def advise(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Return `ADVICE_KEY` -> pi_T in every state, [T, n_envs, n_agents, n_actions] float32; empty at weight 0.

        Raises:
            LLMError: the planner's language model failed permanently.
        """
        weight = self.schedule(self.updates)
        if weight == 0.0:
            self._memory = None  # the memory would lack the states of this rollout
        advice = {ADVICE_KEY: self._compute_advice(rollout)} if weight != 0.0 else {}
        self.weight = weight
        self.updates += 1
        return advice

    def loss(
        self, minibatch: dict[str, torch.Tensor], logits: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the weighted mean cross-entropy over the minibatch (0 without advice) and metrics.

        Metrics: teacher/cross_entropy in nats; teacher/agreement, the fraction of states in which the student's most
        probable action is a most probable action of the teacher. Actions that `action_mask` excludes are removed from
        the advice; states without remaining advice are excluded from the means.
        """
        if ADVICE_KEY not in minibatch:
            return logits.new_zeros(()), {}
        advice = minibatch[ADVICE_KEY]
        has_advice = torch.ones_like(advice[..., 0])
        log_probs = logits.log_softmax(-1)
        if "action_mask" in minibatch:
            allowed_actions = minibatch["action_mask"].bool()
            advice = advice * allowed_actions
            advice_sums = advice.sum(-1, keepdim=True)
            has_advice = (advice_sums[..., 0] > 0).to(advice.dtype)
            advice = advice / advice_sums.clamp_min(torch.finfo(advice.dtype).tiny)
            log_probs = log_probs.masked_fill(~allowed_actions, 0.0)
        n = has_advice.sum().clamp_min(1.0)
        cross_entropy = (-(advice * log_probs).sum(-1) * has_advice).sum() / n
        student_choice_advice = advice.gather(-1, logits.argmax(-1, keepdim=True))[..., 0]
        agreement = ((student_choice_advice >= advice.amax(-1)) * has_advice).sum() / n
        metrics = {"teacher/cross_entropy": cross_entropy.detach(), "teacher/agreement": agreement}
        return self.weight * cross_entropy, metrics

    def metrics(self) -> dict[str, float]:
        """Return metrics of the teacher and of the planner.

        They are teacher/weight in the current update; teacher/queries (`queries`); and teacher/states, the number of
        distinct sentences of the queried states.
        """
        return {
            "teacher/weight": self.weight,
            "teacher/queries": float(self.queries),
            "teacher/states": float(len(self.plan_policy.sentences)),
            **self.plan_policy.planner.metrics(),
        }

    def describe(self) -> dict[str, str]:
        """Return a description of planner, domain and schedule for the printed plan."""
        plan_policy = self.plan_policy
        sharing = {"sharing": plan_policy.sharing} if plan_policy.n_agents > 1 else {}
        return {
            **plan_policy.planner.describe(),
            "domain": plan_policy.domain.name,
            "mode": plan_policy.mode,
            **sharing,
            "parity": str(plan_policy.domain.parity).lower(),
            "schedule": str(self.schedule),
        }

    def count_taught_updates(self, n_updates: int) -> int:
        """Return the number of updates with a positive weight among the first `n_updates` updates."""
        return sum(self.schedule(update) > 0 for update in range(n_updates))

    def reset(self) -> None:
        """Restart the schedule."""
        self.updates, self._memory = 0, None

    def _compute_advice(self, rollout: Rollout) -> torch.Tensor:
        observation = {name: rollout.observation[name].cpu().numpy() for name in self.channels}
        n_steps, n_envs, n_agents = rollout.action.shape
        memory: np.ndarray | None = None
        if self.plan_policy.domain.memory_size:
            if self._memory is None:
                memory = np.zeros((n_envs, n_agents, self.plan_policy.domain.memory_size))
            else:
                memory = self._memory.copy()  # so that the state stays unchanged if a model fails
            episode_starts = rollout.episode_start.cpu().numpy()
            scenes = []
            for t in range(n_steps):
                memory[episode_starts[t]] = 0.0
                scenes += self.plan_policy.scenes({name: x[t] for name, x in observation.items()}, memory)
        else:
            flat_observation = {name: x.reshape(n_steps * n_envs, *x.shape[2:]) for name, x in observation.items()}
            scenes = self.plan_policy.scenes(flat_observation)
        is_hard = self.plan_policy.mode == "hard"
        uniform_numbers = self._seeds.numpy(self.updates).random(len(scenes)) if is_hard else None
        advice = self.plan_policy.advise(scenes, uniform_numbers)
        self._memory = memory
        self.queries += len(scenes)
        return torch.from_numpy(advice).reshape(n_steps, n_envs, n_agents, -1).to(rollout.action.device)


class TeacherPolicy(PolicyWithoutValues):
    """A teacher's `PlanPolicy` with the interface of agents' policies.

    Args:
        plan_policy: policy that defines the action probabilities.

    Attributes:
        channels: channels that the teacher's domain reads.
    """

    def __init__(self, plan_policy: PlanPolicy) -> None:
        self.plan_policy = plan_policy
        self.channels = plan_policy.domain.channels
        self._scenes: list[Scene] = []
        self._n_agents = 1

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Sample actions from the advice; with `greedy`, return the most probable ones (`hard`: of the likeliest plan).

        `state` [n_envs, n_agents, memory_size] float64 is the domain's memory; None if it has none.
        """
        arrays = {name: observation[name].cpu().numpy() for name in self.channels}
        device = observation[self.channels[0]].device
        shape = next(iter(arrays.values())).shape[:2]
        memory: np.ndarray | None = None
        if self.plan_policy.domain.memory_size:
            if state is None:
                memory = np.zeros((*shape, self.plan_policy.domain.memory_size))
            else:
                memory = state.cpu().numpy().astype(np.float64)  # a copy
        scenes = self.plan_policy.scenes(arrays, memory)
        self._scenes, self._n_agents = scenes, shape[1]
        uniform_numbers, n = None, len(scenes)
        if self.plan_policy.mode == "hard":
            # The first plan is the most probable.
            uniform_numbers = np.zeros(n) if greedy else torch.rand(n, generator=generator, dtype=torch.float64).numpy()
        advice = torch.from_numpy(self.plan_policy.advise(scenes, uniform_numbers))
        action = advice.argmax(-1) if greedy else torch.multinomial(advice, 1, generator=generator)[:, 0]
        log_probs = advice.clamp_min(torch.finfo(advice.dtype).tiny).log()
        return PolicyOutput(
            action=action.reshape(shape).to(device),
            log_prob=log_probs.gather(-1, action[:, None]).reshape(shape).to(device),
            state=None if memory is None else torch.from_numpy(memory).to(device),
            logits=log_probs.reshape(*shape, -1).to(device),
        )

    def thoughts(self, game: int, agent: int) -> list[str]:
        """Return the sentence of the last state and its plans with their probabilities, as lines for human readers."""
        scenes = self._scenes[game * self._n_agents : (game + 1) * self._n_agents]
        plans = self.plan_policy.plans(scenes)[agent]
        return [scenes[agent].sentence, *(f"{probability:.2f} {format_plan(plan)}" for plan, probability in plans)]
