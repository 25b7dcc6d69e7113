import threading
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.llms.rate_limit import WINDOW, RateLimit


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        assert seconds > 0
        self.now += seconds


@given(
    st.integers(1, 8),
    st.integers(1, 500),
    st.lists(st.tuples(st.integers(1, 300), st.floats(0, 30)), min_size=1, max_size=60),
)
@settings(max_examples=100)
def test_no_minute_holds_more_than_allowed(requests, tokens, calls):
    clock = Clock()
    limits = RateLimit(requests_per_minute=requests, tokens_per_minute=tokens, clock=clock)
    started = []
    for size, pause in calls:
        limits.start(size, clock.wait)
        started.append((clock.now, size))
        clock.now += pause
    for i, (time, _) in enumerate(started):
        # A little less than the window: at its very end the first request is over.
        minute = [size for later, size in started[i:] if later < time + WINDOW - 1e-6]
        assert len(minute) <= requests
        assert sum(minute) <= tokens or len(minute) == 1


def test_without_limits_nobody_waits():
    limits = RateLimit()
    for _ in range(1000):
        limits.start(10**9, lambda seconds: 1 / 0)


def test_what_a_request_really_took_counts():
    clock = Clock()
    limits = RateLimit(tokens_per_minute=100, clock=clock)
    limits.start(90, clock.wait)(10)
    limits.start(90, clock.wait)(5000)
    assert clock.now == 1000.0
    limits.start(1, clock.wait)
    assert clock.now == 1000.0 + WINDOW


def test_one_thread_that_is_told_to_wait_holds_all():
    clock = Clock()
    limits = RateLimit(clock=clock)
    limits.hold(5.0)
    limits.hold(2.0)
    limits.start(1, clock.wait)
    assert clock.now == 1005.0


def test_slots():
    limits = RateLimit(3)
    inside, most, lock = [0], [0], threading.Lock()
    gate = threading.Barrier(3, timeout=10)

    def work():
        with limits.slot():
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            gate.wait()
            with lock:
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 3


def test_requests_are_spread_over_minutes():
    clock = Clock()
    limits = RateLimit(requests_per_minute=2, clock=clock)
    times = []
    for _ in range(6):
        limits.start(0, clock.wait)
        times.append(clock.now)
    assert times == list(accumulate([1000.0, 0, WINDOW, 0, WINDOW, 0]))


def test_who_uses_one_account_shares_its_limits():
    """With the same numbers; who has no account has limits of its own."""
    first, second, other = RateLimit(2), RateLimit(2), RateLimit(3)
    assert first.shared("model, KEY") is second.shared("model, KEY") is first
    assert other.shared("model, KEY") is other and second.shared("model, OTHER_KEY") is second
    assert first.shared(None) is first and second.shared(None) is second
