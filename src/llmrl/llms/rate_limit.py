"""Rate limits of a provider: requests in flight, requests and tokens per minute."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from llmrl.core.ranges import PositiveInt

WINDOW = 60.0
"""Seconds: providers state their limits per minute."""


class RateLimit:
    """Rate limiter that delays requests until the provider's limits allow them, over all threads of this process.

    Limits hold in every window of 60 seconds. The tokens of a request are an estimate until its reply reports them.

    Args:
        concurrency: most requests in flight at once.
        requests_per_minute, tokens_per_minute: the provider's limits, prompt and reply tokens together; None: no limit.
        clock: monotonic time in seconds.
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
        self._slots = threading.BoundedSemaphore(concurrency)
        self._clock = clock
        self._lock = threading.Lock()
        self._started: deque[_Entry] = deque()
        self._tokens = 0
        self._held_until = 0.0

    def shared(self, account: str | None) -> RateLimit:
        """Return the limiter of this process for `account` and these limits; this one itself if `account` is None."""
        if account is None:
            return self
        key = (account, self.concurrency, self.requests_per_minute, self.tokens_per_minute)
        with _sharing:
            return _shared.setdefault(key, self)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Occupy one of the `concurrency` slots for the duration of a `with` block, after waiting for it."""
        with self._slots:
            yield

    def start(self, tokens: int, wait: Callable[[float], None] = time.sleep) -> Callable[[int], None]:
        """Wait until a request of about `tokens` may start; return a function to call with the real number of tokens.

        A request with more tokens than a minute allows starts once no other request is counted.
        """
        entry = _Entry(tokens)
        while True:
            with self._lock:
                delay = self._delay(tokens)
                if delay <= 0:
                    entry.time = self._clock()
                    self._started.append(entry)
                    self._tokens += tokens
                    return lambda real: self._correct(entry, real)
            wait(delay)

    def hold(self, seconds: float) -> None:
        """Start no request for `seconds`, after the server asked one to wait."""
        with self._lock:
            self._held_until = max(self._held_until, self._clock() + seconds)

    def _delay(self, tokens: int) -> float:
        """Return the seconds until a request of `tokens` may start or should ask again; 0 if it may start now."""
        now = self._clock()
        while self._started and self._started[0].time <= now - WINDOW:
            entry = self._started.popleft()
            entry.counted = False
            self._tokens -= entry.tokens
        if now < self._held_until:
            return self._held_until - now
        too_many = self.requests_per_minute is not None and len(self._started) >= self.requests_per_minute
        too_much = self.tokens_per_minute is not None and self._tokens + tokens > self.tokens_per_minute
        if self._started and (too_many or too_much):
            return max(self._started[0].time + WINDOW - now, 0.001)
        return 0.0

    def _correct(self, entry: _Entry, real: int) -> None:
        with self._lock:
            if entry.counted:
                self._tokens += real - entry.tokens
            entry.tokens = real


_sharing = threading.Lock()
_shared: WeakValueDictionary[tuple[str, int, int | None, int | None], RateLimit] = WeakValueDictionary()
"""Limiters in use by account and limits."""


class _Entry:
    """Started request: its time, its tokens, and whether the sliding window still counts them."""

    def __init__(self, tokens: int) -> None:
        self.time, self.tokens, self.counted = 0.0, tokens, True
