"""The loop of mechanism design: proposals, confirmation of the leading candidates, evaluation."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from functools import partial

import numpy as np

from llmrl.core.protocols import AcceptsBriefing, EstimatesCalls, GradientProposer
from llmrl.core.records import CallEstimate, PrincipalBriefing
from llmrl.loops.compute_requests import Call, Log, Requests
from llmrl.loops.design_progress import AdaptationRecord, DesignProgress, DesignSchedule, Trial
from llmrl.loops.design_results import DesignResults, Score, n_earlier_occurrences, proposal_metrics
from llmrl.loops.design_settings import DesignSettings, check_differentiable, check_settings, n_confirmation_steps
from llmrl.loops.loop_parts import LoopParts, check_rollout_steps, write_trained_adapter
from llmrl.loops.recommendation import Confirmation, Context, RecommendationEvaluator
from llmrl.loops.reference_measurements import References
from llmrl.loops.societies import AdaptationRounds, Measurement, Societies
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_summaries import summarize
from llmrl.rollout.run_observers import GracePeriodObserver, StepProgress
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.run import Run

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
    cannot be saved, so a run that is killed within it starts the step again, with the same numbers.

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
        horizon = check_settings(env.spec, principal, settings)
        self.env, self.agents, self.principal, self.seeds = env, parts.agents, principal, parts.seeds
        self.settings, self.meter = settings, parts.meter
        self.societies = Societies(env, self.agents, settings.candidates, settings.replicates)
        games, replicates = self.societies.games, self.societies.replicates
        # Agents that neither learn nor carry a state over play the same in the last round as in the first.
        adapts = any(agent.learns or getattr(agent, "carried", ()) for agent in self.agents)
        rounds, n_contexts = settings.adapt_rounds if adapts else 0, len(env.spec.contexts)
        confirm_steps = n_confirmation_steps(settings, n_contexts)
        self.schedule = DesignSchedule(settings, horizon, env.spec.n_envs, games, n_contexts, confirm_steps, rounds)
        objective = settings.objective or env.spec.objective
        if isinstance(principal, GradientProposer):
            check_differentiable(env.spec, self.agents[0], principal, settings)
        self.collector = Collector(
            env, self.societies.policy, parts.device, parts.teacher_channels, observers=parts.observers
        )
        self.adaptation = AdaptationRounds(self.collector, self.societies, horizon, settings.rollout_steps)
        if rounds:
            check_rollout_steps(self.agents, self.adaptation.pieces[0], games)
        self.load_references = parts.load_references if settings.references != 0 else lambda: None
        self.references: References | None = None
        self._brief()
        self.record = AdaptationRecord(
            rounds, settings.candidates, games * replicates, objective, settings.spending_cost
        )
        self.results = DesignResults(env.spec, self.schedule.validate_episodes, replicates)
        self.progress = DesignProgress(parts, self.schedule, self.record, self.results)
        self.measurement = Measurement(env.spec, self.seeds, self.adaptation, self.progress)

    def _brief(self) -> None:
        """Describe the run, and the reference lines that are measured, to a principal that accepts a briefing."""
        if isinstance(self.principal, AcceptsBriefing):
            settings, schedule, references = self.settings, self.schedule, self.references
            briefing = PrincipalBriefing(
                steps=schedule.proposal_steps,
                adapt_rounds=schedule.adapt_rounds,
                validate_episodes=schedule.validate_episodes * settings.replicates,
                replicates=settings.replicates,
                reset=settings.reset_agents,
                without={} if references is None else references.no_mechanism_values,
                games=schedule.games,
                updates=self.updates_per_round,
                confirmations=schedule.confirm_steps * settings.candidates,
                pretraining=getattr(self.agents[0], "pretraining", None),
                observes_mechanism=self.observes_mechanism,
                noise=None if references is None else references.measurement_error(settings.replicates),
            )
            self.principal.brief(briefing)

    @property
    def observes_mechanism(self) -> bool:
        """True unless the agents are networks that do not read the values of the mechanism."""
        channels, layouts = self.agents[0].policy.channels, self.env.spec.observation
        reads_texts = any(layouts[name].dtype == "object" for name in channels)
        return not self.agents[0].learns or reads_texts or "mechanism" in channels

    @property
    def updates_per_round(self) -> int:
        """Updates of a society in a round; 0 if agents do not learn."""
        return len(self.adaptation.pieces) if self.agents[0].learns else 0

    @property
    def env_steps(self) -> int:
        """Maximum number of environment steps of the complete run, summed over games."""
        return self.schedule.env_steps

    def plan(self) -> list[tuple[str, str]]:
        return plan_rows(self.schedule, self.updates_per_round, self.record.objective.name)

    def estimate(self) -> CallEstimate | None:
        schedule, principal = self.schedule, self.principal
        rounds = schedule.env_steps // (schedule.horizon * schedule.n_envs)
        estimates = [
            agent.estimate(schedule.horizon, rounds * schedule.games)
            for agent in self.agents
            if isinstance(agent, EstimatesCalls)
        ]
        if isinstance(principal, EstimatesCalls):
            estimates.insert(0, principal.estimate(schedule.proposal_steps, self.settings.candidates))
        return CallEstimate.total(estimates) if estimates else None

    def requests(self, run: Run) -> Requests[float]:
        """Run the loop; return the mean evaluated objective of the recommendations over contexts.

        If nothing is evaluated, it is the online performance.
        """
        progress = self.progress
        if run.restored is not None:
            progress.load_state_dict(run.restored)
        self.references = self.load_references()
        self._brief()
        if self.references and self.references.warning:
            log.warning("%s", self.references.warning)
        with (
            run.progress(self.env_steps, "steps", "design", progress.env_steps) as display,
            self.collector.observed(
                StepProgress(display, self.env.spec.n_envs), GracePeriodObserver(run, progress.resumable)
            ),
        ):
            while progress.step < self.schedule.proposal_steps:
                yield from self._propose(run, display)
            if not progress.final_agents:
                progress.final_agents = [copy.deepcopy(agent.state_dict()) for agent in self.agents]
            yield from confirm(run, self.measurement)
            self.results.recommend(self.principal)
            yield from evaluate(run, self.measurement, self.references)
            progress.restore_final_agents()
        yield progress.save_request(always=True)
        write_trained_adapter(run, self.principal)
        for i, agent in enumerate(self.agents):
            write_trained_adapter(run, agent, f"society_{i}")
        self.collector.close()
        return self._conclude(run)

    def _propose(self, run: Run, display: ProgressBar) -> Requests[None]:
        """Request vectors, measure them, and tell the principal their outcomes."""
        progress, context = self.progress, self._context()
        if progress.trial is None:
            with run.save_on_llm_error(progress.iteration, progress.state_dict):
                vectors = yield Call(partial(self.principal.ask, context, self.settings.candidates), is_long=True)
            progress.trial = Trial("proposal", context, vectors, n_earlier_occurrences(vectors), progress.step)
            self.record.clear()
            if self.settings.reset_agents:
                self.societies.reset()
        if self.measurement.needs_gradient:
            progress.set_anchor(run)
        scores = yield from self.measurement.measure(run, progress.trial)
        yield self._tell_principal(scores, progress.trial)
        best = max((score.outcome for score in scores), key=lambda outcome: outcome.value)
        display.show_result(best.value, self.results.mechanism.in_words(best.vector))
        progress.finish_step()
        yield progress.save_request()

    def _conclude(self, run: Run) -> float:
        """Set the summary of the run; return its result."""
        last = max(1, self.schedule.proposal_steps // 5) * self.settings.candidates
        summary, result = self.results.summary(last)
        summary["principal_steps"] = self.progress.step
        summary["env_steps"] = self.progress.env_steps
        summary["evaluation_env_steps"] = self.schedule.env_steps_of(0, self.results.evaluation_trials)
        if self.references is not None:
            evaluated = [row for row in summary["recommendations"] if row["evaluations"]]
            summary["references"] = self.references.summary(evaluated, self.results.history.proposals, last)
        run.summary = summary
        return result

    def _tell_principal(self, scores: Sequence[Score], trial: Trial) -> Log:
        """Tell the principal the outcomes; return the row to log."""
        history, step = self.results.history, self.progress.step + 1
        metrics = self.principal.tell([score.outcome for score in scores])
        metrics |= {} if self.meter is None else self.meter.metrics()
        metrics |= proposal_metrics(scores, self.results.mechanism)
        metrics |= summarize([episode for score in scores for episode in score.episodes], "validation")
        metrics |= self.record.metrics
        history.add(step, scores, trial.draws)
        metrics |= {} if self.references is None else self.references.metrics(history.proposals[-1]["context"])
        counters = {
            "proposals": len(history.proposals),
            "principal_steps": step,
            "env_steps": self.schedule.env_steps_of(step, 0),
        }
        return Log("proposal", "proposals", metrics, counters)

    def _context(self) -> Context:
        """Return the context of this principal step, the same for all its episodes."""
        n, step = self.schedule.n_contexts, self.progress.step
        if n and self.settings.contexts == "in_turn":
            return step % n
        return int(self.seeds.child("context").numpy(step).integers(n)) if n else None


def confirm(run: Run, measurement: Measurement) -> Requests[None]:
    """Measure the leading candidates; tell a principal that learns from vectors of others, too."""
    progress, schedule = measurement.progress, measurement.schedule
    results, principal = progress.results, progress.principal
    if not schedule.confirm_steps or results.evaluator is not None:
        return
    if results.confirmation is None:
        slots = schedule.settings.candidates
        max_candidates = schedule.confirm_steps * slots
        leading = {
            context: results.rank_candidates(principal, context)[:max_candidates] for context in results.contexts
        }
        results.confirmation = Confirmation(leading, schedule.confirm_steps, slots)
    while not results.confirmation.finished:
        context = results.confirmation.context
        halving = results.confirmation.halvings[context]
        trial = progress.trial
        if trial is None:
            candidates, draws = zip(*halving.trial, strict=True)
            trial = Trial("confirmation", context, halving.vectors[list(candidates)], draws)
            measurement.begin(trial)
        scores = yield from measurement.measure(run, trial)
        results.history.add(progress.step + 1, scores, trial.draws, confirmed=True)
        if getattr(principal, "learns_from_others", False):
            principal.tell([score.outcome for score in scores])
        halving.advance(lambda vector, context=context: results.history.estimates.of(vector, context).value)  # type: ignore[misc]
        progress.finish_step()
        metrics = {
            "confirmation/objective": float(np.mean([score.outcome.value for score in scores])),
            "confirmation/candidates": float(len(halving.survivors)),
        }
        yield Log("confirmation", "measurements", metrics, progress.counters)
        yield progress.save_request()


def evaluate(run: Run, measurement: Measurement, references: References | None) -> Requests[None]:
    """Evaluate the recommendations; `references` are the results of reference runs, if there are any."""
    progress, settings = measurement.progress, measurement.schedule.settings
    results = progress.results
    if not settings.evaluations:
        return
    if results.evaluator is None:
        ranges = None
        if settings.anytime:
            ranges = {context: _range(context, results, references) for context in results.contexts}
        results.evaluator = RecommendationEvaluator(
            results.recommendations, settings.evaluations, settings.candidates, ranges
        )
    while not results.evaluator.finished:
        trial = progress.trial
        if trial is None:
            trial = Trial("evaluation", *results.evaluator.trial)
            measurement.begin(trial)
        scores = yield from measurement.measure(run, trial)
        societies = [np.array_split(score.outcome.values, measurement.societies.replicates) for score in scores]
        values = [score.outcome.value for score in scores]
        results.evaluator.add(societies, values, scores[0].outcome.standard_error)
        progress.finish_trial()
        yield progress.save_request()
    for n in sorted(results.recommendations):
        metrics = {f"recommendation/{name}": value for name, value in results.evaluator.summary(n).items()}
        if len(results.contexts) == 1:
            [vector] = results.recommendations[n].values()
            names = results.mechanism.names
            metrics |= {f"recommendation/{name}": float(x) for name, x in zip(names, vector, strict=True)}
        yield Log("recommendation", "measurements", metrics, {**progress.counters, "measurements": n})


def _range(context: Context, results: DesignResults, references: References | None) -> float:
    """Return the range of the objective in a context, over reference measurements and estimates."""
    name = None if context is None else results.history.spec.contexts[context]
    scanned = 0.0 if references is None else references.range(name)
    return max(scanned, results.history.objective_range(context))


def plan_rows(schedule: DesignSchedule, updates: int, objective: str) -> list[tuple[str, str]]:
    """Return the plan as pairs of a name and a text.

    Args:
        schedule: numbers of steps, rounds and trials.
        updates: updates of a society in a round; 0: agents do not learn.
        objective: name of the objective.
    """
    settings, candidates, n = schedule.settings, schedule.settings.candidates, schedule.settings.replicates
    candidates_text = "" if candidates == 1 else f" of {candidates:,} candidates each"
    cost = f" - {settings.spending_cost:g} x spending" if settings.spending_cost else ""
    unit, replicates_text = ("a proposal", "") if n == 1 else ("a society", f", {n:,} societies a proposal")
    confirm_text = (
        f"; the last {schedule.confirm_steps:,} confirm the leading candidates" if schedule.confirm_steps else ""
    )
    rounds = ", ".join(f"{n:,}" for n in [*schedule.earlier_validations, schedule.adapt_rounds])
    after = f", after {rounds} rounds" if schedule.earlier_validations else ""
    return [
        ("  principal steps", f"{settings.steps:,}{candidates_text}{replicates_text}{confirm_text}"),
        ("  adaptation", _adaptation(schedule, updates, unit)),
        ("  validation", f"{schedule.validate_episodes:,} episodes {unit}{after}"),
        ("  objective", objective + cost),
        ("  result", _result(schedule)),
        ("environment steps", f"{'at most ' if settings.anytime else ''}{schedule.env_steps:,}"),
    ]


def _adaptation(schedule: DesignSchedule, updates: int, unit: str) -> str:
    if schedule.adapt_rounds:
        learning = f", {'one update' if updates == 1 else f'{updates:,} updates'} each" if updates else ""
        return f"{schedule.adapt_rounds:,} rounds x {schedule.games} games {unit}{learning}"
    return "none" if updates else "none: these agents do not learn, and carry nothing to the next episode"


def _result(schedule: DesignSchedule) -> str:
    settings = schedule.settings
    if not settings.evaluations:
        return "online performance; the recommendation is not evaluated (design.evaluations=0)"
    trials = f"{schedule.max_evaluation_trials:,} trials, each as long as a principal step"
    if settings.anytime:
        return f"the recommendations after 1, 2, 5, ... measurements, evaluated in at most {trials}"
    contexts = " of each context" if schedule.n_contexts else ""
    evaluations = -(-settings.evaluations // settings.candidates) * settings.candidates
    return f"the recommendation{contexts}, evaluated {evaluations:,} times in {trials}"
