"""The plan of a design run in words."""

from __future__ import annotations

from dataclasses import dataclass

from llmrl.loops.design_settings import DesignSettings


@dataclass(frozen=True)
class DesignPlan:
    """The numbers of a design run that its plan states.

    Attributes:
        settings: section `design` of the config.
        confirm_steps: principal steps that confirm candidates.
        adapt_rounds: adaptation rounds of a trial.
        earlier_validations: rounds after which proposals are validated as well.
        games: games of a society.
        updates: updates of a society in a round.
        validation_episodes: episodes of a society that its objective averages.
        learns: whether agents learn.
        objective: name of the objective.
        has_contexts: whether the environment has contexts.
        evaluation_trials: trials of the final evaluation at most.
        env_steps: environment steps at most, summed over games.
    """

    settings: DesignSettings
    confirm_steps: int
    adapt_rounds: int
    earlier_validations: list[int]
    games: int
    updates: int
    validation_episodes: int
    learns: bool
    objective: str
    has_contexts: bool
    evaluation_trials: int
    env_steps: int

    def rows(self) -> list[tuple[str, str]]:
        """Return the plan as rows (what, value)."""
        settings, candidates, n = self.settings, self.settings.candidates, self.settings.replicates
        several = "" if candidates == 1 else f" of {candidates:,} candidates each"
        cost = f" - {settings.spending_cost:g} x spending" if settings.spending_cost else ""
        unit, each = ("a proposal", "") if n == 1 else ("a society", f", {n:,} societies a proposal")
        confirmed = f"; the last {self.confirm_steps:,} confirm the leading candidates" if self.confirm_steps else ""
        rounds = ", ".join(f"{n:,}" for n in [*self.earlier_validations, self.adapt_rounds])
        after = f", after {rounds} rounds" if self.earlier_validations else ""
        return [
            ("  principal steps", f"{settings.steps:,}{several}{each}{confirmed}"),
            ("  adaptation", self._adaptation(unit)),
            ("  validation", f"{self.validation_episodes:,} episodes {unit}{after}"),
            ("  objective", self.objective + cost),
            ("  result", self._result()),
            ("environment steps", f"{'at most ' if settings.anytime else ''}{self.env_steps:,}"),
        ]

    def _adaptation(self, unit: str) -> str:
        if self.adapt_rounds:
            updates = "one update" if self.updates == 1 else f"{self.updates:,} updates"
            learned = f", {updates} each" if self.learns else ""
            return f"{self.adapt_rounds:,} rounds x {self.games} games {unit}{learned}"
        return "none" if self.learns else "none: these agents do not learn, and carry nothing to the next episode"

    def _result(self) -> str:
        settings = self.settings
        if not settings.evaluations:
            return "online performance; the recommendation is not evaluated (design.evaluations=0)"
        trials = f"{self.evaluation_trials:,} trials, each as long as a principal step"
        if settings.anytime:
            return f"the recommendations after 1, 2, 5, ... measurements, evaluated in at most {trials}"
        contexts = " of each context" if self.has_contexts else ""
        evaluations = -(-settings.evaluations // settings.candidates) * settings.candidates
        return f"the recommendation{contexts}, evaluated {evaluations:,} times in {trials}"
