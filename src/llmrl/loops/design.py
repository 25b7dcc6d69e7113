"""Mechanism design: propose, adapt, validate, tell; confirm the leading candidates; evaluate the recommendation."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from llmrl.core.protocols import AcceptsBriefing, EstimatesCalls, GradientProposer, MetaLearner
from llmrl.core.records import Briefing, CallEstimate, State
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.run_context import ProgressDisplay, RunContext
from llmrl.core.welfare_measures import Objective
from llmrl.loops.adaptation_record import AdaptationRecord
from llmrl.loops.compute_requests import Ask, Log, PlayEpisode, Requests, SafePoint
from llmrl.loops.confirmation import Confirmation
from llmrl.loops.design_plan import DesignPlan
from llmrl.loops.design_results import DesignResults
from llmrl.loops.design_settings import DesignSettings, checked_horizon, confirmation_steps, differentiable_agent
from llmrl.loops.design_trials import Trial
from llmrl.loops.loop_parts import LoopParts, check_rollout_steps
from llmrl.loops.proposal_outcomes import (
    Score,
    draw_name,
    proposal_metrics,
    repetitions_of,
    score,
)
from llmrl.loops.recommendation import (
    ANYTIME_MEASUREMENTS,
    Context,
    RecommendationEvaluator,
    is_anytime,
    max_trials,
)
from llmrl.loops.reference_measurements import References
from llmrl.loops.societies import Adaptation, Societies
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_summaries import summarize
from llmrl.rollout.progress_observers import GraceWatch, StepProgress

log = logging.getLogger(__name__)


class DesignLoop:
    """The published protocol (arXiv 2410.08345, algorithm 1) with several games in parallel, and two scores.

    One principal step: propose one or several vectors, reset the agents, adapt for some rounds (every game plays an
    episode, then one update), validate for some episodes with frozen policies, tell the principal the outcomes.

    Several vectors of a step are measured in parallel: each governs an equal share of the games and a society of its
    own. All societies start from the same weights and draw the same random numbers; only repetitions of a vector within
    a step draw their own. A vector may govern several societies, and its value is their mean (`Societies`).

    The last principal steps measure the leading candidates again (`Confirmation`); the principal then recommends one in
    each context (`Recommender`; without such a rule, the vector with the highest mean of all measurements). The
    recommendation is evaluated from the same initial weights on random numbers that are used for nothing else
    (`RecommendationEvaluator`): this is the result of the run. The mean objective of the last fifth of the proposals
    is its online performance. After the run the agents are those of the last proposal.

    A principal that learns from gradients gets one through the agents' updates of the step. The graph of such a step
    cannot be saved, so a run that is killed within it begins the step anew, with the same numbers.

    A round draws random numbers only from the seed sub-tree of its trial and index, so a run that was killed continues
    bit for bit from any checkpoint on a deterministic engine, on the same type of machine with the same library builds.

    Args:
        parts: parts of the run; a principal, and an agent for each society (`Societies`). The environment needs a
            mechanism and a horizon.
        settings: section `design` of the config.

    Raises:
        ConfigError: parts that cannot work together.
    """

    def __init__(self, parts: LoopParts, settings: DesignSettings) -> None:
        env, principal = parts.env, parts.principal
        assert principal is not None
        self.horizon = checked_horizon(env.spec, principal, settings)
        self.env, self.agents, self.principal, self.seeds = env, parts.agents, principal, parts.seeds
        self.settings, self.meter = settings, parts.meter
        self.steps, self.candidates = settings.steps, settings.candidates
        self.confirm_steps = confirmation_steps(settings, len(env.spec.contexts))
        # Agents that neither learn nor carry a state over play the same in the last round as in the first.
        adapts = any(agent.learns or getattr(agent, "carried", ()) for agent in parts.agents)
        self.adapt_rounds = settings.adapt_rounds if adapts else 0
        self.earlier_validations = sorted({n for n in settings.validate_at or () if n < self.adapt_rounds})
        self.reset_agents = settings.reset_agents
        consecutive = settings.society_seeds == "consecutive"
        self.societies = Societies(env, self.agents, self.candidates, settings.replicates, consecutive)
        self.validate_rounds = -(-settings.validate_episodes // self.societies.games)
        self.objective: Objective = settings.objective or env.spec.objective
        self.spending_cost = settings.spending_cost
        self.differentiable = differentiable_agent(env, self.agents[0], principal, settings.adapt_rounds)
        self.collector = Collector(env, self.societies.policy, parts.device, parts.kept, observers=parts.observers)
        self.adaptation = Adaptation(self.collector, self.societies, self.horizon, settings.rollout_steps)
        if self.adapt_rounds:
            check_rollout_steps(self.agents, self.adaptation.pieces[0], self.societies.games)
        self.find_references = parts.known if settings.references != 0 else lambda: None
        self._brief({})
        # The progress of the run, all of it in a checkpoint.
        self.step = 0
        self.round = 0
        self.trial: Trial | None = None
        games = self.societies.games * self.societies.several
        self.record = AdaptationRecord(self.adapt_rounds, self.candidates, games, self.objective, self.spending_cost)
        episodes = self.validate_rounds * self.societies.games
        self.results = DesignResults(env.spec, episodes, self.societies.several)
        self.references: References | None = None
        self.final_agents: list[State] = []  # after the last proposal, while candidates are confirmed and evaluated
        self._anchor: tuple[int, Callable[[], State]] | None = None  # where a step with a graph would begin anew

    def _brief(self, without: Mapping[str | None, float]) -> None:
        """Describe the run to a principal that reads."""
        if isinstance(self.principal, AcceptsBriefing):
            societies = self.settings.replicates
            episodes = self.validate_rounds * self.societies.games * societies
            briefing = Briefing(
                steps=self.proposal_steps,
                adapt_rounds=self.adapt_rounds,
                validate_episodes=episodes,
                replicates=societies,
                reset=self.reset_agents,
                without=without,
                games=self.societies.games,
                updates=len(self.adaptation.pieces) if self.agents[0].learns else 0,
                confirmations=self.confirm_steps * self.candidates,
                pretraining=getattr(self.agents[0], "pretraining", None),
            )
            self.principal.brief(briefing)

    @property
    def proposal_steps(self) -> int:
        """Principal steps in which the principal proposes."""
        return self.steps - self.confirm_steps

    @property
    def max_evaluation_trials(self) -> int:
        """Trials of the final evaluation at most."""
        settings = self.settings
        recommendations = 1
        if settings.anytime:
            recommendations += sum(n < self.steps * self.candidates for n in ANYTIME_MEASUREMENTS)
        each = max_trials(settings.evaluations, self.candidates, recommendations, settings.anytime)
        return each * len(self.results.contexts)

    @property
    def env_steps(self) -> int:
        """Environment steps of the whole run at most, summed over games."""
        return self.env_steps_of(self.steps, self.max_evaluation_trials)

    def env_steps_of(self, steps: int, evaluation_trials: int, rounds: int = 0) -> int:
        """Return the environment steps, summed over games, of principal steps, evaluation trials, and rounds of a
        further trial."""
        rounds += (steps + evaluation_trials) * (self.adapt_rounds + self.validate_rounds)
        rounds += min(steps, self.proposal_steps) * len(self.earlier_validations) * self.validate_rounds
        return rounds * self.horizon * self.env.spec.n_envs

    @property
    def env_steps_played(self) -> int:
        """Environment steps so far."""
        return self.env_steps_of(self.step, self.results.evaluation_trials, self.round)

    def plan(self) -> list[tuple[str, str]]:
        return DesignPlan(
            settings=self.settings,
            confirm_steps=self.confirm_steps,
            adapt_rounds=self.adapt_rounds,
            earlier_validations=self.earlier_validations,
            games=self.societies.games,
            updates=len(self.adaptation.pieces),
            validation_episodes=self.validate_rounds * self.societies.games,
            learns=self.agents[0].learns,
            objective=self.objective.name,
            has_contexts=bool(self.env.spec.contexts),
            evaluation_trials=self.max_evaluation_trials,
            env_steps=self.env_steps,
        ).rows()

    def estimate(self) -> CallEstimate | None:
        estimates: list[CallEstimate] = []
        if isinstance(self.principal, EstimatesCalls):
            estimates.append(self.principal.estimate(self.proposal_steps, self.candidates))
        rounds = self.env_steps // (self.horizon * self.env.spec.n_envs)
        estimates += [
            agent.estimate(self.horizon, rounds * self.societies.games)
            for agent in self.agents
            if isinstance(agent, EstimatesCalls)
        ]
        return CallEstimate.total(estimates) if estimates else None

    def requests(self, run: RunContext) -> Requests[float]:
        """Return the mean evaluated objective of the recommendations over contexts; the online performance if nothing
        is evaluated."""
        self._restore(run)
        self.references = self.find_references()
        self._brief({} if self.references is None else self.references.without)
        if self.references and self.references.warning:
            log.warning("%s", self.references.warning)
        with (
            run.progress(self.env_steps, "steps", "design", self.env_steps_played) as progress,
            self.collector.observed(StepProgress(progress, self.env.spec.n_envs), GraceWatch(run, self._resumable)),
        ):
            while self.step < self.proposal_steps:
                yield from self._propose(run, progress)
            if not self.final_agents:
                self.final_agents = [copy.deepcopy(agent.state_dict()) for agent in self.agents]
            yield from self._confirm(run)
            self.results.recommend(self.principal)
            yield from self._evaluate(run)
            for agent, state in zip(self.agents, self.final_agents, strict=True):
                agent.load_state_dict(copy.deepcopy(state))
        yield SafePoint(*self._resumable(), always=True)
        self.collector.close()
        return self._conclude(run)

    def _propose(self, run: RunContext, progress: ProgressDisplay) -> Requests[None]:
        """Request vectors, measure them, tell the principal."""
        context = self._context()
        if self.trial is None:
            with run.saved_if_refused(self._iteration(), self.state_dict):
                vectors = yield Ask(self.principal, context, self.candidates)
            self.trial = Trial("proposal", context, vectors, repetitions_of(vectors), self.step)
            self.record.clear()
            if self.reset_agents:
                self.societies.reset()
        if self.differentiable:
            self._anchor = self._snapshot(run)
        scores = yield from self._measure(run, self.trial)
        yield self._tell(scores)
        best = max((each.outcome for each in scores), key=lambda outcome: outcome.value)
        assert self.env.spec.mechanism is not None
        progress.tell(best.value, self.env.spec.mechanism.in_words(best.vector))
        self.step, self.round, self.trial, self._anchor = self.step + 1, 0, None, None
        if self.settings.anytime and is_anytime(self.results.history.measurements, self.candidates):
            self.results.recommend(self.principal)
        yield SafePoint(*self._resumable())

    def _confirm(self, run: RunContext) -> Requests[None]:
        """Measure the leading candidates of each context again."""
        if not self.confirm_steps or self.results.evaluator is not None:
            return
        if self.results.confirmation is None:
            most = self.confirm_steps * self.candidates
            leading = {
                context: self.results.ranking(self.principal, context)[:most] for context in self.results.contexts
            }
            self.results.confirmation = Confirmation(leading, self.confirm_steps, self.candidates)
        while not self.results.confirmation.finished:
            context = self.results.confirmation.context
            halving = self.results.confirmation.halvings[context]
            if self.trial is None:
                members, draws = zip(*halving.trial, strict=True)
                self.trial = Trial("confirmation", context, halving.vectors[list(members)], draws)
                self._restore_start()
            scores = yield from self._measure(run, self.trial)
            self.results.history.add(self.step + 1, scores, self.trial.draws, confirmed=True)
            if getattr(self.principal, "learns_from_others", False):
                self.principal.tell([each.outcome for each in scores])
            halving.advance(lambda vector, context=context: self.results.history.estimates.of(vector, context).value)  # type: ignore[misc]
            self.step, self.round, self.trial = self.step + 1, 0, None
            if self.settings.anytime and is_anytime(self.results.history.measurements, self.candidates):
                self.results.recommend(self.principal)
            values = [each.outcome.value for each in scores]
            metrics = {"confirmation/objective": float(np.mean(values))}
            metrics["confirmation/candidates"] = float(len(halving.survivors))
            yield Log("confirmation", "measurements", metrics, self._counters())
            yield SafePoint(*self._resumable())

    def _evaluate(self, run: RunContext) -> Requests[None]:
        """Evaluate the recommendations on random numbers of their own."""
        if not self.settings.evaluations:
            return
        if self.results.evaluator is None:
            ranges = (
                {context: self._range(context) for context in self.results.contexts} if self.settings.anytime else None
            )
            self.results.evaluator = RecommendationEvaluator(
                self.results.recommendations, self.settings.evaluations, self.candidates, ranges
            )
        while not self.results.evaluator.finished:
            context, vectors, draws = self.results.evaluator.trial
            if self.trial is None:
                self.trial = Trial("evaluation", context, vectors, draws)
                self._restore_start()
            scores = yield from self._measure(run, self.trial)
            societies = [np.array_split(each.outcome.values, self.societies.several) for each in scores]
            values = [each.outcome.value for each in scores]
            self.results.evaluator.add(societies, values, scores[0].outcome.standard_error)
            self.round, self.trial = 0, None
            yield SafePoint(*self._resumable())
        for n in sorted(self.results.recommendations):
            metrics = {f"recommendation/{name}": value for name, value in self.results.evaluator.summary(n).items()}
            metrics |= self._recommended_values(n)
            yield Log("recommendation", "measurements", metrics, {**self._counters(), "measurements": n})

    def _measure(self, run: RunContext, trial: Trial) -> Requests[list[Score]]:
        """Let societies adapt to the vectors of a trial, and score these."""
        learner: MetaLearner | None = None
        if self._needs_graph(trial):
            assert self.differentiable and isinstance(self.principal, GradientProposer)
            learner = self.differentiable.meta_learner(trial.vectors[0], self.principal.meta_settings)
        is_proposal = trial.phase == "proposal"
        while self.round < self.adapt_rounds:
            if is_proposal and self.round in self.earlier_validations and self.round not in self.record.validated:
                rollouts = yield from self._validate(trial)
                self.record.validated[self.round] = [each.outcome.value for each in self._scores(trial, rollouts)]
            # Games within an episode are not saved: a round that is given up between two updates begins anew.
            pieces = self._anchor is None and self.agents[0].learns and len(self.adaptation.pieces) > 1
            if pieces:
                self._anchor = self._snapshot(run)
            nodes = trial.nodes(self.seeds, "adapt", self.round)
            episodes, losses = yield from self.adaptation.round(nodes, trial.vectors, trial.context, learner)
            if pieces:
                self._anchor = None
            if is_proposal and (metrics := self.record.add(self.round, episodes, losses)) is not None:
                counters = {
                    "rounds": self.step * self.adapt_rounds + self.round + 1,
                    "principal_steps": self.step,
                    "env_steps": self.env_steps_of(self.step, 0, self.round + 1),
                }
                yield Log("adaptation", "rounds", metrics, counters)
            self.round += 1
            yield SafePoint(*self._resumable())
        rollouts = yield from self._validate(trial)
        scores = self._scores(trial, rollouts)
        if is_proposal:
            for i, each in enumerate(scores):
                each.outcome.training = self.record.training_of(i)
                if self.earlier_validations:
                    each.validated = {**self.record.validated_of(i), self.adapt_rounds: each.outcome.value}
        if learner is not None:
            [each] = scores
            each.outcome.gradient = learner.gradient(rollouts, self.objective, self.spending_cost, each.outcome)
        return scores

    def _needs_graph(self, trial: Trial) -> bool:
        """Return whether the graph of a trial is needed for the gradient of its outcome."""
        return self.differentiable is not None and trial.phase == "proposal"

    def _validate(self, trial: Trial) -> Requests[list[Rollout]]:
        """Play the validation episodes; changes nothing that a checkpoint holds."""
        graph = self._needs_graph(trial)
        rollouts = []
        for i in range(self.validate_rounds):
            nodes = trial.nodes(self.seeds, "validate", i)
            # A gradient looks at all validation rounds together.
            request: PlayEpisode = self.adaptation.episode(
                self.horizon, nodes, trial.vectors, trial.context, learn=graph, reward_jacobian=graph, copy=graph
            )
            rollouts.append((yield request))
        return rollouts

    def _scores(self, trial: Trial, rollouts: Sequence[Rollout]) -> list[Score]:
        """Return the score of each slot of a trial."""
        fixed = (self.env.spec, trial.context, self.objective, self.spending_cost, self.societies.several)
        names = [
            draw_name(trial.index + 1, draw) if trial.phase == "proposal" else f"{trial.phase} {trial.context} {draw}"
            for draw in trial.draws
        ]
        parts = self.societies.under(rollouts)
        return [
            score(vector, part, *fixed, name) for vector, part, name in zip(trial.vectors, parts, names, strict=True)
        ]

    def _restore_start(self) -> None:
        """Set the agents to the weights that adaptation starts from."""
        if self.reset_agents:
            self.societies.reset()
            return
        for agent, state in zip(self.agents, self.final_agents, strict=True):
            agent.load_state_dict(copy.deepcopy(state))

    def _range(self, context: Context) -> float:
        """Return the range of the objective in a context, of reference measurements and estimates."""
        name = None if context is None else self.env.spec.contexts[context]
        scanned = 0.0 if self.references is None else self.references.range(name)
        return max(scanned, self.results.history.objective_range(context))

    def _recommended_values(self, n: int) -> dict[str, float]:
        """Return the recommended values by name as metrics; empty with several contexts."""
        mechanism = self.env.spec.mechanism
        if mechanism is None or len(self.results.contexts) > 1:
            return {}
        [vector] = self.results.recommendations[n].values()
        return {f"recommendation/{name}": float(x) for name, x in zip(mechanism.names, vector, strict=True)}

    def _conclude(self, run: RunContext) -> float:
        """Set the summary of the run; return its result."""
        last = max(1, self.proposal_steps // 5) * self.candidates
        summary, result = self.results.summary(last)
        summary["principal_steps"] = self.step
        summary["env_steps"] = self.env_steps_played
        summary["evaluation_env_steps"] = self.env_steps_of(0, self.results.evaluation_trials)
        if self.references is not None:
            evaluated = [row for row in summary["recommendations"] if row["evaluations"]]
            summary["references"] = self.references.summary(evaluated, self.results.history.proposals, last)
        run.summary = summary
        return result

    def _tell(self, scores: Sequence[Score]) -> Log:
        """Tell the principal; return the row to log."""
        mechanism = self.env.spec.mechanism
        assert mechanism is not None and self.trial is not None
        metrics = self.principal.tell([each.outcome for each in scores])
        metrics |= {} if self.meter is None else self.meter.metrics()
        metrics |= proposal_metrics(scores, mechanism)
        episodes: list[Episode] = [episode for each in scores for episode in each.episodes]
        metrics |= summarize(episodes, "validation")
        metrics |= self.record.metrics
        self.results.history.add(self.step + 1, scores, self.trial.draws)
        metrics |= (
            {} if self.references is None else self.references.metrics(self.results.history.proposals[-1]["context"])
        )
        counters = {
            "proposals": len(self.results.history.proposals),
            "principal_steps": self.step + 1,
            "env_steps": self.env_steps_of(self.step + 1, 0),
        }
        return Log("proposal", "proposals", metrics, counters)

    def _counters(self) -> dict[str, int]:
        return {
            "measurements": self.results.history.measurements,
            "principal_steps": self.step,
            "env_steps": self.env_steps_played,
        }

    def _context(self) -> Context:
        """Return the context of this principal step, the same for all its episodes."""
        n = len(self.env.spec.contexts)
        if n and self.settings.contexts == "in_turn":
            return self.step % n
        return int(self.seeds.child("context").numpy(self.step).integers(n)) if n else None

    def _iteration(self) -> int:
        """Return the index of the current place among those from which a run can be resumed."""
        return (self.step + self.results.evaluation_trials) * (self.adapt_rounds + 1) + self.round

    def _resumable(self) -> tuple[int, Callable[[], State]]:
        """Return the place to go on from after an interruption now, and what makes its state."""
        return self._anchor or (self._iteration(), self.state_dict)

    def _snapshot(self, run: RunContext) -> tuple[int, Callable[[], State]]:
        """Return the same with the state of this moment, whatever changes later."""
        state = copy.deepcopy({**self.state_dict(), **run.mark()})
        return self._iteration(), lambda: state

    def state_dict(self) -> State:
        """Return everything that a resumed run needs to continue exactly (on engines that can be seeded)."""
        return {
            "step": self.step,
            "round": self.round,
            "trial": None if self.trial is None else self.trial.state_dict(),
            "record": self.record.state_dict(),
            **self.results.state_dict(),
            "final_agents": self.final_agents,
            "agents": [agent.state_dict() for agent in self.agents],
            "principal": self.principal.state_dict(),
            "meter": None if self.meter is None else self.meter.state_dict(),
        }

    def _restore(self, run: RunContext) -> None:
        if run.restored is None:
            return
        state = run.restored
        self.step, self.round = state["step"], state["round"]
        self.trial = None if state["trial"] is None else Trial.from_state(state["trial"])
        self.record.load_state_dict(state["record"])
        self.results.load_state_dict(state)
        self.final_agents = state["final_agents"]
        for agent, saved in zip(self.agents, state["agents"], strict=True):
            agent.load_state_dict(saved)
        self.principal.load_state_dict(state["principal"])
        if self.meter is not None:
            self.meter.load_state_dict(state["meter"])
