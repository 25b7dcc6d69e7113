"""A model that is asked by its provider's batch API."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from llmrl.core.errors import BudgetExhausted, ConfigError, Interrupted, LLMError, NotAsked
from llmrl.core.records import ChatReply, ChatRequest
from llmrl.llms.batches.batch_api import Answer, Failure
from llmrl.llms.batches.batch_queue import Desk
from llmrl.llms.batches.litellm_requests import Prepared
from llmrl.llms.batches.records import Held
from llmrl.llms.budget import Reservation
from llmrl.llms.cancellable_calls import PendingCall, RequestBatch
from llmrl.llms.endpoint import STOPPING, Call, Endpoint, Started
from llmrl.llms.retry import TransientError

UNDER_WAY = "its batch is under way: the same command goes on with it"


@runtime_checkable
class Batched(Protocol):
    """A provider that may be asked by batches.

    Attributes:
        batch: whether it is.
    """

    batch: bool

    def desk(self, folder: Path) -> Desk:
        """Return where its requests are handed in; what is under way is written down beside the cache in `folder`."""
        ...

    def prepare(self, request: ChatRequest) -> Prepared:
        """Return what would be sent for a request by itself."""
        ...

    def reply_in(self, request: ChatRequest, answer: Mapping[str, Any]) -> ChatReply:
        """Return the reply in the provider's answer to a request; raises as `Provider.complete`."""
        ...


class BatchEndpoint(Endpoint):
    """An endpoint (see there) whose calls wait for batches, all that are asked at once in one thread.

    A run that is to stop leaves its batches under way: what was set aside for them counts as lost, until the run goes
    on, finds them (`Desk.held`), and takes that back. Limits are those of `Endpoint` for requests one by one; a batch
    has none.
    """

    provider: Any  # Provider and Batched
    _found: Desk | None = None
    _lost: set[str] | None = None

    def check(self) -> None:
        super().check()
        if self.terms.cache is None or self.terms.cache.mode in ("off", "read"):
            raise ConfigError(
                "llm.batch=true needs llm.cache=readwrite: beside the cache is written down which batches are under "
                "way, so that a run that was stopped goes on with them"
            )

    @property
    def _desk(self) -> Desk:
        if self._found is None:
            assert self.terms.cache is not None
            self._found = self.provider.desk(self.terms.cache.folder)
        return self._found

    def start(self, calls: Sequence[Call]) -> Started:
        return RequestBatch(lambda _, flight: self._all(calls, flight), 1, 1)

    def wait(self, calls: Sequence[Call], started: Started) -> list[ChatReply | LLMError]:
        assert started is not None
        started.wait(self.terms.stopping)
        self.give_up(started)
        [answers] = started.answers
        return [Interrupted(STOPPING)] * len(calls) if answers is None else answers

    def give_up(self, started: Started, why: str = UNDER_WAY) -> None:
        super().give_up(started, why)

    def _all(self, calls: Sequence[Call], flight: PendingCall) -> list[ChatReply | LLMError]:
        """Answers to calls, in as many batches, one after another, as it takes."""
        begun = time.perf_counter()
        found: dict[int, ChatReply | LLMError] = {}
        failed: Counter[str] = Counter()
        while True:
            # Somebody else may have fetched it by now; of equal ones one is asked.
            left = {i: call for i, call in enumerate(calls) if i not in found}
            found |= {i: kept for i, call in left.items() if (kept := self.from_cache(call)) is not None}
            open_ = {call.key: i for i, call in left.items() if i not in found}
            if not open_:
                break
            try:
                if again := max(failed[key] for key in open_):
                    self._wait(self.terms.retry.delay(again), flight)
                answers = self._batch_of({key: calls[i] for key, i in open_.items()}, failed, flight, begun)
            except LLMError as error:
                answers = {key: self._failed(calls[i], error, flight) for key, i in open_.items()}
            found |= {open_[key]: answer for key, answer in answers.items()}
        return [found[i] for i in range(len(calls))]

    def _batch_of(
        self, calls: Mapping[str, Call], failed: Counter[str], flight: PendingCall, begun: float
    ) -> dict[str, ChatReply | LLMError]:
        """What one batch says to some of `calls`, by their addresses; `failed` counts those that are to be tried
        again."""
        self._desk.look_around()
        found: dict[str, ChatReply | LLMError] = {}
        held: dict[str, Reservation] = {}
        settled: list[str] = []
        answers: Mapping[str, Answer] = {}
        flight.reservations = held.values()
        flight.start()
        try:
            self._set_aside(calls, held, failed, flight)
            answers = self._answered(calls, held, flight)
            for key in list(held):
                result = self._taken_from(answers.get(key), calls[key], held[key], failed[key] + 1, begun, flight)
                del held[key]
                if key in answers:
                    settled.append(key)
                    failed[key] += result is None
                if result is not None:
                    found[key] = result
        except BaseException as error:
            flight.finish()
            if not flight.lost:
                self._left(held, error)
            raise
        finally:
            self._desk.done(settled)
            self._desk.release(answers)
        flight.finish()
        return found

    def _set_aside(
        self,
        calls: Mapping[str, Call],
        held: dict[str, Reservation],
        failed: Mapping[str, int],
        flight: PendingCall,
    ) -> None:
        """Put into `held` what calls may come to: what was set aside before for those under way, and for others as much
        as the budget has. The rest is asked when replies have told what they really took.

        Raises:
            BudgetExhausted: it has nothing for any of them.
        """
        for key, call in calls.items():
            if (old := self._reclaimed(call)) is not None:
                held[key] = old
        for key, call in calls.items():
            if key in held:
                continue
            wait = None if held else lambda seconds: self._wait(seconds, flight)
            try:
                held[key] = self.terms.budget.reserve(call.request, self.provider, wait)
            except BudgetExhausted:
                if not held:
                    raise
                return
            self._announce([call], [held[key]], failed[key] + 1)

    def _reclaimed(self, call: Call) -> Reservation | None:
        """What this run set aside for a call that is under way since before; None if it is not, or another's."""
        old, ledger = self._desk.held(call.key), self.terms.ledger
        if old is None or ledger is None or old.log != str(ledger.path.absolute()):
            return None
        if self._lost is None:
            self._lost = ledger.lost()
        if old.id not in self._lost:
            return None
        self._lost.discard(old.id)
        reservation = Reservation(old.tokens, old.cost, old.id)
        self.terms.budget.reclaim(reservation)
        return reservation

    def _answered(
        self, calls: Mapping[str, Call], held: Mapping[str, Reservation], flight: PendingCall
    ) -> Mapping[str, Answer]:
        """Send what is not under way yet, and wait for all of it."""

        def wait(seconds: float) -> None:
            self._wait(seconds, flight)

        log = "" if self.terms.ledger is None else str(self.terms.ledger.path.absolute())
        prepared = {key: self.provider.prepare(calls[key].request) for key in held}
        entries = {key: (prepared[key], Held(one.id, one.tokens, one.cost, log)) for key, one in held.items()}
        self.terms.retry(lambda: self._desk.send(entries, wait), wait)
        return self._desk.answers(prepared, wait)

    def _left(self, held: Mapping[str, Reservation], error: BaseException) -> None:
        """Settle what nobody waits for any more: what is in no batch was not generated, for certain."""
        for key, reservation in held.items():
            sent = self._desk.held(key) is not None
            self._unanswered([reservation], not sent, UNDER_WAY if sent else str(error))

    def _taken_from(
        self, answer: Answer | None, call: Call, held: Reservation, attempt: int, begun: float, flight: PendingCall
    ) -> ChatReply | LLMError | None:
        """The reply in an answer, paid, kept and logged, or the error if there is none; None: it is to be asked again,
        or is in the cache, as somebody else has fetched it."""
        more = attempt <= self.terms.retry.retries
        if answer is None:
            self._unanswered([held], True, "another run has fetched the reply")
            return None
        if isinstance(answer, Failure):
            self._unanswered([held], True, answer.message)
            return (
                None
                if answer.passing and more
                else self._failed(call, LLMError(f"{self.label}: {answer.message}"), flight)
            )
        try:
            reply = self._taken(self.provider.reply_in(call.request, answer), attempt, begun)
        except LLMError as error:
            self._unanswered([held], False, str(error))
            return None if isinstance(error, TransientError) and more else self._failed(call, error, flight)
        if not self.terms.budget.settle(held, reply):
            return self._put(call, reply)  # nobody waits for it any more, and it is paid
        return self._keep(call, reply, held)

    def _failed(self, call: Call, error: LLMError, flight: PendingCall) -> LLMError:
        if not flight.abandoned:  # whose file this was may have been given back
            self._record(call, error)
            self.terms.budget.failed(not isinstance(error, NotAsked))
        return error
