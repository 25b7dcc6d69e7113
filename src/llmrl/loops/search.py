"""The loop of policy search: a principal proposes policy parameters, which are evaluated in episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.metrics import RowKind
from llmrl.core.pooling import Estimate, PooledEstimates
from llmrl.core.protocols import EstimatesCalls, Proposer, SearchableAgent
from llmrl.core.records import CallEstimate, EvaluationBatch, State
from llmrl.core.state_fields import StateFields
from llmrl.loops.compute_requests import Call, EvaluateController, Log, Requests, SafePoint
from llmrl.loops.loop_parts import LoopParts, write_trained_adapter
from llmrl.loops.recommendation import Confirmation
from llmrl.loops.search_settings import SearchSettings, draw_warmup_vectors
from llmrl.rollout.batched_evaluator import (
    SupportsEvaluator,
    draw_episode_seeds,
    draw_evaluation_seeds,
    make_outcome,
    measure_incumbent,
    summarize_curve,
)
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.run.files import LineFile
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.proposals import FILE_NAME, read_proposal_lines
from llmrl.run.run import Run


@runtime_checkable
class SearchPrincipal(Protocol):
    """Protocol of principals that need the budget of the search, and may propose vectors without finite returns."""

    def on_search_start(self, iterations: int, episodes: int, has_common_seeds: bool = False) -> None:
        """Store the number of iterations, the episodes per proposal, and whether all proposals have the same seeds."""
        ...

    def replace_failed(self, vectors: np.ndarray, has_failed: np.ndarray) -> np.ndarray:
        """Return `vectors` with other proposals in place of the failed ones, [n, d].

        Args:
            vectors: proposed vectors, [n, d].
            has_failed: whether a return of each vector is infinite or not a number, [n] bool.
        """
        ...


class SearchLoop(StateFields):
    """Policy search: each iteration gets vectors from `principal.ask`, plays them, and passes the returns to `tell`.

    All episodes of an iteration are played at once. The estimate of a vector is the mean over all its episodes, also
    if it was proposed several times (`PooledEstimates`). The highest estimate is biased upward, and the bias increases
    with the number of vectors. So at the end the vectors with the highest estimates are measured again on fresh seeds,
    by successive halving (`Confirmation`). The best one becomes the agent's parameters, and its evaluation on further,
    unseen seeds is the result.

    An iteration draws random numbers only from the seed sub-tree of its index, so a resumed run is bit-equal to an
    uninterrupted one.

    Args:
        parts: parts of the run: a principal, and one agent, whose controller plays.
        settings: budget of the search, and numbers of episodes.

    Raises:
        ConfigError: the parts cannot work together.
    """

    _state_fields = (
        *("iteration", "is_warmed_up", "is_solved", "returns", "best_returns", "counters", "confirmations"),
        *("agents", "principal", "meter"),
    )

    def __init__(self, parts: LoopParts, settings: SearchSettings) -> None:
        [agent], principal = parts.agents, parts.principal
        assert isinstance(agent, SearchableAgent) and principal is not None
        if not isinstance(parts.env, SupportsEvaluator):
            raise Incompatible(
                IncompatibilityReason.WRONG_GAME,
                f"policy search needs an environment of Gymnasium, but env={parts.env.spec.name} is not one; choose "
                "another env, or agent=ppo",
            )
        if settings.candidates > 1 and not principal.parallel:
            raise ConfigError(
                f"search.candidates={settings.candidates}: {type(principal).__name__} proposes one vector at a time; "
                "set search.candidates=1"
            )
        if settings.warmup and not getattr(principal, "learns_from_others", False):
            raise ConfigError(
                f"search.warmup={settings.warmup}: {type(principal).__name__} can only learn from its own proposals; "
                "set search.warmup=0, or use principal=llm, gp or random"
            )
        self.env, self.agent, self.principal, self.seeds = parts.env, agent, principal, parts.seeds
        self.agents = list(parts.agents)
        self.space = agent.controller.space
        self.cores, self.meter, self.settings = parts.cores, parts.meter, settings
        self.iterations, self.candidates, self.episodes = settings.iterations, settings.candidates, settings.episodes
        self.warmup, self.warmup_episodes = settings.warmup, settings.warmup_episodes or settings.episodes
        # Drawn here, so that an invalid `warmup_draw` raises its error before any episode is played.
        rng = self.seeds.numpy("warmup")
        self.warmup_vectors = draw_warmup_vectors(self.space, settings.warmup_draw, settings.warmup, rng)
        self.target_return = self.env.spec.max_return if settings.target_return == "max" else settings.target_return
        if isinstance(principal, SearchPrincipal):
            principal.on_search_start(settings.iterations, settings.episodes, settings.episode_seeds == "common")
        # The attributes of this block are saved in checkpoints.
        self.iteration = 0
        self.is_warmed_up = settings.warmup == 0
        self.is_solved = False  # whether `target_return` was reached and confirmed
        self.returns: list[float] = []  # mean return of the vectors of each iteration
        self.best_returns: list[float] = []  # estimate of the best vector after each iteration
        self.counters = {"episodes": 0, "env_steps": 0}
        self.confirmations: list[dict[str, Any]] = []  # rows of `confirmations` in `summary.json`
        self.confirmation: Confirmation | None = None
        # Restored from `proposals.jsonl`, not from checkpoints.
        self.estimates = PooledEstimates(settings.episodes)
        self.highest_return = -np.inf

    @property
    def total_episodes(self) -> int:
        """Maximum number of episodes of the complete search, with confirmations, without evaluations."""
        n_per_iteration = self.candidates * self.episodes + self.settings.extra_rollout
        n_per_iteration += 0 if self.target_return is None else self.episodes
        n_confirmation_episodes = self.settings.confirm_candidates**2 * self.episodes
        return self.warmup * self.warmup_episodes + self.iterations * n_per_iteration + n_confirmation_episodes

    @property
    def n_proposals(self) -> int:
        """Number of vectors measured so far, including the random vectors of the warmup."""
        return (self.warmup if self.is_warmed_up else 0) + self.iteration * self.candidates

    def plan(self) -> list[tuple[str, str]]:
        proposals_text = "" if self.candidates == 1 else f" of {self.candidates:,} proposals each"
        warmup_text = f", after {self.warmup:,} random vectors x {self.warmup_episodes:,}" if self.warmup else ""
        n_candidates = self.settings.confirm_candidates
        may_end_early = bool(n_candidates) or self.target_return is not None
        confirm_text = "none: the search's measurements decide"
        if n_candidates:
            confirm_text = f"{n_candidates**2:,} x {self.episodes:,} fresh episodes of the best {n_candidates:,}"
        length_text = "" if self.env.spec.horizon is None else f", of at most {self.env.spec.horizon:,} steps each"
        return [
            ("  iterations", f"{self.iterations:,}{proposals_text}"),
            ("  parameters", f"{self.space.dim:,} of a {self.space.name}"),
            ("  episodes", f"{self.episodes:,} a proposal, {self.settings.episode_seeds} seeds{warmup_text}"),
            *(
                []
                if self.target_return is None
                else [("  ends", f"at a confirmed mean return of {self.target_return:g}")]
            ),
            ("  confirmations", confirm_text),
            ("  best so far", self.settings.evaluation_text),
            ("episodes", f"{'at most ' if may_end_early else ''}{self.total_episodes:,}{length_text}"),
        ]

    def estimate(self) -> CallEstimate | None:
        if not isinstance(self.principal, EstimatesCalls):
            return None
        return self.principal.estimate(self.iterations, self.candidates, self.warmup)

    def requests(self, run: Run) -> Requests[float]:
        """Run the search; return the mean return of the best proposal on unseen seeds."""
        self.proposals_file = LineFile(
            run.folder / FILE_NAME, None if run.restored_state is None else run.restored_state["proposals"]
        )
        self._restore(run)
        try:
            with run.progress(self.total_episodes, "episodes", "search", self.counters["episodes"]) as progress:
                if not self.is_warmed_up:
                    yield from self._warm_up(progress)
                while self.iteration < self.iterations and not self.is_solved:
                    yield from self._iterate(run, progress)
                if self.settings.confirm_candidates:
                    yield from self._confirm_candidates(progress)
            yield SafePoint(self._n_finished_trials, self.state_dict, always=True)
            final_evaluation: EvaluationBatch = yield self._make_evaluation_request()
        finally:
            self.proposals_file.close()
        metrics = measure_incumbent(final_evaluation)
        yield self._make_log_request("evaluation", metrics)
        write_trained_adapter(run, self.principal)
        run.summary = {**self._summarize(metrics), RESULT_EPISODES: final_evaluation.returns.tolist()}
        return metrics["search/incumbent_return"]

    def _warm_up(self, progress: ProgressBar) -> Requests[None]:
        seeds = self._draw_episode_seeds(self._format_draw_name(0), self.warmup_episodes)
        _, batch = yield from self._play_episodes(self.warmup_vectors, seeds)
        metrics = self._tell_principal(self.warmup_vectors, batch, [{}] * self.warmup)
        self.is_warmed_up = True
        yield self._make_log_request("proposal", metrics)
        progress.update(self.counters["episodes"])
        yield SafePoint(0, self.state_dict)

    def _iterate(self, run: Run, progress: ProgressBar) -> Requests[None]:
        """Run one iteration: get vectors from the principal, play episodes with them, and pass on the outcomes."""
        with nullcontext() if self.meter is None else run.save_on_llm_error(self.iteration, self.state_dict):
            proposals = yield Call(partial(self.principal.ask, None, self.candidates), is_long=True)
        seeds = self._draw_episode_seeds(self._format_draw_name(self.iteration + 1), self.episodes)
        vectors, batch = yield from self._play_episodes(
            self.space.round_values(proposals, clip=False), seeds, replace_invalid=True
        )
        if self.settings.extra_rollout:
            extra_rollout_seeds = self._draw_episode_seeds(f"extra {self.iteration}", 1)
            self._count_episodes((yield self.make_play_request(vectors[-1:], extra_rollout_seeds)))
        self.iteration += 1
        metrics = self._tell_principal(vectors, batch, _build_reasoning_fields(self.principal, len(vectors)))
        self.returns.append(float(batch.returns.mean()))
        best = self._find_best_estimate()
        self.agent.set_parameters(np.array(best.vector))
        self.best_returns.append(best.value)
        metrics["search/best_return"] = best.value
        yield self._make_log_request("proposal", metrics)
        means = batch.returns.mean(1)
        progress.show_result(float(means.max()), self.space.format_vector(vectors[means.argmax()]))
        if self.target_return is not None and float(means.max()) >= self.target_return:
            yield from self._confirm_solution(vectors[means.argmax()], self.target_return)
        if self.settings.is_evaluation_due(self.iteration):
            yield self._make_log_request("evaluation", measure_incumbent((yield self._make_evaluation_request())))
        progress.update(self.counters["episodes"])
        yield SafePoint(self.iteration, self.state_dict)

    def _confirm_solution(self, vector: np.ndarray, target_return: float) -> Requests[None]:
        """Play a vector on fresh seeds; mark the search as solved if the mean return reaches `target_return` again."""
        seeds = self._draw_episode_seeds(f"confirmation {self.iteration}", self.episodes)
        _, batch = yield from self._play_episodes(vector[None], seeds)
        self.is_solved = float(batch.returns.mean()) >= target_return

    def _confirm_candidates(self, progress: ProgressBar) -> Requests[None]:
        """Measure the vectors with the highest estimates again; set the agent's parameters to the best of them."""
        if self.confirmation is None:
            n = self.settings.confirm_candidates
            vectors = np.array([estimate.vector for estimate in self.estimates.ranked()[:n]])
            self.confirmation = Confirmation({None: vectors}, n**2, slots=1)
        while not self.confirmation.is_finished:
            halving = self.confirmation.halvings[None]
            [(candidate, draw)] = halving.next_trial
            vector, seeds = halving.vectors[candidate], self._draw_episode_seeds(f"candidates {draw}", self.episodes)
            _, batch = yield from self._play_episodes(vector[None], seeds)
            outcome = make_outcome(vector, batch, 0, "")
            self._add_confirmation(
                {"vector": vector.tolist(), "return": outcome.value, "standard_error": outcome.standard_error}
            )
            halving.advance(lambda vector: self.estimates.get(vector).value)
            metrics = {"confirmation/return": outcome.value, "confirmation/candidates": float(len(halving.survivors))}
            yield self._make_log_request("confirmation", metrics)
            progress.update(self.counters["episodes"])
            yield SafePoint(self._n_finished_trials, self.state_dict)
        self.agent.set_parameters(np.array(self._find_best_estimate().vector))

    @property
    def _n_finished_trials(self) -> int:
        """Number of finished iterations and confirmations."""
        return self.iteration + len(self.confirmations)

    def _play_episodes(
        self, vectors: np.ndarray, seeds: np.ndarray, replace_invalid: bool = False
    ) -> Requests[tuple[np.ndarray, EvaluationBatch]]:
        """Play and count an episode of each vector, [q, d], under each seed, [k]; return the vectors and the episodes.

        With `replace_invalid`, a `SearchPrincipal` replaces vectors with a return that is not finite, once. The
        returned vectors then include the replacements. The episodes before the replacement are not counted.

        Raises:
            ConfigError: a return is not finite.
        """
        batch = yield self.make_play_request(vectors, seeds)
        is_invalid = ~np.isfinite(batch.returns).all(1)
        if is_invalid.any() and replace_invalid and isinstance(self.principal, SearchPrincipal):
            vectors = self.space.round_values(self.principal.replace_failed(vectors, is_invalid), clip=False)
            batch = yield self.make_play_request(vectors, seeds)
            is_invalid = ~np.isfinite(batch.returns).all(1)
        if is_invalid.any():
            raise ConfigError(
                f"an episode of env={self.env.spec.name} has no finite return under the parameters "
                f"{vectors[is_invalid][0].tolist()}; try a smaller agent.bound or agent.clip_actions=true"
            )
        self._count_episodes(batch)
        return vectors, batch

    def make_play_request(self, vectors: np.ndarray, seeds: np.ndarray) -> EvaluateController:
        """Return the request that plays an episode of each vector, [q, d], under each seed, [k]."""
        return EvaluateController(
            env=self.env, controller=self.agent.controller, vectors=vectors, seeds=seeds, workers=self.cores
        )

    def _count_episodes(self, batch: EvaluationBatch) -> None:
        self.counters["episodes"] += batch.returns.size
        self.counters["env_steps"] += int(batch.lengths.sum())

    def _tell_principal(
        self, vectors: np.ndarray, batch: EvaluationBatch, extra_fields: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Pass outcomes to the principal, write them with `extra_fields` to `proposals.jsonl`; return metrics."""
        iteration = self.iteration if self.is_warmed_up else 0
        draw = self._format_draw_name(iteration)
        outcomes = [make_outcome(vector, batch, i, draw) for i, vector in enumerate(vectors)]
        metrics = self.principal.tell(outcomes) | ({} if self.meter is None else self.meter.metrics())
        for i, outcome in enumerate(outcomes):
            proposal = {
                "iteration": iteration,
                "candidate": i,
                "return": outcome.value,
                "standard_error": outcome.standard_error,
                "length": outcome.summaries["length"],
                "vector": outcome.vector.tolist(),
                "returns": outcome.values.tolist(),
            }
            self.proposals_file.write_object(proposal | extra_fields[i])
            self._add_estimate(proposal)
        values = [outcome.value for outcome in outcomes]
        metrics["search/return"] = float(np.mean(values))
        if len(values) > 1:
            metrics["search/best_of_iteration"] = max(values)
        for name in outcomes[0].summaries:
            metrics[f"search/{name}"] = float(np.mean([outcome.summaries[name] for outcome in outcomes]))
        return metrics

    def _add_estimate(self, proposal: Mapping[str, Any]) -> None:
        """Add a line of `proposals.jsonl` to the pooled estimates."""
        n, draw = len(proposal["returns"]), self._format_draw_name(proposal["iteration"])
        self.estimates.add(proposal["vector"], proposal["return"], proposal["standard_error"], n, n, draw=draw)
        if n >= self.episodes:
            self.highest_return = max(self.highest_return, proposal["return"])

    def _add_confirmation(self, row: dict[str, Any]) -> None:
        """Append a row of `confirmations`, and add it to the pooled estimates."""
        self.confirmations.append(row)
        self.estimates.add(row["vector"], row["return"], row["standard_error"], self.episodes, self.episodes)

    def _format_draw_name(self, iteration: int) -> str:
        """Return the name of the seed node of the episodes of an iteration, from 1; 0 is the warmup."""
        if not iteration:
            return "warmup episodes"
        return "common" if self.settings.episode_seeds == "common" else f"iteration {iteration - 1}"

    def _find_best_estimate(self) -> Estimate:
        """Return the highest estimate so far; after confirmations, the highest one of the remaining candidates."""
        survivors = None if self.confirmation is None else self.confirmation.surviving_vectors(None)
        if survivors is not None:
            return self.estimates.get(survivors[0])
        best = self.estimates.best()
        assert best is not None
        return best

    def _make_log_request(self, kind: RowKind, metrics: dict[str, float]) -> Log:
        """Return the request that logs metrics with the counters of the search."""
        counters = {"proposals": self.n_proposals, "iterations": self.iteration, **self.counters}
        return Log(kind, "episodes" if kind == "confirmation" else "proposals", metrics, counters)

    def _make_evaluation_request(self) -> EvaluateController:
        """Return the request that evaluates the best proposal so far, always on the same unseen seeds."""
        vector = np.array([self._find_best_estimate().vector])
        return self.make_play_request(vector, draw_evaluation_seeds(self.seeds, self.settings.evaluate_episodes))

    def _draw_episode_seeds(self, name: str, n: int) -> np.ndarray:
        return draw_episode_seeds(self.seeds.child(name), n)

    def _summarize(self, final_metrics: dict[str, float]) -> dict[str, Any]:
        best = self._find_best_estimate()
        return {
            **{name.removeprefix("search/"): value for name, value in final_metrics.items()},
            "best_return": self.best_returns[-1],
            "highest_return": self.highest_return,
            **summarize_curve(self.returns),
            "area_of_best": float(np.mean(self.best_returns)),
            "iterations": self.iteration,
            **({} if self.target_return is None else {"solved": self.is_solved}),
            "proposals": self.n_proposals,
            **self.counters,
            "confirmation_episodes": len(self.confirmations) * self.episodes,
            "best": {
                "return": best.value,
                "standard_error": best.standard_error,
                "measurements": best.n_measurements,
                "episodes": best.n_episodes,
                "iteration": max(0, best.first_index - self.warmup) // self.candidates
                + (best.first_index >= self.warmup),
                "vector": list(best.vector),
            },
            "confirmations": self.confirmations,
        }

    def state_dict(self) -> State:
        """Return everything that an exact resume needs."""
        confirmation = None if self.confirmation is None else self.confirmation.state_dict()
        return super().state_dict() | {"confirmation": confirmation, "proposals": self.proposals_file.position()}

    def _restore(self, run: Run) -> None:
        """Restore the checkpoint of `run`; `proposals.jsonl` was already truncated to its length at the checkpoint."""
        state = run.restored_state
        if state is None:
            return
        self.load_state_dict(state)
        if state["confirmation"] is not None:
            self.confirmation = Confirmation.from_state(state["confirmation"])
        for proposal in read_proposal_lines(run.folder):
            self._add_estimate(proposal)
        self.confirmations = []
        for row in state["confirmations"]:
            self._add_confirmation(row)


def _build_reasoning_fields(principal: Proposer, n: int) -> list[dict[str, Any]]:
    """Return the fields `reasoning` and `fallback` of each of `n` proposals in `proposals.jsonl`."""
    reasons = [*getattr(principal, "reasons", []), *[""] * n]
    fallbacks = [*getattr(principal, "fallbacks", []), *[False] * n]
    return [
        ({"reasoning": reason} if reason else {}) | ({"fallback": True} if fallback else {})
        for reason, fallback in zip(reasons[:n], fallbacks[:n], strict=True)
    ]
