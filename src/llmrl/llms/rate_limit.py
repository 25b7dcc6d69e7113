"""How fast a provider may be asked: requests in flight, requests and tokens per minute."""

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
    """Lets a call start only when the provider's limits allow it. One process's calls are counted, all its threads'.

    The minute is a sliding one: in no 60 seconds do more requests start, or more tokens flow, than allowed. Tokens of
    a request are an estimate until its reply tells them.

    Args:
        concurrency: requests in flight at once.
        requests_per_minute, tokens_per_minute: the provider's limits, prompt and reply tokens together; None: no limit.
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
        """Return the limit that all of this process share who use one account with these numbers; `account` None: they
        use none, and this is a limit of its own."""
        if account is None:
            return self
        key = (account, self.concurrency, self.requests_per_minute, self.tokens_per_minute)
        with _sharing:
            return _shared.setdefault(key, self)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Be one of the `concurrency` requests in flight."""
        with self._slots:
            yield

    def start(self, tokens: int, wait: Callable[[float], None] = time.sleep) -> Callable[[int], None]:
        """Wait until a request of about `tokens` may start; call what is returned with the tokens it really took.

        A request larger than the whole minute's tokens starts once nothing else is counted.
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
        """Start nothing for a while: the server asked one of our requests to wait, and means us all."""
        with self._lock:
            self._held_until = max(self._held_until, self._clock() + seconds)

    def _delay(self, tokens: int) -> float:
        """Seconds until a request of `tokens` may start, or until it is worth asking again."""
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
"""By account and numbers, as long as somebody uses it."""


class _Entry:
    """A request that was started: when, its tokens, and whether the last minute still counts them."""

    def __init__(self, tokens: int) -> None:
        self.time, self.tokens, self.counted = 0.0, tokens, True
