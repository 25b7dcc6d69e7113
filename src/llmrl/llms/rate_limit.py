"""Limit on the number of requests in flight to a provider, and pauses that its server requests."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llmrl.core.ranges import PositiveInt

POLL_SECONDS = 0.05
"""Seconds between two checks for a free slot."""


class _AccountState:
    """Number of requests of one account in flight, and the end of the last pause that its server requested."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.n_in_flight = 0
        self.pause_end_time = float("-inf")


_accounts: dict[str, _AccountState] = {}
_accounts_lock = threading.Lock()


class RateLimit:
    """Thread-safe rate limiter, which delays requests until a slot is free and no pause is active.

    Args:
        concurrency: maximum number of requests in flight.
        clock: function that returns a monotonic time in seconds.
    """

    def __init__(self, concurrency: PositiveInt = 8, clock: Callable[[], float] = time.monotonic) -> None:
        self.concurrency, self._clock = concurrency, clock
        self._account = _AccountState()

    def for_account(self, account: str | None) -> RateLimit:
        """Return a limiter that counts all requests of `account` in this process; `self` if `account` is None."""
        if account is None:
            return self
        limiter = copy.copy(self)
        with _accounts_lock:
            limiter._account = _accounts.setdefault(account, _AccountState())
        return limiter

    @contextmanager
    def hold_slot(self, wait: Callable[[float], None] = time.sleep) -> Iterator[None]:
        """Wait for one of the `concurrency` slots, and occupy it inside a `with` block."""
        while not self._acquire_slot():
            wait(POLL_SECONDS)
        try:
            yield
        finally:
            with self._account.lock:
                self._account.n_in_flight -= 1

    def wait_for_pause(self, wait: Callable[[float], None] = time.sleep) -> None:
        """Wait until the end of the pause, if one is active (`start_pause`)."""
        while (remaining_seconds := self._account.pause_end_time - self._clock()) > 0:
            wait(remaining_seconds)

    def start_pause(self, seconds: float) -> None:
        """Begin or extend a pause that ends in `seconds`, in which no request is sent."""
        with self._account.lock:
            self._account.pause_end_time = max(self._account.pause_end_time, self._clock() + seconds)

    def _acquire_slot(self) -> bool:
        """Occupy a slot; return whether one was free."""
        with self._account.lock:
            is_free = self._account.n_in_flight < self.concurrency
            self._account.n_in_flight += is_free
        return is_free
