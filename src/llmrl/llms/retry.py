"""Retries after transient failures, with exponential backoff, jitter, and the delays in Retry-After headers."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from llmrl.core.errors import LLMError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt

logger = logging.getLogger(__name__)

T = TypeVar("T")

RETRIABLE_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""HTTP status codes of transient failures."""

# The only random generator without a seed: delays must differ between processes that were refused at the same moment,
# and do not affect results.
_jitter_generator = random.Random()


class TransientError(LLMError):
    """Failure after which another attempt may succeed: rate limit, outage, time-out, broken connection.

    Attributes:
        retry_after: delay in seconds that the server requested; None: it requested none.
        refused: whether the server has certainly generated nothing.
    """

    def __init__(self, message: str, retry_after: float | None = None, *, refused: bool = False) -> None:
        super().__init__(message, refused=refused)
        self.retry_after = retry_after


def parse_retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Return the delay in seconds, >= 0, in a Retry-After header (seconds or HTTP date); None if it is invalid."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, OverflowError):
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    # float() also accepts "nan" and "inf".
    return max(0.0, seconds) if seconds < float("inf") else None


class Retry:
    """Number of retries, and delays between attempts.

    Delay n = 0, 1, ... is drawn uniformly from [1/2, 1] x min(initial_delay 2^n, max_delay), and is at least the delay
    that the server requested.

    Args:
        retries: maximum number of attempts after the first one.
        initial_delay, max_delay: first and maximum delay before jitter, in seconds.
        max_retry_after: maximum delay in seconds that a server may request; a longer one, e.g. of a daily quota, is an
            error.
    """

    def __init__(
        self,
        retries: NonNegativeInt = 5,
        initial_delay: NonNegativeFloat = 1.0,
        max_delay: NonNegativeFloat = 60.0,
        max_retry_after: NonNegativeFloat = 600.0,
    ) -> None:
        self.retries, self.initial_delay, self.max_delay = retries, initial_delay, max_delay
        self.max_retry_after = max_retry_after

    def draw_delay(self, n_failed: int) -> float:
        """Draw the delay in seconds after `n_failed` >= 1 failed attempts."""
        return min(self.initial_delay * 2.0 ** (n_failed - 1), self.max_delay) * _jitter_generator.uniform(0.5, 1.0)

    def __call__(self, attempt: Callable[[int], T], wait: Callable[[float], None]) -> T:
        """Return the result of `attempt(number)`, number = 1, 2, ...; `wait(seconds)` is called between attempts.

        Raises:
            LLMError: the last attempt failed, the requested delay is too long, or a failure is not transient.
        """
        for attempt_number in range(1, self.retries + 2):
            try:
                return attempt(attempt_number)
            except TransientError as error:
                if attempt_number > self.retries:
                    attempts_text = "once" if self.retries == 0 else f"{attempt_number} times"
                    raise LLMError(f"{error} (tried {attempts_text})") from None
                server_delay = error.retry_after or 0.0
                if server_delay > self.max_retry_after:
                    raise LLMError(f"{error} (the server asks to wait {server_delay:.0f} s)") from None
                delay = max(self.draw_delay(attempt_number), server_delay)
                logger.warning("%s; attempt %d of %d in %.1f s", error, attempt_number + 1, self.retries + 1, delay)
                wait(delay)
        raise AssertionError("unreachable: the loop returns or raises")
