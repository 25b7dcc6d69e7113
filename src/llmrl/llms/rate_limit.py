"""Rate limits of a provider: requests in flight, requests and tokens per minute."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llmrl.core.ranges import PositiveInt
from llmrl.llms.account_state import AccountState

POLL_S = 0.05
"""Seconds between two checks for a free slot."""


class RateLimit:
    """Rate limiter that delays requests until the provider's limits allow them.

    Limits hold in every window of 60 seconds, over all threads that use this limiter, and after `shared` over all
    processes of the user on this machine. The tokens of a request are an estimate until its reply reports them.

    Args:
        concurrency: maximum number of requests in flight.
        requests_per_minute, tokens_per_minute: the provider's limits, prompt and reply tokens together; None: no limit.
        clock: monotonic time in seconds, the same for all processes of the machine.
    """

    def __init__(
        self,
        concurrency: PositiveInt = 8,
        requests_per_minute: PositiveInt | None = None,
        tokens_per_minute: PositiveInt | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.concurrency = concurrency
        self.requests_per_minute, self.tokens_per_minute = requests_per_minute, tokens_per_minute
        self._clock = clock
        self._state = AccountState()

    def shared(self, account: str | None) -> RateLimit:
        """Return a limiter with these limits that counts all requests of `account` on this machine.

        Return this limiter if `account` is None.

        Raises:
            ConfigError: the folder that processes share cannot be written.
        """
        if account is None:
            return self
        limiter = copy.copy(self)
        limiter._state = AccountState(account)
        return limiter

    @contextmanager
    def slot(self, wait: Callable[[float], None] = time.sleep) -> Iterator[None]:
        """Occupy one of the `concurrency` slots for the duration of a `with` block; wait until one is free."""
        while (slot := self._state.acquire(self.concurrency)) is None:
            wait(POLL_S)
        try:
            yield
        finally:
            self._state.release(slot)

    def start(self, tokens: int, wait: Callable[[float], None] = time.sleep) -> Callable[[int], None]:
        """Wait until a request of about `tokens` may start; return a function that corrects the number of tokens.

        A request with more tokens than a minute allows starts once no other request is counted.
        """
        while True:
            delay, number = self._state.start(self._clock, tokens, self.requests_per_minute, self.tokens_per_minute)
            if delay <= 0:
                return lambda real: self._state.correct(number, real)
            wait(delay)

    def hold(self, seconds: float) -> None:
        """Start no request for the next `seconds`, because the server asked to wait."""
        self._state.hold(self._clock, seconds)
