"""Mechanism design: propose, let the society adapt, score it, tell, and measure the best few again."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from llmrl.core.protocols import AcceptsBriefing, EstimatesCalls, GradientProposer, MetaLearner
from llmrl.core.records import Briefing, CallEstimate, State
from llmrl.core.rollouts import Episode
from llmrl.core.run_context import ProgressDisplay, RunContext
from llmrl.core.seeding import Seeds
from llmrl.core.welfare_measures import Objective
from llmrl.loops.compute_requests import Ask, Log, PlayEpisode, Requests, SafePoint
from llmrl.loops.design_settings import DesignSettings, checked_horizon, differentiable_agent
from llmrl.loops.loop_parts import LoopParts
from llmrl.loops.proposal_outcomes import DesignHistory, Score, proposal_metrics, score
from llmrl.loops.race import ContextRaces
from llmrl.loops.reference_measurements import References
from llmrl.loops.societies import Adaptation, Societies
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_summaries import episode_welfare, summarize
from llmrl.rollout.progress_observers import GraceWatch, StepProgress
from llmrl.run.artifacts import RESULT_EPISODES

log = logging.getLogger(__name__)

ROWS_PER_STEP = 50
"""Most adaptation rounds of one principal step that are logged; long adaptations are thinned evenly."""


class DesignLoop:
    """The published protocol (arXiv 2410.08345, algorithm 1), with several games side by side.

    One principal step: propose one or several vectors, reset the agents, adapt for some rounds (every game plays an
    episode, then one update), validate for some episodes with frozen policies, tell the principal the outcomes.

    Several vectors of a step are compared in parallel: each governs an equal share of the games and a society of its
    own, and all societies start from the same weights and draw the same random numbers. A vector may govern several
    societies that differ in these, and is judged by their mean (`Societies`).

    What is known of a vector in a context is the mean over all its measurements (`PackPool`). The best of these is the
    best by luck as well, so on request the best few of each context are measured again, by societies and in games that
    no step has seen, before one is named (`ContextRaces`). The agents are then again what the last step made them.

    A principal that learns from gradients gets one through the agents' updates of the step. The graph of such a step
    cannot be saved, so a run that is killed within it begins the step anew, with the same numbers.

    A round draws random numbers only from the seed sub-tree of its step and index, so a run that was killed continues
    bit for bit from any checkpoint on a deterministic engine.

    Args:
        parts: of the run; a principal, and an agent for each society (`Societies`). The environment needs a mechanism
            and a horizon.
        settings: how long, and by what proposals are judged.

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
        # Whoever neither learns nor carries anything on plays the same in the last round as in the first.
        adapts = any(agent.learns or getattr(agent, "carried", ()) for agent in parts.agents)
        self.adapt_rounds = settings.adapt_rounds if adapts else 0
        self.reset_agents = settings.reset_agents
        self.contestants, self.race_rounds = settings.race, settings.race_rounds
        consecutive = settings.society_seeds == "consecutive"
        self.societies = Societies(env, self.agents, self.candidates, settings.replicates, consecutive)
        self.validate_rounds = -(-settings.validate_episodes // self.societies.games)
        self.objective: Objective = settings.objective or env.spec.objective
        self.spending_cost = settings.spending_cost
        self.differentiable = differentiable_agent(env, self.agents[0], principal, settings.adapt_rounds)
        self.collector = Collector(env, self.societies.policy, parts.device, parts.kept, observers=parts.observers)
        self.adaptation = Adaptation(self.collector, self.societies, self.horizon, settings.rollout_steps)
        self.known = parts.known if settings.references else lambda: None
        self._brief({})
        # The progress of the run, all of it in a checkpoint.
        self.step = 0
        self.round = 0
        self.vectors: np.ndarray | None = None  # [candidates, d]
        self.adapting: dict[str, float] = {}
        self.training: list[list[float]] = []  # of each proposal: the objective in the first and the last round so far
        self.history = DesignHistory(env.spec, self.validate_rounds * self.societies.games)
        self.references: References | None = None
        self.naming: ContextRaces | None = None
        self.agents_before: list[State] = []  # as the last step left them, while others are measured again
        self._anchor: tuple[int, Callable[[], State]] | None = None  # where a step with a graph would begin anew

    def _brief(self, without: Mapping[str | None, float]) -> None:
        """Tell a principal that reads what it is part of."""
        if isinstance(self.principal, AcceptsBriefing):
            societies = self.settings.replicates
            episodes = self.validate_rounds * self.societies.games * societies
            known = Briefing(
                steps=self.steps,
                adapt_rounds=self.adapt_rounds,
                validate_episodes=episodes,
                replicates=societies,
                reset=self.reset_agents,
                without=without,
                games=self.societies.games,
                updates=len(self.adaptation.pieces) if self.agents[0].learns else 0,
                counted=self._counted,
            )
            self.principal.brief(known)

    @property
    def _counted(self) -> int:
        """Principal steps at the end whose mean objective is the result of the run."""
        return max(1, self.steps // 5)

    @property
    def env_steps(self) -> int:
        """Most environment steps of the whole run, summed over games."""
        return self._env_steps_at(self.steps + self._most_heats, 0)

    @property
    def _most_heats(self) -> int:
        """Trials after the last step, each as long as a step, if nobody is dropped."""
        heats = self.race_rounds * (-(-self.contestants // self.candidates) + 1)
        return heats * max(len(self.env.spec.contexts), 1) if self.contestants else 0

    @property
    def _trials(self) -> int:
        """Steps and heats that are over."""
        return self.step + (0 if self.naming is None else self.naming.heats)

    def plan(self) -> list[tuple[str, str]]:
        several = "" if self.candidates == 1 else f" of {self.candidates:,} proposals each"
        games, n = self.societies.games, self.societies.several
        cost = f" - {self.spending_cost:g} x spending" if self.spending_cost else ""
        pieces = len(self.adaptation.pieces)
        updates = "one update" if pieces == 1 else f"{pieces:,} updates"
        whose, each = ("a proposal", "") if n == 1 else ("a society", f", {n:,} societies a proposal")
        return [
            ("  principal steps", f"{self.steps:,}{several}{each}"),
            ("  adaptation", self._told_of_adaptation(f"{games} games {whose}, {updates} each")),
            ("  validation", f"{self.validate_rounds * games:,} episodes {whose}"),
            ("  objective", self.objective.name + cost),
            ("  best proposal", self._told_of_race()),
            ("environment steps", f"{'at most ' if self.contestants else ''}{self.env_steps:,}"),
        ]

    def _told_of_adaptation(self, each: str) -> str:
        if self.adapt_rounds:
            return f"{self.adapt_rounds:,} rounds x {each if self.agents[0].learns else each.rpartition(',')[0]}"
        return (
            "none"
            if self.agents[0].learns
            else "none: these agents do not learn, and carry nothing to the next episode"
        )

    def _told_of_race(self) -> str:
        """How it is named, in words for a plan."""
        if not self.contestants:
            return "named by what the steps measured, not measured again (design.race=0)"
        where = " of each context" if self.env.spec.contexts else ""
        return (
            f"the best {self.contestants:,}{where} measured again, at most {self.race_rounds:,} times, then the winner "
            f"{self.race_rounds:,} times: at most {self._most_heats:,} trials as long as a step"
        )

    def estimate(self) -> CallEstimate | None:
        asks: list[CallEstimate] = []
        if isinstance(self.principal, EstimatesCalls):
            asks.append(self.principal.estimate(self.steps, self.candidates))
        rounds = (self.steps + self._most_heats) * (self.adapt_rounds + self.validate_rounds)
        asks += [
            agent.estimate(self.horizon, rounds * self.societies.games)
            for agent in self.agents
            if isinstance(agent, EstimatesCalls)
        ]
        return CallEstimate.total(asks) if asks else None

    def requests(self, run: RunContext) -> Requests[float]:
        """Returns the objective averaged over the proposals of the last fifth of the principal steps."""
        self._restore(run)
        self.references = self.known()
        self._brief({} if self.references is None else self.references.without)
        if self.references and self.references.warning:
            log.warning("%s", self.references.warning)
        done = self._env_steps_at(self._trials, self.round)
        with (
            run.progress(self.env_steps, "steps", "design", done) as progress,
            self.collector.observed(StepProgress(progress, self.env.spec.n_envs), GraceWatch(run, self._resumable)),
        ):
            while self.step < self.steps:
                yield from self._principal_step(run, progress)
            # Where there was nothing to choose from, luck has helped nobody.
            if self.contestants and self.history.several:
                yield from self._name(run)
        yield SafePoint(*self._resumable(), always=True)
        self.collector.close()
        return self._conclude(run)

    def _principal_step(self, run: RunContext, progress: ProgressDisplay) -> Requests[None]:
        """Ask for vectors, let societies adapt to them, validate, tell."""
        context = self._context()
        if self.vectors is None:
            with run.saved_if_refused(self._iteration(), self.state_dict):
                self.vectors = yield Ask(self.principal, context, self.candidates)
            self.adapting, self.training = {}, []
            if self.reset_agents:
                self.societies.reset()
        if self.differentiable:
            self._anchor = self._kept(run)
        scores = yield from self._try(run, context)
        yield self._tell(scores)
        best = max((each.outcome for each in scores), key=lambda outcome: outcome.value)
        assert self.env.spec.mechanism is not None
        progress.tell(best.value, self.env.spec.mechanism.in_words(best.vector))
        self.step, self.round, self.vectors, self._anchor = self.step + 1, 0, None, None
        yield SafePoint(*self._resumable())

    def _try(self, run: RunContext, context: int | None) -> Requests[list[Score]]:
        """Let societies adapt to the vectors, and score these."""
        assert self.vectors is not None
        learner: MetaLearner | None = None
        if self._graph:
            assert self.differentiable and isinstance(self.principal, GradientProposer)
            learner = self.differentiable.meta_learner(self.vectors[0], self.principal.meta_settings)
        while self.round < self.adapt_rounds:
            # Games within an episode are not saved: a round that is given up between two updates begins anew.
            pieces = self._anchor is None and self.agents[0].learns and len(self.adaptation.pieces) > 1
            if pieces:
                self._anchor = self._kept(run)
            seeds = self._seeds("adapt", self.round)
            episodes, losses = yield from self.adaptation.round(seeds, self.vectors, context, learner)
            if pieces:
                self._anchor = None
            if self.naming is None:
                self._keep_training(episodes)
                yield from self._log_round(episodes, losses)
            self.round += 1
            yield SafePoint(*self._resumable())
        rollouts = []
        for i in range(self.validate_rounds):
            rollouts.append((yield self._validation(i, self.vectors, context)))
        n, told = self.societies.several, (self.env.spec, context, self.objective, self.spending_cost)
        scores = [
            score(vector, own, *told, n, f"step {self.step}")
            for vector, own in zip(self.vectors, self.societies.under(rollouts), strict=True)
        ]
        if self.naming is None:
            for each, (first, last) in zip(scores, self.training, strict=False):
                each.outcome.training = (first, last)
        if learner is not None:
            [each] = scores
            each.outcome.gradient = learner.gradient(rollouts, self.objective, self.spending_cost, each.outcome)
        return scores

    @property
    def _graph(self) -> bool:
        """Whether the graph of a trial is kept, for a gradient that the principal is told."""
        return self.differentiable is not None and self.naming is None

    def _validation(self, index: int, vectors: np.ndarray, context: int | None) -> PlayEpisode:
        """One episode in every game; changes nothing that a checkpoint holds."""
        seeds, graph = self._seeds("validate", index), self._graph
        # A gradient looks at all validation rounds together.
        return self.adaptation.episode(
            self.horizon, seeds, vectors, context, learn=graph, reward_jacobian=graph, copy=graph
        )

    def _name(self, run: RunContext) -> Requests[None]:
        """Measure the best few of each context again, and the winners once more."""
        if self.naming is None:
            self.naming = ContextRaces(self.history.contestants(self.contestants), self.candidates, self.race_rounds)
            self.agents_before = [copy.deepcopy(agent.state_dict()) for agent in self.agents]
        while (heat := self.naming.next) is not None:
            if self.vectors is None:
                self.vectors = heat.vectors
                self.societies.reset()
            index = None if heat.context is None else self.env.spec.contexts.index(str(heat.context))
            scores = yield from self._try(run, index)
            metrics = self.naming.tell(scores)
            self.round, self.vectors = 0, None
            if metrics:
                steps = self._env_steps_at(self._trials, 0)
                yield Log("race", "env_steps", metrics, {"principal_steps": self.step, "env_steps": steps})
            yield SafePoint(*self._resumable())
        for agent, state in zip(self.agents, self.agents_before, strict=True):
            agent.load_state_dict(state)

    def _conclude(self, run: RunContext) -> float:
        """Write down what was found; returns what `requests` does."""
        rows = self.history.rows
        values = [row["objective"] for row in rows]
        last = self._counted * self.candidates
        final = float(np.mean(values[-last:]))
        played = [np.array_split(row["values"], self.societies.several) for row in rows[-last:]]
        best = self._best()
        run.summary = {
            "final_objective": final,
            "best_objective": best[0]["objective"],
            "best_standard_error": best[0]["standard_error"],
            "best_measured_again": self.naming is not None and self.naming.over,
            "highest_objective": max(values),
            "principal_steps": self.step,
            "proposals": len(rows),
            "env_steps": self._env_steps_at(self._trials, 0),
            "race_env_steps": self._env_steps_at(self._trials - self.step, 0),
            "best": best[0],
            "best_of_contexts": best if self.env.spec.contexts else [],
            "race": [] if self.naming is None else self.naming.rows(self.history.row),
            **({} if self.references is None else {"references": self.references.summary(best, rows, last)}),
            "history": rows,
            RESULT_EPISODES: [np.concatenate(society).tolist() for society in zip(*played, strict=True)],
        }
        return final

    def _best(self) -> list[dict[str, Any]]:
        """The best proposal of each context, highest objective first: by what the steps measured or, once these are
        named, the winners, by what was measured after they had won."""
        if self.naming is not None and self.naming.over:
            rows = self.naming.winners(self.history.row)
        else:
            rows = self.history.best()
        return sorted(rows, key=lambda row: -float(row["objective"]))

    def _tell(self, scores: Sequence[Score]) -> Log:
        """Tell the principal; returns the row to log."""
        mechanism = self.env.spec.mechanism
        assert mechanism is not None
        metrics = self.principal.tell([each.outcome for each in scores])
        metrics |= {} if self.meter is None else self.meter.metrics()
        metrics |= proposal_metrics(scores, mechanism)
        episodes: list[Episode] = [episode for each in scores for episode in each.episodes]
        metrics |= summarize(episodes, "validation")
        metrics |= {f"adapt/{name}": x for name, x in self.adapting.items()}
        self.history.add(self.step + 1, scores)
        metrics |= {} if self.references is None else self.references.metrics(self.history.rows[-1]["context"])
        metrics["principal/best_objective"] = self._best()[0]["objective"]
        counters = {
            "proposals": len(self.history.rows),
            "principal_steps": self.step + 1,
            "env_steps": self._env_steps_at(self.step + 1, 0),
        }
        return Log("proposal", "proposals", metrics, counters)

    def _keep_training(self, episodes: Sequence[Episode]) -> None:
        """Keep what each proposal's societies came to in a round, if it is the first or the last."""
        if self.round not in (0, self.adapt_rounds - 1):
            return
        games = self.societies.games * self.societies.several
        own = [[episode for episode in episodes if episode.game // games == i] for i in range(self.candidates)]
        if not all(own):
            return
        now = [float(episode_welfare(each, self.objective, self.spending_cost).mean()) for each in own]
        first = [pair[0] for pair in self.training] or now
        self.training = [list(pair) for pair in zip(first, now, strict=True)]

    def _log_round(self, episodes: Sequence[Episode], losses: Sequence[dict[str, float]]) -> Requests[None]:
        summary = summarize(episodes, "train")
        if self.round == 0:
            self.adapting["first_return"] = summary["train/return"]
        self.adapting["last_return"] = summary["train/return"]
        every = -(-self.adapt_rounds // ROWS_PER_STEP)
        if self.round % every == 0:
            mean = {name: float(np.mean([x[name] for x in losses])) for name in (losses[0] if losses else {})}
            counters = {
                "rounds": self.step * self.adapt_rounds + self.round + 1,
                "principal_steps": self.step,
                "env_steps": self._env_steps_at(self.step, self.round + 1),
            }
            yield Log("adaptation", "rounds", {**summary, **mean}, counters)

    def _context(self) -> int | None:
        """The context of this principal step, the same for all its episodes."""
        n = len(self.env.spec.contexts)
        if n and self.settings.contexts == "in_turn":
            return self.step % n
        return int(self.seeds.child("context").numpy(self.step).integers(n)) if n else None

    def _seeds(self, phase: str, index: int) -> Seeds:
        trial = self.seeds.child("step").child(self.step) if self.naming is None else self.naming.seeds(self.seeds)
        return trial.child(phase).child(index)

    def _env_steps_at(self, trials: int, round_: int) -> int:
        """Environment steps taken, summed over games, when so many trials and `round_` rounds of the next are over."""
        rounds = trials * (self.adapt_rounds + self.validate_rounds) + round_
        return rounds * self.horizon * self.env.spec.n_envs

    def _iteration(self) -> int:
        """Places a run can be resumed from, counted: after a proposal's round, and between proposals."""
        return self._trials * (self.adapt_rounds + 1) + self.round

    def _resumable(self) -> tuple[int, Callable[[], State]]:
        """The place to go on from after an interruption now, and what makes its state."""
        return self._anchor or (self._iteration(), self.state_dict)

    def _kept(self, run: RunContext) -> tuple[int, Callable[[], State]]:
        """The same with the state of this moment, whatever changes later."""
        kept = copy.deepcopy({**self.state_dict(), **run.mark()})
        return self._iteration(), lambda: kept

    def state_dict(self) -> State:
        """Everything a resumed run needs to go on exactly (on engines that can be seeded)."""
        return {
            "step": self.step,
            "round": self.round,
            "vectors": self.vectors,
            "adapting": self.adapting,
            "training": self.training,
            "history": self.history.rows,
            "best": self._best(),
            "naming": None if self.naming is None else self.naming.state_dict(),
            "agents_before": self.agents_before,
            "agents": [agent.state_dict() for agent in self.agents],
            "principal": self.principal.state_dict(),
            "meter": None if self.meter is None else self.meter.state_dict(),
        }

    def _restore(self, run: RunContext) -> None:
        if run.restored is None:
            return
        state = run.restored
        self.step, self.round, self.vectors = state["step"], state["round"], state["vectors"]
        self.adapting, self.training = state["adapting"], state["training"]
        self.history.restore(state["history"])
        if state["naming"] is not None:
            self.naming = ContextRaces.from_state(state["naming"], self.candidates, self.race_rounds)
            self.agents_before = state["agents_before"]
        for agent, saved in zip(self.agents, state["agents"], strict=True):
            agent.load_state_dict(saved)
        self.principal.load_state_dict(state["principal"])
        if self.meter is not None:
            self.meter.load_state_dict(state["meter"])
