import signal
import subprocess
import sys
import threading
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.core.errors import ConfigError
from llmrl.llms.account_state import WINDOW, shared_folder
from llmrl.llms.openai_compatible import OpenAICompatibleChat
from llmrl.llms.rate_limit import RateLimit


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


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class WaitedError(Exception):
    pass


def refuse(seconds):
    raise WaitedError(seconds)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(50, 300)), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 100), st.floats(0, 30)), min_size=1, max_size=20),
)
@settings(max_examples=15)
def test_limiters_of_one_account_count_the_requests_of_all(tmp_path_factory, limits, calls):
    """With other numbers, too: whoever starts a request keeps its own limits."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        limiters = [RateLimit(8, requests, tokens, clock).shared("one") for requests, tokens in limits]
        started = []
        for which, size, pause in calls:
            i = which % len(limiters)
            limiters[i].start(size, clock.wait)
            started.append((clock.now, size))
            minute = [each for time, each in started if time > clock.now - WINDOW + 1e-6]
            assert len(minute) <= limits[i][0]
            assert sum(minute) <= limits[i][1] or len(minute) == 1
            clock.now += pause


def test_accounts_do_not_share_limits(cache):
    RateLimit(1, 1).shared("one").start(1, refuse)
    RateLimit(1, 1).shared("other").start(1, refuse)
    RateLimit(1, 1).shared(None).start(1, refuse)
    with pytest.raises(WaitedError):
        RateLimit(1, 1).shared("one").start(1, refuse)


def test_an_account_is_a_model_an_address_and_a_key(monkeypatch):
    def quota(model="m", url="http://127.0.0.1:1/v1", key="first"):
        monkeypatch.setenv("SOME_MODEL_KEY", key)
        return OpenAICompatibleChat(url, model, api_key_env="SOME_MODEL_KEY").quota

    assert quota() == quota()
    others = {quota(), quota(model="n"), quota(url="http://127.0.0.1:2/v1"), quota(key="second")}
    assert len(others) == 4 and "first" not in "".join(others)


def test_what_a_server_asks_one_process_to_wait_holds_all(cache):
    clock = Clock()
    first, second = (RateLimit(clock=clock).shared("one") for _ in range(2))
    first.hold(5.0)
    second.hold(2.0)
    second.start(1, clock.wait)
    assert clock.now == 1005.0


def test_times_before_a_restart_of_the_machine_do_not_count(cache):
    clock = Clock()
    limits = RateLimit(requests_per_minute=1, clock=clock).shared("one")
    limits.start(1, refuse)
    limits.hold(1000.0)
    clock.now = 1.0
    limits.start(1, refuse)


def test_a_folder_that_cannot_be_written_is_an_error(cache):
    cache.write_text("a file")
    with pytest.raises(ConfigError, match=r"llm\.limits"):
        RateLimit().shared("one")


def process(code):
    """A process of this user, which has a limiter of the same account."""
    lines = f"import os, sys, time\nfrom llmrl.llms.rate_limit import RateLimit\n{code}"
    return subprocess.Popen([sys.executable, "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_requests_of_other_processes_count(cache):
    with process("limit = RateLimit(8, 2, 100).shared('one'); limit.start(10)(30); limit.start(10)") as other:
        assert other.wait(60) == 0
    with pytest.raises(WaitedError):
        RateLimit(8, requests_per_minute=2).shared("one").start(1, refuse)
    with pytest.raises(WaitedError):
        RateLimit(8, tokens_per_minute=100).shared("one").start(61, refuse)
    RateLimit(8, 3, 100).shared("one").start(60, refuse)


def test_a_slot_of_a_killed_process_is_free_again(cache):
    code = "with RateLimit(1).shared('one').slot():\n    print('taken', flush=True)\n    sys.stdin.read()"
    with process(code) as other:
        assert other.stdout.readline() == "taken\n"
        with pytest.raises(WaitedError), RateLimit(1).shared("one").slot(refuse):
            pass
        with (
            RateLimit(2).shared("one").slot(refuse),
            pytest.raises(WaitedError),
            RateLimit(2).shared("one").slot(refuse),
        ):
            pass
        other.send_signal(signal.SIGKILL)
        assert other.wait(60) == -signal.SIGKILL
        with RateLimit(1).shared("one").slot(refuse):
            pass


def test_slots_of_several_processes(cache, tmp_path):
    """Each writes a line when it takes a slot and one when it gives it back."""
    log = tmp_path / "log"
    code = (
        f"log = os.open({str(log)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
        "for _ in range(5):\n"
        "    with RateLimit(2).shared('one').slot():\n"
        "        os.write(log, b'+')\n"
        "        time.sleep(0.02)\n"
        "        os.write(log, b'-')\n"
    )
    others = [process(code) for _ in range(3)]
    for other in others:
        with other:
            assert other.wait(120) == 0
    in_flight = list(accumulate(1 if sign == "+" else -1 for sign in log.read_text()))
    assert len(in_flight) == 30 and max(in_flight) <= 2


def test_nothing_that_is_stored_names_the_account(cache):
    with RateLimit().shared("a model, A_KEY").slot():
        RateLimit().shared("a model, A_KEY").start(1)
    for file in shared_folder().iterdir():
        assert b"A_KEY" not in file.read_bytes()
    assert shared_folder().is_relative_to(cache) and not shared_folder().stat().st_mode & 0o077
