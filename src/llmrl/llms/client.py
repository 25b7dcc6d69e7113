"""The one way to talk to a chat model: log, cache, budget, limits and retries around any provider.

A call passes through the pieces in this order; each is a small class of its own that can be switched off:

    repeats -> cache -> slot (and cache again) -> retry( budget -> rate limit -> ledger ("asked")
    -> provider ) -> cache -> ledger -> read
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from llmrl.core.errors import BudgetExhausted, Interrupted, LLMError, NotAsked
from llmrl.core.records import ChatReply, ChatRequest, State, impossible
from llmrl.core.secrets import redact
from llmrl.llms.budget import Budget, Reservation
from llmrl.llms.cache import Cache, Mode
from llmrl.llms.flights import WAIT_SLICE, Departures, Flight
from llmrl.llms.ledger import FILE_NAME, Ledger, Verdict
from llmrl.llms.provider import Provider
from llmrl.llms.rate_limit import RateLimit
from llmrl.llms.reading.said import writable
from llmrl.llms.request_key import Repeats, request_key
from llmrl.llms.retry import Retry, TransientError
from llmrl.llms.structured import InvalidReply, as_json, read
from llmrl.llms.usage import ReplyTotals
from llmrl.llms.validity import MaxInvalid, Validity

logger = logging.getLogger(__name__)

Failures = Literal["stop", "fall_back"]


def connect(
    provider: Provider,
    seed: int,
    cache: Mode,
    cache_dir: str,
    share_replies: bool,
    failures: Failures,
    retry: Retry,
    limits: RateLimit,
    budget: Budget,
    max_invalid: MaxInvalid | None = None,
) -> ChatClient:
    """Return the client that a config's `llm` describes, of no run yet (`ChatClient.join_run`)."""
    return ChatClient(
        provider,
        Cache(Path(cache_dir).expanduser(), cache),
        None,
        retry,
        limits.shared(provider.account),
        budget,
        failures,
        None if share_replies else seed,
        max_invalid=max_invalid,
    )


@dataclass
class _Call:
    """A request and the address of its reply; `line` is what the call log has of it, once that is written."""

    request: ChatRequest
    key: str
    line: Verdict | None = None


@dataclass
class Fetched:
    """What became of some requests, not counted yet."""

    calls: Sequence[_Call]
    results: Sequence[ChatReply | LLMError]


class ChatClient:
    """A chat model (protocol `ChatModel`) made of a provider and the policies around it. Threads may share it.

    Two kinds of totals are kept. What the run *used* (`llm/...`) counts every reply once, wherever it came from, goes
    back with a checkpoint, and is the same however often the run was interrupted. What it *spent* (`spent/llm_...`)
    counts what was really paid, over all attempts of the run, and depends on what the cache held.

    Args:
        provider: the model.
        cache, ledger: where replies and calls are kept; None: nowhere.
        retry, limits, budget: the policies.
        failures: what to do about a call that failed for good: `stop` raises, `fall_back` returns an empty reply with
            `error` set, which whoever asked treats as an invalid one.
        stream: whose sample of the model's answers to take: the run's seed, or None to share replies between seeds.
        stopping: whether the run is to stop: then no further request is sent, and nothing is waited for.
        max_invalid: when `check_understood` ends the run; None: never, invalid replies are only counted.

    Attributes:
        overhear: is told every request whose reply is read; None: nobody is.
    """

    def __init__(
        self,
        provider: Provider,
        cache: Cache | None = None,
        ledger: Ledger | None = None,
        retry: Retry | None = None,
        limits: RateLimit | None = None,
        budget: Budget | None = None,
        failures: Failures = "stop",
        stream: int | None = None,
        stopping: Callable[[], bool] = lambda: False,
        max_invalid: MaxInvalid | None = None,
    ) -> None:
        self.provider, self.label, self.failures, self.stream = provider, provider.label, failures, stream
        self.feed_thoughts = provider.feed_thoughts
        self.cache = cache
        self.retry, self.limits, self.budget = retry or Retry(), limits or RateLimit(), budget or Budget()
        self._log_into(ledger)
        self.max_invalid, self.validity = max_invalid, Validity()
        self._repeats = Repeats()
        self._lock = threading.Lock()
        self._stopping, self._believing = stopping, True
        self._totals = ReplyTotals()
        self.overhear: Callable[[ChatRequest], None] | None = None

    def join_run(self, folder: Path, stopping: Callable[[], bool]) -> None:
        """Log calls into the folder of a run, whose earlier attempts have spent some of the budget; `stopping` tells
        whether it is to stop."""
        self._log_into(Ledger(folder / FILE_NAME))
        self._stopping = stopping

    def _log_into(self, ledger: Ledger | None) -> None:
        self.ledger = ledger
        if ledger is not None:
            self.budget.spent = ledger.spent_before

    def check(self) -> None:
        """Raises LLMError or ConfigError if the model could never answer, or its budget could not be held."""
        self.budget.check(self.provider)
        if self.cache is None or self.cache.mode != "only":
            self.provider.check()

    @property
    def sees(self) -> bool:
        """Whether the model takes pictures; true where only its server knows."""
        return self.provider.sees

    def fits(self, messages: Sequence[Mapping[str, str]]) -> bool:
        return self.provider.fits(messages)

    def close(self) -> None:
        self.provider.close()

    def chat(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """Replies in the order of `requests`.

        All requests are tried before an error is raised, and every reply is in the cache and the ledger by then.

        Raises:
            BudgetExhausted: some of them could have exceeded the budget and were not sent, or not again.
            Interrupted: the run is to stop, and some were not sent, or not again.
            LLMError: some failed for good (`failures=stop`), or are not in the cache (mode `only`).
        """
        fetched = self.fetch(requests)
        self.count(fetched)
        return self.replies(fetched)

    def fetch(self, requests: Sequence[ChatRequest]) -> Fetched:
        """Have requests answered, by whichever thread, for who counts and reads the replies where they are used.

        What a checkpoint holds of them is changed by `count` alone.
        """
        with self._lock:
            numbered = self._repeats.number(requests)
        identity = self.provider.identity
        calls = [_Call(request, request_key(identity, request, self.stream)) for request in numbered]
        results: list[ChatReply | LLMError | None] = [self._from_cache(call) for call in calls]
        missing = [i for i, result in enumerate(results) if result is None]
        for i, answer in zip(missing, self._from_provider([calls[i] for i in missing]), strict=True):
            results[i] = answer
        return Fetched(calls, [result for result in results if result is not None])

    def count(self, fetched: Fetched) -> None:
        """Add what was fetched to the run's totals, and write down how it is read."""
        with self._lock:
            self._totals.add([result for result in fetched.results if isinstance(result, ChatReply)])
        self._judge(fetched.calls, fetched.results)

    def replies(self, fetched: Fetched) -> list[ChatReply]:
        """The replies that were fetched, in the order of their requests; raises as `chat` does."""
        return self._finished(fetched.results)

    def check_understood(self) -> None:
        """Raises TooManyInvalid if too many of the run's replies were invalid (`max_invalid`)."""
        self.validity.check(self.label, self.max_invalid)

    def metrics(self) -> dict[str, float]:
        """Totals since the start of the run: those of `ReplyTotals` (used), of `Validity`, and of `Spent` (paid)."""
        priced = None not in (self.provider.input_price, self.provider.output_price)
        with self._lock:
            return self._totals.metrics() | self.validity.metrics() | self.budget.spent.metrics(priced)

    def state_dict(self) -> State:
        with self._lock:
            return {
                **self._totals.state_dict(),
                "repeats": self._repeats.state_dict(),
                "validity": self.validity.state_dict(),
            }

    def load_state_dict(self, state: State) -> None:
        with self._lock:
            self._totals.load_state_dict(state)
            self._repeats.load_state_dict(state["repeats"])
            self.validity.load_state_dict(state["validity"])

    def _from_cache(self, call: _Call) -> ChatReply | LLMError | None:
        """The kept reply; None if the provider is to be asked."""
        if self.cache is None:
            return None
        start = time.perf_counter()
        result: ChatReply | LLMError | None = self.cache.get(call.key)
        if isinstance(result, ChatReply):
            took = time.perf_counter() - start
            result = replace(result, text=writable(result.text), thoughts=writable(result.thoughts), latency=took)
        elif self.cache.mode == "only":
            result = self.cache.missing(call.request)
        if result is not None:
            self._record(call, result)
        return result

    def _from_provider(self, calls: Sequence[_Call]) -> list[ChatReply | LLMError]:
        if not self.provider.parallel:
            return self._batch(calls)
        asked = Departures(lambda i, flight: self._one(calls[i], flight), len(calls), self.limits.concurrency)
        try:
            asked.wait(self._stopping)
        finally:
            # Whatever ends the wait, Ctrl-C too: threads that were to try again give up.
            answers = [
                self._abandon(flight) if answer is None else answer
                for flight, answer in zip(asked.flights, list(asked.answers), strict=True)
            ]
        return answers

    def _abandon(self, flight: Flight) -> LLMError:
        """Wait no more for a reply, whose fate is unknown from then on, and what it may come to spent."""
        if flight.abandon():
            self._unanswered(flight.reservations, False, "nobody waited for the reply any more")
        return Interrupted("the run is to stop; the language model is asked no more")

    def _one(self, call: _Call, flight: Flight) -> ChatReply | LLMError:
        """Ask the provider for one reply, as often as it takes."""
        try:
            with self.limits.slot():
                self._wait(0.0, flight)
                # Another process may have asked the same while this request waited for its turn.
                kept = self._from_cache(call)
                if kept is not None:
                    return kept
                return self._ask([call], flight)[0]
        except LLMError as error:
            if not flight.abandoned:  # whose file this was may have been given back
                self._record(call, error)
            return error

    def _batch(self, calls: Sequence[_Call]) -> list[ChatReply | LLMError]:
        """Ask the provider for many replies in one call."""
        reservations: list[Reservation] = []
        refused: LLMError | None = None
        try:
            for call in calls:
                reservations.append(self.budget.reserve(call.request, self.provider))
        except BudgetExhausted as error:
            refused = error
        results: list[ChatReply | LLMError] = []
        asked = calls[: len(reservations)]
        try:
            with self.limits.slot():
                results += self._ask(asked, Flight(), reservations) if asked else []
        except LLMError as error:
            results += [error] * len(asked)
        results += [refused] * (len(calls) - len(asked)) if refused else []
        for call, result in zip(calls, results, strict=True):
            if isinstance(result, LLMError):
                self._record(call, result)
        return results

    def _ask(self, calls: Sequence[_Call], flight: Flight, reservations: Sequence[Reservation] = ()) -> list[ChatReply]:
        """Replies of the provider, paid, kept and logged; `reservations` are those of the first attempt, if there are
        any already. Each further attempt needs its own."""
        start, attempt = time.perf_counter(), 0

        def once() -> tuple[list[ChatReply], Sequence[Reservation]]:
            nonlocal attempt
            attempt += 1
            held = reservations if reservations and attempt == 1 else self._reserve(calls, flight)
            return self._attempt(calls, held, attempt, start, flight), held

        try:
            (replies, paid), _ = self.retry(once, lambda seconds: self._wait(seconds, flight))
        except NotAsked:
            raise
        except LLMError:
            self.budget.failed(len(calls))
            raise
        if flight.lost:
            # It is paid: who asks again is to find it.
            for call, reply in zip(calls, replies, strict=True):
                self._put(call, reply)
            raise Interrupted("nobody waits for the reply any more")
        return [self._keep(call, reply, one) for call, reply, one in zip(calls, replies, paid, strict=True)]

    def _reserve(self, calls: Sequence[_Call], flight: Flight) -> list[Reservation]:
        """What one attempt at all `calls` may come to, set aside.

        Raises:
            BudgetExhausted: it could exceed a limit; nothing is set aside.
        """
        wait = (lambda seconds: self._wait(seconds, flight)) if self.provider.parallel else None
        held: list[Reservation] = []
        try:
            for call in calls:
                held.append(self.budget.reserve(call.request, self.provider, wait))
        except LLMError:
            for reservation in held:
                self.budget.release(reservation)
            raise
        return held

    def _attempt(
        self, calls: Sequence[_Call], held: Sequence[Reservation], attempt: int, start: float, flight: Flight
    ) -> list[ChatReply]:
        """One attempt, whose reservations are settled, released or abandoned when it is over, however it ends; by who
        waited for it, where that is no longer so."""
        announced = departed = False
        flight.reservations = held
        try:
            took = self.limits.start(
                sum(reservation.tokens for reservation in held), lambda seconds: self._wait(seconds, flight)
            )
            self._wait(0.0, flight)
            announced = True
            self._announce(calls, held, attempt)
            flight.depart()
            departed = True
            replies = self._replies([call.request for call in calls], attempt, start)
        except BaseException as error:
            flight.land()
            if not flight.lost:
                refused = not departed or (isinstance(error, LLMError) and error.refused)
                why = str(error) if isinstance(error, LLMError) else type(error).__name__
                self._unanswered(held, refused, why, announced)
            raise
        flight.land()
        counts = [(reply.prompt_tokens, reply.completion_tokens) for reply in replies]
        took(sum(a + b for a, b in counts if a is not None and b is not None) or sum(one.tokens for one in held))
        for reservation, reply in zip(held, replies, strict=True):
            self.budget.settle(reservation, reply)
        return replies

    def _announce(self, calls: Sequence[_Call], held: Sequence[Reservation], attempt: int) -> None:
        """Write down what is about to be sent: whatever happens from now on, it counts."""
        for call, reservation in zip(calls, held, strict=True):
            self.budget.sent(reservation)
            if self.ledger is not None and self.provider.remote:
                self.ledger.asked(call.key, self.label, self.stream, call.request, attempt, reservation, self.budget)

    def _replies(self, requests: Sequence[ChatRequest], attempt: int, start: float) -> list[ChatReply]:
        """What the provider says to one attempt at `requests`, with cost, latency since `start`, and attempts."""
        try:
            given = [self._believed(reply) for reply in self.provider.complete(requests)]
        except TransientError as error:
            if error.retry_after is not None and error.retry_after <= self.retry.longest_retry_after:
                self.limits.hold(error.retry_after)
            raise
        latency = time.perf_counter() - start
        return [
            replace(
                reply,
                # Before anybody reads them: what is written down is what the run went by.
                text=redact(writable(reply.text)),
                finish=redact(writable(reply.finish)),
                thoughts=redact(writable(reply.thoughts)),
                cost=self._cost(reply),
                latency=latency,
                # A replayed reply says 0: nothing was sent for it.
                attempts=attempt if reply.attempts else 0,
            )
            for reply in given
        ]

    def _unanswered(self, held: Sequence[Reservation], refused: bool, why: str, announced: bool = True) -> None:
        """Settle an attempt that ended without a reply: `refused`, nothing was generated for certain; else lost."""
        refused = refused or not self.provider.remote
        for reservation in held:
            (self.budget.release if refused else self.budget.abandon)(reservation)
        if announced and self.ledger is not None and self.provider.remote:
            self.ledger.unanswered(held, "refused" if refused else "lost", why, self.budget)

    def _believed(self, reply: ChatReply) -> ChatReply:
        """The reply without numbers that none can have: they are unknown, and take nothing from what was spent."""
        wrong = impossible(reply)
        if wrong and self._believing:
            self._believing = False
            said = ", ".join(f"{name}={getattr(reply, name)!r}" for name in wrong)
            logger.warning("%s tells of a reply with %s, which is taken for unknown (told once)", self.label, said)
        unknown: dict[str, Any] = dict.fromkeys(wrong)
        return replace(reply, **unknown) if wrong else reply

    def _cost(self, reply: ChatReply) -> float | None:
        if reply.cost is not None:
            return reply.cost
        counts = (reply.prompt_tokens, reply.completion_tokens, reply.cached_tokens, reply.cache_write_tokens)
        return self.provider.cost(*counts)

    def _keep(self, call: _Call, reply: ChatReply, paid: Reservation) -> ChatReply:
        try:
            reply = self._put(call, reply)
        finally:
            # It is paid, whether or not it could be kept.
            self._record(call, reply, paid if self.provider.remote else None)
        return reply

    def _put(self, call: _Call, reply: ChatReply) -> ChatReply:
        """Into the cache; what is found there from now on."""
        if self.cache is None:
            return reply
        return self.cache.put(call.key, self.provider.identity, call.request, reply)

    def _record(self, call: _Call, result: ChatReply | LLMError, paid: Reservation | None = None) -> None:
        if self.ledger is not None and not isinstance(result, NotAsked):
            identity = self.provider.identity
            call.line = self.ledger.record(
                call.key, self.label, identity, self.stream, call.request, result, self.budget, paid
            )

    def _judge(self, calls: Sequence[_Call], results: Sequence[ChatReply | LLMError]) -> None:
        """Read the replies that must have a form, once all are in the log, and write down what came of it."""
        verdicts = []
        for call, result in zip(calls, results, strict=True):
            if call.request.read is None or isinstance(result, LLMError):
                continue
            if self.overhear is not None:
                self.overhear(call.request)
            understood, fault = None, ""
            try:
                understood = as_json(read(result, call.request.read))
            except InvalidReply as invalid:
                fault = str(invalid)
            with self._lock:
                self.validity.add(result.text, fault)
            verdicts += [] if call.line is None else [call.line._replace(fault=fault, understood=understood)]
        if self.ledger is not None:
            self.ledger.judge(verdicts)

    def _finished(self, results: Sequence[ChatReply | LLMError]) -> list[ChatReply]:
        errors = [result for result in results if isinstance(result, LLMError)]
        for error in errors:
            if isinstance(error, NotAsked):
                raise error from None
        if errors and self.failures == "stop":
            more = f" ({len(errors)} of {len(results)} requests failed)" if len(results) > 1 else ""
            raise LLMError(f"{errors[0]}{more}") from None
        return [r if isinstance(r, ChatReply) else ChatReply("", attempts=0, error=str(r)) for r in results]

    def _wait(self, seconds: float, flight: Flight) -> None:
        """Wait, but not on after the run is asked to stop. In slices: a signal's handler can wake nobody safely."""
        end = time.monotonic() + seconds
        while True:
            if flight.abandoned or self._stopping():
                raise Interrupted("the run is to stop; the language model is asked no more")
            left = end - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, WAIT_SLICE))
