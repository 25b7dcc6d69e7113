from datetime import UTC, datetime

import pytest

from llmrl.core.errors import LLMError
from llmrl.llms.retry import Retry, TransientError, parse_retry_after


def make_failing_call(error, times=10**9):
    """Return a function that raises `error` a number of times and then returns "fine" and the attempt number."""
    remaining = [times]

    def call(number):
        remaining[0] -= 1
        if remaining[0] >= 0:
            raise error
        return f"fine {number}"

    return call


def test_wait_is_bounded():
    waits = []
    with pytest.raises(LLMError, match=r"down.* 9 times"):
        Retry(8, initial_delay=1.0, max_delay=60.0)(make_failing_call(TransientError("down")), waits.append)
    assert len(waits) == 8
    for n, wait in enumerate(waits):
        longest = min(2.0**n, 60.0)
        assert longest / 2 <= wait <= longest


def test_waits_differ_across_processes():
    waits = []
    for _ in range(2):
        Retry(1)(make_failing_call(TransientError("down"), 1), waits.append)
    assert waits[0] != waits[1]


def test_attempts_count():
    assert Retry(3)(make_failing_call(TransientError("down"), 2), lambda seconds: None) == "fine 3"


def test_server_sets_wait():
    waits = []
    Retry(1, initial_delay=0.0)(make_failing_call(TransientError("busy", retry_after=7.0), 1), waits.append)
    assert waits == [7.0]
    with pytest.raises(LLMError, match="601 s"):
        Retry(1, max_retry_after=600.0)(make_failing_call(TransientError("busy", retry_after=601.0)), waits.append)


def test_permanent_errors_do_not_retry():
    waits = []
    with pytest.raises(LLMError, match=r"^no$"):
        Retry(5)(make_failing_call(LLMError("no")), waits.append)
    assert waits == []


def test_no_retries():
    with pytest.raises(LLMError, match="tried once"):
        Retry(0)(make_failing_call(TransientError("down")), lambda seconds: pytest.fail("waited"))


def test_retry_after_forms():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert parse_retry_after("1.5") == 1.5
    assert parse_retry_after("Thu, 01 Jan 2026 00:00:30 GMT", now) == 30.0
    assert parse_retry_after("Wed, 31 Dec 2025 00:00:00 GMT", now) == 0.0
    for missing_header in (None, "", "soon", "nan", "inf"):
        assert parse_retry_after(missing_header) is None
