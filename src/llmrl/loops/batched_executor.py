"""An executor for the loops of several runs in one process, each in its own thread.

Requests that several runs make at the same time and with equal shapes are computed as one batch: their games as a
`Wave`, then their updates. The answer to a run does not depend on the other runs.
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
from llmrl.rollout.multi_run_rollout import Begun, Member, Wave
from llmrl.run.signals import GivenUp

State = Literal["works", "asks", "away", "left"]
"""State of a seat: its run computes something itself, waits for an answer, waits for something slow, or has ended."""

PATIENCE_S, PATIENCE = 0.1, 0.2
"""Waiting time for a run that has just gone away: the longer of seconds and a share of the time of the last answer."""
MAX_SKIPS = 20
"""Maximum number of answers to other runs before a waiting run is answered: about a principal step of theirs."""
WAVES = 2
"""Number of waves that are kept for reuse, with the memory of their rollouts."""


class BatchedExecutor:
    """Answers the requests of several runs in the thread that calls `run`.

    The executor waits until no run computes any more, and then answers the largest group of requests of equal shape. So
    similar runs stay together. It does not wait for a run that is away: one that asks a language model, fits a
    surrogate or waits for another run. Such a run joins a later wave.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seats: list[BatchSeat] = []
        self._waves: dict[tuple[BatchSeat, ...], Wave] = {}
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
        """Answer requests until every seat has left.

        Raises:
            KeyboardInterrupt, GivenUp: a signal was received.
        """
        while (seats := self._next()) is not None:
            self._answer(seats)

    def abandon(self, error: BaseException) -> None:
        """Answer every waiting and every later request with `error`."""
        with self._changed:
            self._error = error
            for seat in self._seats:
                if seat.state == "asks":
                    self._settle(seat, None, error)
            self._changed.notify_all()

    def _next(self) -> list[BatchSeat] | None:
        """Return the seats whose requests are answered next; None when all have left."""
        with self._changed:
            while True:
                states = {seat.state for seat in self._seats}
                if states <= {"left"}:
                    return None
                wait_s = self._soon_back()
                if "asks" in states and "works" not in states and wait_s <= 0:
                    break
                # A finite time, so that signals are handled.
                self._changed.wait(wait_s if wait_s > 0 else 1.0)
            groups: dict[object, list[BatchSeat]] = {}
            for seat in self._seats:
                if seat.state == "asks":
                    groups.setdefault(seat.shape(), []).append(seat)
        chosen = max(groups.values(), key=self._urgency)
        for seats in groups.values():
            for seat in seats:
                seat.skips = 0 if seats is chosen else seat.skips + 1
        return chosen

    @staticmethod
    def _urgency(seats: Sequence[BatchSeat]) -> tuple[bool, bool, bool, int]:
        """Return the sort key of a group of seats; the largest one is answered first.

        Runs that other runs need come first, so that those start together. Updates come before games that would
        overwrite their rollouts. Other groups are answered by size, unless one has waited for `MAX_SKIPS` answers.
        """
        learns = isinstance(seats[0].request, Update)
        late = max(seat.skips for seat in seats) >= MAX_SKIPS
        return any(seat.needed for seat in seats), learns, late, len(seats)

    def _soon_back(self) -> float:
        """Return for how many more seconds to wait for runs that have gone away."""
        departures = [seat.since for seat in self._seats if seat.state == "away"]
        return (
            max(departures) + max(PATIENCE_S, PATIENCE * self._answer_time_s) - time.monotonic() if departures else 0.0
        )

    def _answer(self, seats: Sequence[BatchSeat]) -> None:
        """Answer the requests of seats with equal shapes."""
        start = time.monotonic()
        try:
            request = seats[0].request
            answers: Sequence[Any]
            if seats[0].shape() is seats[0]:
                answers = (
                    [seats[0].call_in_context(seats[0].own_executor.answer, request)] if request is not None else []
                )
            elif isinstance(request, Update):
                answers = self._update(seats)
            else:
                answers = self._play(seats)
        except (KeyboardInterrupt, GivenUp):  # these end the process
            raise
        except BaseException as error:  # noqa: BLE001 (raised again in the threads of the runs)
            answers = [error] * len(seats)
        with self._changed:
            self._answer_time_s = time.monotonic() - start
            for seat, answer in zip(seats, answers, strict=True):
                is_error = isinstance(answer, BaseException)
                self._settle(seat, None if is_error else answer, answer if is_error else None)
            self._changed.notify_all()

    def _settle(self, seat: BatchSeat, answer: Any, error: BaseException | None) -> None:
        seat.answer_or_error, seat.request, seat.state = (answer, error), None, "works"

    def _play(self, seats: Sequence[BatchSeat]) -> Sequence[Any]:
        """Play a wave; return the rollout of each seat."""
        requests: list[PlaySteps] = [seat.request for seat in seats]  # type: ignore[misc]
        first = requests[0]
        options = {
            "learn": first.learn,
            "keep_reward_jacobian": first.reward_jacobian,
            "greedy": first.greedy,
            "restart": first.restart,
        }
        if isinstance(first, PlayEpisode):
            wave = self._wave_of(seats)
            for i, seat in enumerate(seats):
                seat.wave, seat.place = wave, i
            starts = [_episode_start(request) for request in requests]  # type: ignore[arg-type]
            outputs = wave.play(first.steps, starts, (), **options)
        else:
            assert seats[0].wave is not None
            wave = seats[0].wave
            absent = set(range(len(wave.members))) - {seat.place for seat in seats}
            outputs = wave.play(first.steps, None, absent, **options)
        for seat, request in zip(seats, requests, strict=True):
            output = outputs[seat.place]
            seat.rollout = output.copy() if request.copy and isinstance(output, Rollout) else output
        return [seat.rollout for seat in seats]

    def _wave_of(self, seats: Sequence[BatchSeat]) -> Wave:
        key = tuple(seats)
        wave = self._waves.pop(key, None)
        if wave is None:
            while len(self._waves) >= WAVES:  # the oldest; its seats still refer to it
                del self._waves[next(iter(self._waves))]
            collectors = [seat.request.collector for seat in seats]  # type: ignore[union-attr]
            wave = Wave(
                [Member(collector, seat.call_in_context) for collector, seat in zip(collectors, seats, strict=True)]
            )
        self._waves[key] = wave
        return wave

    @staticmethod
    def _update(seats: Sequence[BatchSeat]) -> Sequence[Any]:
        """Update the societies of all seats; return the metrics of each seat, or the error of a diverged one."""
        wave = seats[0].wave
        assert wave is not None
        requests: dict[int, Update] = {seat.place: seat.request for seat in seats}  # type: ignore[misc]
        agents = {place: request.agents for place, request in requests.items()}
        outputs = wave.update(agents, {place: request.minibatches for place, request in requests.items()})
        return [
            next((x for x in outputs[seat.place] if isinstance(x, Diverged)), outputs[seat.place]) for seat in seats
        ]


class BatchSeat:
    """The seat of one run at a batched executor.

    Args:
        executor: executor of the seat.
        key: runs with equal keys may be computed as one batch; None: this run is not batched.

    Attributes:
        own_executor: executor of requests that are not computed in a batch.
        state: activity of the run.
        since: monotonic time of the last change of `state` by the run, in seconds.
        request: request that waits for an answer.
        skips: number of answers to other seats since the request was made.
        needed: whether the seat computes a run that other runs need.
        wave, place, rollout: wave that played the run's games last, the run's index in it, and its rollout.
    """

    def __init__(self, executor: BatchedExecutor, key: str | None) -> None:
        self._executor, self._key = executor, key
        self._context = contextvars.copy_context()
        self.own_executor = Executor(None)
        self.state: State = "works"
        self.since = 0.0
        self.skips = 0
        self.needed = False
        self.request: Request | None = None
        self.answer_or_error: tuple[Any, BaseException | None] | None = None
        self.wave: Wave | None = None
        self.place = 0
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
            previous, self.state, self.request = self.state, "asks", request
            executor._changed.notify_all()
            while self.answer_or_error is None:
                executor._changed.wait()
            (answer, error), self.answer_or_error, self.state = self.answer_or_error, None, previous
        if error is not None:
            raise error
        return answer

    @contextmanager
    def away(self) -> Iterator[None]:
        """Return a context in which the run may wait for long; the other runs do not wait for it."""
        previous = self.state
        self._become("away")
        try:
            yield
        finally:
            self._become(previous)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Return a context in which the run computes another run, which cannot be batched with the others."""
        key, self._key = self._key, None
        previous, self.needed = self.needed, True
        try:
            yield
        finally:
            self._key, self.needed = key, previous

    def leave(self) -> None:
        """Leave the executor; the run makes no more requests."""
        self.own_executor.close()
        self._become("left")

    def call_in_context(self, call: Any, *args: Any) -> Any:
        """Call a function in the context of the run, so that log messages belong to the run."""
        return self._context.run(call, *args)

    def shape(self) -> object:
        """Return a key that is equal for seats whose requests can be one batch; the seat itself: no batch."""
        request = self.request
        if self._key is not None:
            if isinstance(request, Update) and self.wave is not None and request.rollout is self.rollout:
                return (Update, id(self.wave))
            if isinstance(request, PlayEpisode) and self._batches(request):
                unset = (request.mechanism is None, request.context is None)
                return (PlayEpisode, self._key, request.collector.spec.n_envs, *unset, *_play_options(request))
            if type(request) is PlaySteps and self.wave is not None and request.actions is None:
                return (PlaySteps, id(self.wave), *_play_options(request))
        return self

    @staticmethod
    def _batches(request: PlayEpisode) -> bool:
        collector = request.collector
        if not isinstance(collector.env, Resizable) or not isinstance(collector.policy, PartitionedPolicy):
            return False
        spec = collector.spec
        fits_spec = (request.mechanism is None) == (spec.mechanism is None) and (request.context is None) == (
            not spec.contexts
        )
        return fits_spec and collector.policy.stackable

    def _become(self, state: State) -> None:
        with self._executor._changed:
            self.state, self.since = state, time.monotonic()
            self._executor._changed.notify_all()


def _play_options(request: PlaySteps) -> tuple[object, ...]:
    return (request.steps, request.learn, request.reward_jacobian, request.greedy, request.restart)


def _episode_start(request: PlayEpisode) -> Begun:
    assert request.actions is not None
    return Begun(seed=request.seed, actions=request.actions, mechanism=request.mechanism, context=request.context)
