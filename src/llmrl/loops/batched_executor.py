"""One executor for the loops of several runs of a process, each in a thread of its own.

What the runs ask for at one time and in one shape is computed as one batch: their games as a `Wave`, then their
updates. What a run is answered does not depend on the others.
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
"""Of a seat: its run computes something itself, waits for an answer, waits for what may take long, or has ended."""

PATIENCE_S, PATIENCE = 0.1, 0.2
"""How long a wave waits for a run that has just gone away: seconds, or a share of the time that the last answer took.
Bandits are back at once."""
PASSED_OVER = 20
"""Answers to others that a run waits for at most: about a principal step of theirs."""
WAVES = 2
"""Waves that are kept to be used again, with the memory of their rollouts."""


class BatchedExecutor:
    """Answers the requests of several runs in the thread that calls `run`.

    It waits until no run works any more, and then answers what most of them ask in one shape. So runs that are alike
    stay together, and nobody waits for one that is away: that asks a language model, fits a surrogate or waits for
    another run. It joins a later wave.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seats: list[BatchSeat] = []
        self._waves: dict[tuple[BatchSeat, ...], Wave] = {}
        self._error: BaseException | None = None
        self._took = 0.0  # seconds, the last answer

    def seat(self, key: str | None = None) -> BatchSeat:
        """A place for one more run.

        Args:
            key: runs with equal keys may be computed as one batch; None: this one plays and learns by itself.
        """
        with self._changed:
            self._seats.append(BatchSeat(self, key))
            return self._seats[-1]

    def run(self) -> None:
        """Answer until every seat has left.

        Raises:
            KeyboardInterrupt, GivenUp: as a signal wants.
        """
        while (seats := self._next()) is not None:
            self._answer(seats)

    def abandon(self, error: BaseException) -> None:
        """Let every request that waits or will come be answered by `error`."""
        with self._changed:
            self._error = error
            for seat in self._seats:
                if seat.state == "asks":
                    self._settle(seat, None, error)
            self._changed.notify_all()

    def _next(self) -> list[BatchSeat] | None:
        """The seats whose requests are answered next; None when all have left."""
        with self._changed:
            while True:
                states = {seat.state for seat in self._seats}
                if states <= {"left"}:
                    return None
                back = self._soon_back()
                if "asks" in states and "works" not in states and back <= 0:
                    break
                # Not for ever, so that signals are heard.
                self._changed.wait(back if back > 0 else 1.0)
            groups: dict[object, list[BatchSeat]] = {}
            for seat in self._seats:
                if seat.state == "asks":
                    groups.setdefault(seat.shape(), []).append(seat)
        chosen = max(groups.values(), key=self._urgency)
        for seats in groups.values():
            for seat in seats:
                seat.passed_over = 0 if seats is chosen else seat.passed_over + 1
        return chosen

    @staticmethod
    def _urgency(seats: Sequence[BatchSeat]) -> tuple[bool, bool, bool, int]:
        """A run that others need comes first, so that these begin together; what was played is learned from before
        somebody plays over it; who is alone in its phase waits for others to come into it, but not for ever."""
        learns = isinstance(seats[0].request, Update)
        late = max(seat.passed_over for seat in seats) >= PASSED_OVER
        return any(seat.needed for seat in seats), learns, late, len(seats)

    def _soon_back(self) -> float:
        """For how many seconds runs that have gone away are waited for."""
        since = [seat.since for seat in self._seats if seat.state == "away"]
        return max(since) + max(PATIENCE_S, PATIENCE * self._took) - time.monotonic() if since else 0.0

    def _answer(self, seats: Sequence[BatchSeat]) -> None:
        """Answer the requests of seats that ask for the same."""
        begun = time.monotonic()
        try:
            request = seats[0].request
            answers: Sequence[Any]
            if seats[0].shape() is seats[0]:
                answers = [seats[0].told(seats[0].alone.answer, request)] if request is not None else []
            elif isinstance(request, Update):
                answers = self._update(seats)
            else:
                answers = self._play(seats)
        except (KeyboardInterrupt, GivenUp):  # of the process
            raise
        except BaseException as error:  # noqa: BLE001 (raised again where the runs asked)
            answers = [error] * len(seats)
        with self._changed:
            self._took = time.monotonic() - begun
            for seat, answer in zip(seats, answers, strict=True):
                failed = isinstance(answer, BaseException)
                self._settle(seat, None if failed else answer, answer if failed else None)
            self._changed.notify_all()

    def _settle(self, seat: BatchSeat, answer: Any, error: BaseException | None) -> None:
        seat.answered, seat.request, seat.state = (answer, error), None, "works"

    def _play(self, seats: Sequence[BatchSeat]) -> Sequence[Any]:
        """What each seat gets of a wave."""
        asked: list[PlaySteps] = [seat.request for seat in seats]  # type: ignore[misc]
        first = asked[0]
        how = {
            "learn": first.learn,
            "keep_reward_jacobian": first.reward_jacobian,
            "greedy": first.greedy,
            "restart": first.restart,
        }
        if isinstance(first, PlayEpisode):
            wave = self._wave_of(seats)
            for i, seat in enumerate(seats):
                seat.wave, seat.place = wave, i
            begun = [_begun(each) for each in asked]  # type: ignore[arg-type]
            found = wave.play(first.steps, begun, (), **how)
        else:
            assert seats[0].wave is not None
            wave = seats[0].wave
            absent = set(range(len(wave.members))) - {seat.place for seat in seats}
            found = wave.play(first.steps, None, absent, **how)
        for seat, each in zip(seats, asked, strict=True):
            got = found[seat.place]
            seat.rollout = got.copy() if each.copy and isinstance(got, Rollout) else got
        return [seat.rollout for seat in seats]

    def _wave_of(self, seats: Sequence[BatchSeat]) -> Wave:
        key = tuple(seats)
        wave = self._waves.pop(key, None)
        if wave is None:
            while len(self._waves) >= WAVES:  # the oldest; whoever learns from it still has it
                del self._waves[next(iter(self._waves))]
            collectors = [seat.request.collector for seat in seats]  # type: ignore[union-attr]
            wave = Wave([Member(each, seat.told) for each, seat in zip(collectors, seats, strict=True)])
        self._waves[key] = wave
        return wave

    @staticmethod
    def _update(seats: Sequence[BatchSeat]) -> Sequence[Any]:
        """The metrics of each seat's societies."""
        wave = seats[0].wave
        assert wave is not None
        asked: dict[int, Update] = {seat.place: seat.request for seat in seats}  # type: ignore[misc]
        agents = {place: each.agents for place, each in asked.items()}
        found = wave.update(agents, {place: each.minibatches for place, each in asked.items()})
        return [next((x for x in found[seat.place] if isinstance(x, Diverged)), found[seat.place]) for seat in seats]


class BatchSeat:
    """The place of one run.

    Args:
        rows: that it is one of.
        key: runs with equal keys may be computed as one batch; None: alone.

    Attributes:
        alone: answers what is not computed in a batch.
        state, since: what its run does, and since when it is away or not, by the clock.
        request: what its run asks for.
        passed_over: how often others were answered since it asks.
        needed: it computes a run that its own one needs, and perhaps others do.
        wave, place, rollout: where its games were played last, as which member, and what came of it.
    """

    def __init__(self, rows: BatchedExecutor, key: str | None) -> None:
        self._rows, self._key = rows, key
        self._context = contextvars.copy_context()
        self.alone = Executor(None)
        self.state: State = "works"
        self.since = 0.0
        self.passed_over = 0
        self.needed = False
        self.request: Request | None = None
        self.answered: tuple[Any, BaseException | None] | None = None
        self.wave: Wave | None = None
        self.place = 0
        self.rollout: Any = None

    def answer(self, request: Request) -> Any:
        """Wait for the answer to a request, in the thread of the run.

        Raises:
            Whatever the answer raised.
        """
        rows = self._rows
        self._context = contextvars.copy_context()
        with rows._changed:
            if rows._error is not None:
                raise rows._error
            before, self.state, self.request = self.state, "asks", request
            rows._changed.notify_all()
            while self.answered is None:
                rows._changed.wait()
            (answer, error), self.answered, self.state = self.answered, None, before
        if error is not None:
            raise error
        return answer

    @contextmanager
    def away(self) -> Iterator[None]:
        """A span in which its run may wait for long, so that nobody waits for it."""
        before = self.state
        self._become("away")
        try:
            yield
        finally:
            self._become(before)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """A span in which its run computes another one that it needs, which is not like those beside it."""
        key, self._key = self._key, None
        before, self.needed = self.needed, True
        try:
            yield
        finally:
            self._key, self.needed = key, before

    def leave(self) -> None:
        """Ask no more."""
        self.alone.close()
        self._become("left")

    def told(self, call: Any, *args: Any) -> Any:
        """Call a function as if the run did: what it logs is the run's."""
        return self._context.run(call, *args)

    def shape(self) -> object:
        """What must be equal in seats whose requests are answered as one; itself: nobody else's is."""
        request = self.request
        if self._key is not None:
            if isinstance(request, Update) and self.wave is not None and request.rollout is self.rollout:
                return (Update, id(self.wave))
            if isinstance(request, PlayEpisode) and self._batches(request):
                given = (request.mechanism is None, request.context is None)
                return (PlayEpisode, self._key, request.collector.spec.n_envs, *given, *_how(request))
            if type(request) is PlaySteps and self.wave is not None and request.actions is None:
                return (PlaySteps, id(self.wave), *_how(request))
        return self

    @staticmethod
    def _batches(request: PlayEpisode) -> bool:
        collector = request.collector
        if not isinstance(collector.env, Resizable) or not isinstance(collector.policy, PartitionedPolicy):
            return False
        spec = collector.spec
        known = (request.mechanism is None) == (spec.mechanism is None) and (request.context is None) == (
            not spec.contexts
        )
        return known and collector.policy.stackable

    def _become(self, state: State) -> None:
        with self._rows._changed:
            self.state, self.since = state, time.monotonic()
            self._rows._changed.notify_all()


def _how(request: PlaySteps) -> tuple[object, ...]:
    return (request.steps, request.learn, request.reward_jacobian, request.greedy, request.restart)


def _begun(request: PlayEpisode) -> Begun:
    assert request.actions is not None
    return Begun(seed=request.seed, actions=request.actions, mechanism=request.mechanism, context=request.context)
