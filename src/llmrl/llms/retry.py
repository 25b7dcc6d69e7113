"""Try again after passing failures: exponential backoff with jitter, honouring Retry-After."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from llmrl.core.errors import LLMError

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_DELAY = 1.0
"""Seconds before the second attempt; doubled for each further one."""
LONGEST_DELAY = 60.0
"""Seconds the backoff never exceeds."""
LONGEST_RETRY_AFTER = 600.0
"""Seconds a server may ask us to wait; a longer wish (a daily quota) is an error the user should see."""

RETRIABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""HTTP status codes that say 'later', as opposed to 'never'."""

# Jitter spreads processes that were refused at the same moment, so it must differ between them and takes no part in
# results: the one random stream that is deliberately not seeded.
_jitter = random.Random()


class TransientError(LLMError):
    """A failure that may pass: rate limit, outage, time-out, cut connection.

    Attributes:
        retry_after: seconds the server asked to wait, or None.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def parse_retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """Seconds from a Retry-After header, which holds either seconds or an HTTP date; None if it says nothing usable."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except ValueError:
            return None
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    # "nan" and "inf" parse as floats and are no waiting time.
    return max(0.0, seconds) if seconds < float("inf") else None


def with_retries(
    call: Callable[[], T],
    retries: int,
    first_delay: float = FIRST_DELAY,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """`call()`, tried again up to `retries` times when it raises TransientError.

    Wait n = 0, 1, ... is drawn uniformly from [1/2, 1] x min(first_delay 2^n, 60 s), and is at least what the server
    asked for.

    Raises:
        LLMError: at once for every other failure; after the last attempt; if the server asks for over ten minutes.
    """
    for attempt in range(retries + 1):
        try:
            return call()
        except TransientError as error:
            if attempt == retries:
                tries = "once" if retries == 0 else f"{retries + 1} times"
                raise LLMError(f"{error} (tried {tries})") from None
            if error.retry_after is not None and error.retry_after > LONGEST_RETRY_AFTER:
                raise LLMError(f"{error} (the server asks to wait {error.retry_after:.0f} s)") from None
            delay = min(first_delay * 2**attempt, LONGEST_DELAY) * _jitter.uniform(0.5, 1.0)
            delay = max(delay, error.retry_after or 0.0)
            logger.warning("%s; attempt %d of %d in %.1f s", error, attempt + 2, retries + 1, delay)
            sleep(delay)
    raise AssertionError("unreachable: the loop returns or raises")
