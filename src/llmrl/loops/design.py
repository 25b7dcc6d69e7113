"""The loop of mechanism design: proposals, confirmation of the best candidates, evaluation of the recommendations."""

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
from llmrl.loops.design_results import DesignResults, TrialScore, compute_proposal_metrics, count_earlier_occurrences
from llmrl.loops.design_settings import DesignSettings, check_differentiable, check_settings, count_confirmation_steps
from llmrl.loops.loop_parts import LoopParts, check_rollout_steps, write_trained_adapter
from llmrl.loops.recommendation import Confirmation, Context, RecommendationEvaluator
from llmrl.loops.reference_measurements import References
from llmrl.loops.societies import AdaptationRounds, Societies, VectorMeasurer
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_summaries import summarize
from llmrl.rollout.run_observers import GracePeriodObserver, StepProgress
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.run import Run

log = logging.getLogger(__name__)


class DesignLoop:
    """Mechanism design by the protocol of arXiv 2410.08345 (algorithm 1), extended by parallel games and a final test.

    One principal step: propose one or several vectors, reset the agents, adapt for some rounds (every game plays an
    episode, then one update), validate for some episodes without updates, pass the outcomes to `principal.tell`.

    Several vectors of a step are measured in parallel: each governs equally many games and a separate society. All
    societies start from the same weights and draw the same random numbers, except repetitions of a vector within a
    step, which draw different ones. If a vector governs several societies, its objective is their mean (`Societies`).

    The last principal steps measure the leading candidates again (`Confirmation`); the principal then recommends one in
    each context (`Recommender`; without this protocol, the vector with the highest mean of all measurements). The
    result of the run is the evaluation of the recommendation, from the same initial weights on random numbers that are
    used for nothing else (`RecommendationEvaluator`). The online performance is the mean objective of the last fifth
    of the proposals. After the run, the agents have their weights after the last proposal.

    A `GradientProposer` receives a gradient through the agents' updates of the step. The computation graph of such a
    step cannot be saved, so a run that is killed within it starts the step again, with the same random numbers.

    A round draws random numbers only from the seed sub-tree of its trial and index, so a resumed run is bit-equal to an
    uninterrupted one on a deterministic engine, on the same type of machine with the same library builds.

    Args:
        parts: parts of the run; a principal, and an agent for each society (`Societies`). The environment needs a
            mechanism and a horizon.
        settings: section `design` of the config.

    Raises:
        ConfigError: the parts and settings cannot work together.
    """

    def __init__(self, parts: LoopParts, settings: DesignSettings) -> None:
        env, principal = parts.env, parts.principal
        assert principal is not None
        horizon = check_settings(env.spec, principal, settings)
        self.env, self.agents, self.principal, self.seeds = env, parts.agents, principal, parts.seeds
        self.settings, self.meter = settings, parts.meter
        self.societies = Societies(env, self.agents, settings.candidates, settings.replicates)
        games, replicates = self.societies.games, self.societies.replicates
        # Agents that neither learn nor keep a state between episodes do not change in adaptation rounds.
        has_adaptation = any(agent.learns or getattr(agent, "carried_states", ()) for agent in self.agents)
        rounds, n_contexts = settings.adapt_rounds if has_adaptation else 0, len(env.spec.contexts)
        confirm_steps = count_confirmation_steps(settings, n_contexts)
        self.schedule = DesignSchedule(settings, horizon, env.spec.n_envs, games, n_contexts, confirm_steps, rounds)
        objective = settings.objective or env.spec.objective
        if isinstance(principal, GradientProposer):
            check_differentiable(env.spec, self.agents[0], principal, settings)
        self.collector = Collector(
            env, self.societies.policy, parts.device, parts.teacher_channels, observers=parts.observers
        )
        self.adaptation = AdaptationRounds(self.collector, self.societies, horizon, settings.rollout_steps)
        if rounds:
            check_rollout_steps(self.agents, self.adaptation.rollout_lengths[0], games)
        self.load_references = parts.load_references if settings.references != 0 else lambda: None
        self.references: References | None = None
        self._brief_principal()
        self.record = AdaptationRecord(
            rounds, settings.candidates, games * replicates, objective, settings.spending_cost
        )
        self.results = DesignResults(env.spec, self.schedule.n_validation_episodes, replicates)
        self.progress = DesignProgress(parts, self.schedule, self.record, self.results)
        self.measurer = VectorMeasurer(env.spec, self.seeds, self.adaptation, self.progress)

    def _brief_principal(self) -> None:
        """Pass the sizes of the run and its reference lines to a principal that accepts a briefing."""
        if isinstance(self.principal, AcceptsBriefing):
            settings, schedule, references = self.settings, self.schedule, self.references
            briefing = PrincipalBriefing(
                steps=schedule.proposal_steps,
                adapt_rounds=schedule.adapt_rounds,
                validate_episodes=schedule.n_validation_episodes * settings.replicates,
                replicates=settings.replicates,
                reset=settings.reset_agents,
                without={} if references is None else references.no_mechanism_values,
                games=schedule.n_society_games,
                updates=self.updates_per_round,
                confirmations=schedule.confirm_steps * settings.candidates,
                pretraining=getattr(self.agents[0], "pretraining", None),
                observes_mechanism=self.observes_mechanism,
                noise=None if references is None else references.compute_measurement_error(settings.replicates),
            )
            self.principal.brief(briefing)

    @property
    def observes_mechanism(self) -> bool:
        """True if the agents read the values of the mechanism; False only for networks without these inputs."""
        channels, layouts = self.agents[0].policy.channels, self.env.spec.observation
        reads_texts = any(layouts[name].dtype == "object" for name in channels)
        return not self.agents[0].learns or reads_texts or "mechanism" in channels

    @property
    def updates_per_round(self) -> int:
        """Number of updates of a society in a round; 0 if agents do not learn."""
        return len(self.adaptation.rollout_lengths) if self.agents[0].learns else 0

    @property
    def env_steps(self) -> int:
        """Maximum number of environment steps of the complete run, summed over games."""
        return self.schedule.env_steps

    def plan(self) -> list[tuple[str, str]]:
        schedule, settings, replicates = self.schedule, self.settings, self.settings.replicates
        candidates_text = "" if settings.candidates == 1 else f" of {settings.candidates:,} candidates each"
        cost_text = f" - {settings.spending_cost:g} x spending" if settings.spending_cost else ""
        unit, replicates_text = (
            ("a proposal", "") if replicates == 1 else ("a society", f", {replicates:,} societies a proposal")
        )
        confirm_text = (
            f"; the last {schedule.confirm_steps:,} confirm the leading candidates" if schedule.confirm_steps else ""
        )
        rounds_text = ", ".join(f"{n:,}" for n in [*schedule.early_validation_rounds, schedule.adapt_rounds])
        validation_text = f", after {rounds_text} rounds" if schedule.early_validation_rounds else ""
        return [
            ("  principal steps", f"{settings.steps:,}{candidates_text}{replicates_text}{confirm_text}"),
            ("  adaptation", _describe_adaptation(schedule, self.updates_per_round, unit)),
            ("  validation", f"{schedule.n_validation_episodes:,} episodes {unit}{validation_text}"),
            ("  objective", self.record.objective.name + cost_text),
            ("  result", _describe_result(schedule)),
            ("environment steps", f"{'at most ' if settings.anytime else ''}{schedule.env_steps:,}"),
        ]

    def estimate(self) -> CallEstimate | None:
        schedule, principal = self.schedule, self.principal
        rounds = schedule.env_steps // (schedule.horizon * schedule.n_envs)
        estimates = [
            agent.estimate(schedule.horizon, rounds * schedule.n_society_games)
            for agent in self.agents
            if isinstance(agent, EstimatesCalls)
        ]
        if isinstance(principal, EstimatesCalls):
            estimates.insert(0, principal.estimate(schedule.proposal_steps, self.settings.candidates))
        return CallEstimate.add_up(estimates) if estimates else None

    def requests(self, run: Run) -> Requests[float]:
        """Run the loop; return the mean evaluated objective of the contexts or, without one, the online performance."""
        progress = self.progress
        if run.restored_state is not None:
            progress.load_state_dict(run.restored_state)
        self.references = self.load_references()
        self._brief_principal()
        if self.references and self.references.warning:
            log.warning("%s", self.references.warning)
        with (
            run.progress(self.env_steps, "steps", "design", progress.env_steps) as progress_bar,
            self.collector.add_observers(
                StepProgress(progress_bar, self.env.spec.n_envs), GracePeriodObserver(run, progress.get_checkpoint)
            ),
        ):
            while progress.step < self.schedule.proposal_steps:
                yield from self._run_principal_step(run, progress_bar)
            if not progress.final_agents:
                progress.final_agents = [copy.deepcopy(agent.state_dict()) for agent in self.agents]
            yield from confirm_candidates(run, self.measurer)
            self.results.recommend(self.principal)
            yield from evaluate_recommendations(run, self.measurer, self.references)
            progress.restore_final_agents()
        yield progress.safe_point_request(always=True)
        write_trained_adapter(run, self.principal)
        for i, agent in enumerate(self.agents):
            write_trained_adapter(run, agent, f"society_{i}")
        self.collector.close()
        return self._write_summary(run)

    def _run_principal_step(self, run: Run, progress_bar: ProgressBar) -> Requests[None]:
        """Ask the principal for vectors, measure them, and tell the principal their outcomes."""
        progress, context = self.progress, self._choose_context()
        if progress.trial is None:
            with run.save_on_llm_error(progress.iteration, progress.state_dict):
                vectors = yield Call(partial(self.principal.ask, context, self.settings.candidates), is_long=True)
            progress.trial = Trial("proposal", context, vectors, count_earlier_occurrences(vectors), progress.step)
            self.record.clear()
            if self.settings.reset_agents:
                self.societies.reset()
        if self.measurer.needs_gradient:
            progress.save_early_checkpoint(run)
        scores = yield from self.measurer.measure(run, progress.trial)
        yield self._tell_principal(scores, progress.trial)
        best_outcome = max((score.outcome for score in scores), key=lambda outcome: outcome.value)
        progress_bar.show_result(best_outcome.value, self.results.mechanism.format_vector(best_outcome.vector))
        progress.finish_step()
        yield progress.safe_point_request()

    def _write_summary(self, run: Run) -> float:
        """Set `run.summary`; return the result of the run."""
        n_last_proposals = max(1, self.schedule.proposal_steps // 5) * self.settings.candidates
        summary, result = self.results.summary(n_last_proposals)
        summary["principal_steps"] = self.progress.step
        summary["env_steps"] = self.progress.env_steps
        summary["evaluation_env_steps"] = self.schedule.count_env_steps(0, self.results.n_evaluation_trials)
        if self.references is not None:
            rows = [row for row in summary["recommendations"] if row["evaluations"]]
            summary["references"] = self.references.summary(rows, self.results.history.proposals, n_last_proposals)
        run.summary = summary
        return result

    def _tell_principal(self, scores: Sequence[TrialScore], trial: Trial) -> Log:
        """Pass the outcomes to the principal and record them; return the row to log."""
        history, step = self.results.history, self.progress.step + 1
        metrics = self.principal.tell([score.outcome for score in scores])
        metrics |= {} if self.meter is None else self.meter.metrics()
        metrics |= compute_proposal_metrics(scores, self.results.mechanism)
        metrics |= summarize([episode for score in scores for episode in score.episodes], "validation")
        metrics |= self.record.metrics
        history.add(step, scores, trial.draws)
        metrics |= {} if self.references is None else self.references.metrics(history.proposals[-1]["context"])
        counters = {
            "proposals": len(history.proposals),
            "principal_steps": step,
            "env_steps": self.schedule.count_env_steps(step, 0),
        }
        return Log("proposal", "proposals", metrics, counters)

    def _choose_context(self) -> Context:
        """Return the context of this principal step, the same for all its episodes."""
        n, step = self.schedule.n_contexts, self.progress.step
        if n and self.settings.contexts == "in_turn":
            return step % n
        return int(self.seeds.child("context").numpy(step).integers(n)) if n else None


def confirm_candidates(run: Run, measurer: VectorMeasurer) -> Requests[None]:
    """Measure the leading candidates again; pass the outcomes to a principal with `learns_from_others`."""
    progress, schedule = measurer.progress, measurer.schedule
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
    while not results.confirmation.is_finished:
        context = results.confirmation.context
        halving = results.confirmation.halvings[context]
        trial = progress.trial
        if trial is None:
            candidates, draws = zip(*halving.next_trial, strict=True)
            trial = Trial("confirmation", context, halving.vectors[list(candidates)], draws)
            measurer.begin(trial)
        scores = yield from measurer.measure(run, trial)
        results.history.add(progress.step + 1, scores, trial.draws, is_confirmation=True)
        if getattr(principal, "learns_from_others", False):
            principal.tell([score.outcome for score in scores])
        halving.advance(lambda vector, context=context: results.history.estimates.get(vector, context).value)  # type: ignore[misc]
        progress.finish_step()
        metrics = {
            "confirmation/objective": float(np.mean([score.outcome.value for score in scores])),
            "confirmation/candidates": float(len(halving.survivors)),
        }
        yield Log("confirmation", "measurements", metrics, progress.counters)
        yield progress.safe_point_request()


def evaluate_recommendations(run: Run, measurer: VectorMeasurer, references: References | None) -> Requests[None]:
    """Evaluate and log the recommendations; with `references`, the objective's range includes that of the scan."""
    progress, settings = measurer.progress, measurer.schedule.settings
    results = progress.results
    if not settings.evaluations:
        return
    if results.evaluator is None:
        ranges = None
        if settings.anytime:
            ranges = {context: _compute_objective_range(context, results, references) for context in results.contexts}
        results.evaluator = RecommendationEvaluator(
            results.recommendations, settings.evaluations, settings.candidates, ranges
        )
    while not results.evaluator.is_finished:
        trial = progress.trial
        if trial is None:
            trial = Trial("evaluation", *results.evaluator.next_trial)
            measurer.begin(trial)
        scores = yield from measurer.measure(run, trial)
        society_values = [np.array_split(score.outcome.values, measurer.societies.replicates) for score in scores]
        values = [score.outcome.value for score in scores]
        results.evaluator.add(society_values, values, scores[0].outcome.standard_error)
        progress.finish_trial()
        yield progress.safe_point_request()
    for n in sorted(results.recommendations):
        metrics = {f"recommendation/{name}": value for name, value in results.evaluator.summary(n).items()}
        if len(results.contexts) == 1:
            [vector] = results.recommendations[n].values()
            names = results.mechanism.names
            metrics |= {f"recommendation/{name}": float(x) for name, x in zip(names, vector, strict=True)}
        yield Log("recommendation", "measurements", metrics, {**progress.counters, "measurements": n})


def _compute_objective_range(context: Context, results: DesignResults, references: References | None) -> float:
    """Return the range of the objective in a context: the larger of those of the reference scan and the estimates."""
    name = results.history.spec.get_context_name(context)
    scan_range = 0.0 if references is None else references.get_scan_range(name)
    return max(scan_range, results.history.compute_objective_range(context))


def _describe_adaptation(schedule: DesignSchedule, updates: int, unit: str) -> str:
    if schedule.adapt_rounds:
        learning = f", {'one update' if updates == 1 else f'{updates:,} updates'} each" if updates else ""
        return f"{schedule.adapt_rounds:,} rounds x {schedule.n_society_games} games {unit}{learning}"
    return "none" if updates else "none: these agents do not learn, and carry nothing to the next episode"


def _describe_result(schedule: DesignSchedule) -> str:
    settings = schedule.settings
    if not settings.evaluations:
        return "online performance; the recommendation is not evaluated (design.evaluations=0)"
    trials_text = f"{schedule.max_evaluation_trials:,} trials, each as long as a principal step"
    if settings.anytime:
        return f"the recommendations after 1, 2, 5, ... measurements, evaluated in at most {trials_text}"
    contexts = " of each context" if schedule.n_contexts else ""
    evaluations = -(-settings.evaluations // settings.candidates) * settings.candidates
    return f"the recommendation{contexts}, evaluated {evaluations:,} times in {trials_text}"
