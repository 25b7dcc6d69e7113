"""Executor of the requests of a loop, which answers each request or passes it to a `BatchedExecutor`."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from llmrl.algorithms.societies.batched_trainer import BatchedTrainer
from llmrl.algorithms.societies.partitioned_policy import split_rollout
from llmrl.core.errors import Diverged
from llmrl.core.records import EvaluationBatch
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import make_generators
from llmrl.loops.compute_requests import (
    Begin,
    Call,
    Delegate,
    EvaluateController,
    Log,
    PlayEpisode,
    PlaySteps,
    Request,
    Requests,
    SafePoint,
    T,
    Update,
)
from llmrl.rollout.batched_evaluator import Evaluator, SupportsEvaluator
from llmrl.run.run import Run

if TYPE_CHECKING:
    import torch


class ExecutorConnection(Protocol):
    """Protocol of `RunConnection`, a run's connection to an executor; importing the class would be circular."""

    def answer(self, request: Request) -> Any:
        """Return the answer to a request; called in the thread of the run, which waits for it."""
        ...

    def detached(self) -> AbstractContextManager[None]:
        """Return a context in which the executor does not wait for this run before it answers others."""
        ...


def serve(requests: Requests[T], run: Run | None = None, connection: ExecutorConnection | None = None) -> T:
    """Answer all requests of a loop, one after the other; return what the loop returns.

    Args:
        requests: loop, or a part of one.
        run: run for logging and saving; None for a part of a loop that requests neither.
        connection: connection to an executor that answers the requests of several runs together; None: all are answered
            here.

    Raises:
        Exception: raised while a request was answered, and not caught by the loop.
    """
    executor = Executor(run, connection)
    resume, answer_or_error = requests.send, None
    try:
        while True:
            try:
                answer_or_error = executor.answer(resume(answer_or_error))
                resume = requests.send
            except BaseException as error:
                if inspect.getgeneratorstate(requests) == inspect.GEN_CLOSED:  # the loop returned or did not catch it
                    if isinstance(error, StopIteration):
                        return error.value
                    raise
                resume, answer_or_error = requests.throw, error
    finally:
        requests.close()
        executor.close()


class Executor:
    """Executor of the requests of one loop.

    Args:
        run: run for logging and saving; None: the loop requests neither.
        connection: connection to an executor that answers the requests of several runs together; None: all are answered
            here.
    """

    def __init__(self, run: Run | None, connection: ExecutorConnection | None = None) -> None:
        self._run, self._connection = run, connection
        self._generators: list[torch.Generator] = []  # generators of actions of the last `PlaySteps`
        self._trainer: BatchedTrainer | None = None
        self._evaluators: dict[tuple[bool, int | None], Evaluator] = {}

    def answer(self, request: Request) -> Any:
        """Return the answer to a request, as documented by the class of the request."""
        if self._connection is None or isinstance(request, Log | SafePoint):
            return self._answer(request)
        if isinstance(request, Delegate) or (isinstance(request, Call) and request.is_long):
            with self._connection.detached():
                return self._answer(request)
        return self._connection.answer(request)

    def _answer(self, request: Request) -> Any:
        match request:
            case Begin():
                if request.seed is not None:
                    request.collector.reset(request.seed, request.games)
                if request.state is not None:
                    request.collector.load_state_dict(request.state, request.fork_seed)
            case PlaySteps():
                return self._play(request)
            case Update():
                return self._update(request)
            case Call():
                return request.function()
            case EvaluateController():
                return self._evaluate(request)
            case Delegate():
                return request.function(self.answer)
            case Log() | SafePoint():
                self._log_or_save(request)
        return None

    def _update(self, request: Update) -> Any:
        generators = make_generators(request.minibatch_seeds)
        if request.stacked:
            self._trainer = BatchedTrainer.reuse_or_create(request.agents, self._trainer)
            metrics_or_errors = self._trainer.update(request.rollout, generators)
            if (error := next((x for x in metrics_or_errors if isinstance(x, Diverged)), None)) is not None:
                raise error
            return metrics_or_errors
        society_rollouts = split_rollout(request.rollout, len(request.agents))
        return [
            agent.update(rollout, generator)
            for agent, rollout, generator in zip(request.agents, society_rollouts, generators, strict=True)
        ]

    def _log_or_save(self, request: Log | SafePoint) -> None:
        assert self._run is not None
        if isinstance(request, Log):
            self._run.metrics.log(request.kind, request.x_counter, request.metrics, **request.counters)
        elif request.always:
            self._run.checkpoint(request.iteration, request.state())
        else:
            self._run.safe_point(request.iteration, request.state)

    def close(self) -> None:
        """Close the evaluators, which ends their processes."""
        for evaluator in self._evaluators.values():
            evaluator.close()

    def _play(self, request: PlaySteps) -> Rollout:
        collector = request.collector
        if isinstance(request, PlayEpisode):
            if request.mechanism is not None:
                collector.env.set_mechanism(request.mechanism)
            if request.context is not None:
                collector.env.set_context(request.context)
            collector.reset(request.seed)
        if request.action_seeds is not None:
            self._generators = make_generators(request.action_seeds, shared=True)
        rollout = collector.collect(
            request.steps,
            self._generators if len(self._generators) > 1 else self._generators[0],
            request.learn,
            request.reward_jacobian,
            request.greedy,
            request.restart,
        )
        return rollout.copy() if request.copy else rollout

    def _evaluate(self, request: EvaluateController) -> EvaluationBatch:
        key = (bool(getattr(request.controller, "clip_actions", True)), request.workers)
        if key not in self._evaluators:
            assert isinstance(request.env, SupportsEvaluator)
            self._evaluators[key] = request.env.build_evaluator(*key)
        # The search checks returns for infinite values, so NumPy's floating-point warnings are redundant.
        with np.errstate(all="ignore"):
            return self._evaluators[key].evaluate(request.controller, request.vectors, request.seeds)
