"""An executor for the loops of several runs in one process, each in its own thread.

Requests that several runs make at the same time and with equal shapes are computed as one batch: their games as a
`RunBatch`, then their updates. The answer to a run does not depend on the other runs.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from llmrl.algorithms.societies.partitioned_policy import PartitionedPolicy
from llmrl.core.errors import Diverged
from llmrl.core.protocols import Resizable
from llmrl.core.rollouts import Rollout
from llmrl.loops.compute_requests import PlayEpisode, PlaySteps, Request, Update
from llmrl.loops.executor import Executor
from llmrl.rollout.multi_run_rollout import BatchedRun, EpisodeStart, RunBatch
from llmrl.run.signals import WorkDiscarded

State = Literal["running", "waiting", "away", "finished"]
"""State of a seat: its run computes something itself, waits for an answer, waits for something slow, or has ended."""

MIN_PATIENCE_S, PATIENCE_FRACTION = 0.1, 0.2
"""Waiting time for a run that has just gone away: the longer of seconds and a fraction of the last answer's time."""
MAX_SKIPS = 20
"""Maximum number of answers to other runs before a waiting run is answered: about a principal step of theirs."""
MAX_CACHED_BATCHES = 2
"""Maximum number of batches that are cached, with the memory of their rollouts."""


class BatchedExecutor:
    """Answers the requests of several runs in the thread that calls `run`.

    The executor waits until no run computes any more, and then answers the largest group of requests of equal shape. So
    similar runs stay together. It does not wait for a run that is away: one that asks a language model, fits a
    surrogate or waits for another run. Such a run joins a later batch.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seats: list[BatchSeat] = []
        self._batches: dict[tuple[BatchSeat, ...], RunBatch] = {}
        self._error: BaseException | None = None
        self._answer_time_s = 0.0  # duration of the last answer

    def seat(self, key: str | None = None) -> BatchSeat:
        """Return a seat for one more run.

        Args:
            key: runs with equal keys may be computed as one batch; None: this run is not batched.
        """
        with self._changed:
            self._seats.append(BatchSeat(self, key))
            return self._seats[-1]

    def run(self) -> None:
        """Answer requests until all runs have ended.

        Raises:
            KeyboardInterrupt, WorkDiscarded: a signal was received.
        """
        while (seats := self._next_group()) is not None:
            self._answer(seats)

    def fail_all(self, error: BaseException) -> None:
        """Answer every waiting and every later request with `error`."""
        with self._changed:
            self._error = error
            for seat in self._seats:
                if seat.state == "waiting":
                    seat.deliver(None, error)
            self._changed.notify_all()

    def _next_group(self) -> list[BatchSeat] | None:
        """Return the seats whose requests are answered next; None when all runs have ended."""
        with self._changed:
            while True:
                states = {seat.state for seat in self._seats}
                if states <= {"finished"}:
                    return None
                wait_s = self._remaining_patience_s()
                if "waiting" in states and "running" not in states and wait_s <= 0:
                    break
                # A finite time, so that signals are handled.
                self._changed.wait(wait_s if wait_s > 0 else 1.0)
            groups: dict[object, list[BatchSeat]] = {}
            for seat in self._seats:
                if seat.state == "waiting":
                    groups.setdefault(seat.shape(), []).append(seat)
        selected = max(groups.values(), key=self._priority)
        for seats in groups.values():
            for seat in seats:
                seat.skips = 0 if seats is selected else seat.skips + 1
        return selected

    @staticmethod
    def _priority(seats: Sequence[BatchSeat]) -> tuple[bool, bool, bool, int]:
        """Return the sort key of a group of seats; the largest one is answered first.

        Runs that other runs need come first, so that those start together. Updates come before games that would
        overwrite their rollouts. Other groups are answered by size, unless one has waited for `MAX_SKIPS` answers.
        """
        is_update = isinstance(seats[0].request, Update)
        is_overdue = max(seat.skips for seat in seats) >= MAX_SKIPS
        return any(seat.is_needed for seat in seats), is_update, is_overdue, len(seats)

    def _remaining_patience_s(self) -> float:
        """Return for how many more seconds to wait for runs that have gone away."""
        departures = [seat.state_time for seat in self._seats if seat.state == "away"]
        patience_s = max(MIN_PATIENCE_S, PATIENCE_FRACTION * self._answer_time_s)
        return max(departures) + patience_s - time.monotonic() if departures else 0.0

    def _answer(self, seats: Sequence[BatchSeat]) -> None:
        """Answer the requests of seats with equal shapes."""
        start = time.monotonic()
        try:
            first, request = seats[0], seats[0].request
            answers: Sequence[Any]
            if first.shape() is first:
                answers = [first.call_in_context(first.unbatched_executor.answer, request)]
            elif isinstance(request, Update):
                answers = self._update(seats)
            else:
                answers = self._play(seats)
        except (KeyboardInterrupt, WorkDiscarded):  # these end the process
            raise
        except BaseException as error:  # noqa: BLE001 (raised again in the threads of the runs)
            answers = [error] * len(seats)
        with self._changed:
            self._answer_time_s = time.monotonic() - start
            for seat, answer in zip(seats, answers, strict=True):
                seat.deliver(*((None, answer) if isinstance(answer, BaseException) else (answer, None)))
            self._changed.notify_all()

    def _play(self, seats: Sequence[BatchSeat]) -> Sequence[Any]:
        """Play the games of all seats as one batch; return the rollout of each seat."""
        requests: list[PlaySteps] = [seat.request for seat in seats]  # type: ignore[misc]
        first = requests[0]
        options = {
            "learn": first.learn,
            "keep_reward_jacobian": first.reward_jacobian,
            "greedy": first.greedy,
            "restart": first.restart,
        }
        if isinstance(first, PlayEpisode):
            batch = self._batch_of(seats)
            for i, seat in enumerate(seats):
                seat.batch, seat.index = batch, i
            starts = [_episode_start(request) for request in requests]  # type: ignore[arg-type]
            outputs = batch.play(first.steps, starts, (), **options)
        else:
            assert seats[0].batch is not None
            batch = seats[0].batch
            absent = set(range(len(batch.runs))) - {seat.index for seat in seats}
            outputs = batch.play(first.steps, None, absent, **options)
        for seat, request in zip(seats, requests, strict=True):
            output = outputs[seat.index]
            seat.rollout = output.copy() if request.copy and isinstance(output, Rollout) else output
        return [seat.rollout for seat in seats]

    def _batch_of(self, seats: Sequence[BatchSeat]) -> RunBatch:
        key = tuple(seats)
        batch = self._batches.pop(key, None)
        if batch is None:
            while len(self._batches) >= MAX_CACHED_BATCHES:  # the oldest; its seats still refer to it
                del self._batches[next(iter(self._batches))]
            batch = RunBatch([BatchedRun(seat.request.collector, seat.call_in_context) for seat in seats])  # type: ignore[union-attr]
        self._batches[key] = batch
        return batch

    @staticmethod
    def _update(seats: Sequence[BatchSeat]) -> Sequence[Any]:
        """Update the societies of all seats; return the metrics of each seat, or the error of a diverged one."""
        batch = seats[0].batch
        assert batch is not None
        requests: dict[int, Update] = {seat.index: seat.request for seat in seats}  # type: ignore[misc]
        agents = {i: request.agents for i, request in requests.items()}
        outputs = batch.update(agents, {i: request.minibatches for i, request in requests.items()})
        return [
            next((x for x in outputs[seat.index] if isinstance(x, Diverged)), outputs[seat.index]) for seat in seats
        ]


class BatchSeat:
    """The seat of one run at a batched executor.

    Args:
        executor: executor of the seat.
        key: runs with equal keys may be computed as one batch; None: this run is not batched.

    Attributes:
        unbatched_executor: executor of requests that are not computed in a batch.
        state: activity of the run.
        state_time: monotonic time of the last change of `state` by the run, in seconds.
        request: request that waits for an answer.
        skips: number of answers to other seats since the request was made.
        is_needed: whether the seat computes a run that other runs need.
        batch, index, rollout: batch in which the run's games were played last, the run's index in it, and its rollout.
    """

    def __init__(self, executor: BatchedExecutor, key: str | None) -> None:
        self._executor, self._key = executor, key
        self._context = contextvars.copy_context()
        self.unbatched_executor = Executor(None)
        self.state: State = "running"
        self.state_time = 0.0
        self.skips = 0
        self.is_needed = False
        self.request: Request | None = None
        self.answer_or_error: tuple[Any, BaseException | None] | None = None
        self.batch: RunBatch | None = None
        self.index = 0
        self.rollout: Any = None

    def answer(self, request: Request) -> Any:
        """Wait for the answer to a request, in the thread of the run.

        Raises:
            BaseException: as raised while the request was answered.
        """
        executor = self._executor
        self._context = contextvars.copy_context()
        with executor._changed:
            if executor._error is not None:
                raise executor._error
            previous, self.state, self.request = self.state, "waiting", request
            executor._changed.notify_all()
            while self.answer_or_error is None:
                executor._changed.wait()
            (answer, error), self.answer_or_error, self.state = self.answer_or_error, None, previous
        if error is not None:
            raise error
        return answer

    def deliver(self, answer: Any, error: BaseException | None) -> None:
        """Set the answer to the request, or the error to raise instead; the executor calls this."""
        self.answer_or_error, self.request, self.state = (answer, error), None, "running"

    @contextmanager
    def away(self) -> Iterator[None]:
        """Return a context in which the run may wait for long; the other runs do not wait for it."""
        previous = self.state
        self._set_state("away")
        try:
            yield
        finally:
            self._set_state(previous)

    @contextmanager
    def suspend_batching(self) -> Iterator[None]:
        """Return a context in which the run computes another run, which cannot be batched with the others."""
        key, self._key = self._key, None
        previous, self.is_needed = self.is_needed, True
        try:
            yield
        finally:
            self._key, self.is_needed = key, previous

    def leave(self) -> None:
        """Leave the executor; the run makes no more requests."""
        self.unbatched_executor.close()
        self._set_state("finished")

    def call_in_context(self, call: Any, *args: Any) -> Any:
        """Call a function in the context of the run, so that log messages belong to the run."""
        return self._context.run(call, *args)

    def shape(self) -> object:
        """Return a key that is equal for seats whose requests can be one batch; the seat itself: no batch."""
        request = self.request
        if self._key is not None:
            if isinstance(request, Update) and self.batch is not None and request.rollout is self.rollout:
                return (Update, id(self.batch))
            if isinstance(request, PlayEpisode) and self._can_be_batched(request):
                is_unset = (request.mechanism is None, request.context is None)
                return (PlayEpisode, self._key, request.collector.spec.n_envs, *is_unset, *_play_options(request))
            if type(request) is PlaySteps and self.batch is not None and request.actions is None:
                return (PlaySteps, id(self.batch), *_play_options(request))
        return self

    @staticmethod
    def _can_be_batched(request: PlayEpisode) -> bool:
        collector = request.collector
        if not isinstance(collector.env, Resizable) or not isinstance(collector.policy, PartitionedPolicy):
            return False
        is_unset = (request.mechanism is None, request.context is None)
        is_absent = (collector.spec.mechanism is None, not collector.spec.contexts)
        return is_unset == is_absent and collector.policy.is_stackable

    def _set_state(self, state: State) -> None:
        with self._executor._changed:
            self.state, self.state_time = state, time.monotonic()
            self._executor._changed.notify_all()


def _play_options(request: PlaySteps) -> tuple[object, ...]:
    return (request.steps, request.learn, request.reward_jacobian, request.greedy, request.restart)


def _episode_start(request: PlayEpisode) -> EpisodeStart:
    assert request.actions is not None
    return EpisodeStart(
        seed=request.seed, actions=request.actions, mechanism=request.mechanism, context=request.context
    )
