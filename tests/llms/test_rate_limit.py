import signal
import subprocess
import sys
import threading
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.core.errors import ConfigError
from llmrl.llms.rate_limit import WINDOW, RateLimit, shared_folder
from models import openai_model


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
def test_requests_per_minute_limit(requests, tokens, calls):
    clock = Clock()
    limits = RateLimit(requests_per_minute=requests, tokens_per_minute=tokens, clock=clock)
    started = []
    for size, pause in calls:
        limits.start(size, clock.wait)
        started.append((clock.now, size))
        clock.now += pause
    for i, (time, _) in enumerate(started):
        # A little less than the window: at its very end the first request is over.
        minute = [size for start_time, size in started[i:] if start_time < time + WINDOW - 1e-6]
        assert len(minute) <= requests
        assert sum(minute) <= tokens or len(minute) == 1


def test_no_limits_no_waiting():
    limits = RateLimit()
    for _ in range(1000):
        limits.start(10**9, lambda seconds: 1 / 0)


def test_actual_usage_counts():
    clock = Clock()
    limits = RateLimit(tokens_per_minute=100, clock=clock)
    limits.start(90, clock.wait)(10)
    limits.start(90, clock.wait)(5000)
    assert clock.now == 1000.0
    limits.start(1, clock.wait)
    assert clock.now == 1000.0 + WINDOW


def test_hold_pauses_all_threads():
    clock = Clock()
    limits = RateLimit(clock=clock)
    limits.hold(5.0)
    limits.hold(2.0)
    limits.start(1, clock.wait)
    assert clock.now == 1005.0


def test_slots():
    limits = RateLimit(3)
    n_active, maximum, lock = [0], [0], threading.Lock()
    gate = threading.Barrier(3, timeout=10)

    def work():
        with limits.slot():
            with lock:
                n_active[0] += 1
                maximum[0] = max(maximum[0], n_active[0])
            gate.wait()
            with lock:
                n_active[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert maximum[0] == 3


def test_requests_are_uniform_in_minutes():
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


class WaitError(Exception):
    pass


def refuse(seconds):
    raise WaitError(seconds)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(50, 300)), min_size=2, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 100), st.floats(0, 30)), min_size=1, max_size=20),
)
@settings(max_examples=15)
def test_account_limiters_share_counts(tmp_path_factory, limits, calls):
    """With other numbers, too: whoever starts a request keeps its own limits."""
    clock = Clock()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        limiters = [RateLimit(8, requests, tokens, clock).shared("one") for requests, tokens in limits]
        started = []
        for limiter, size, pause in calls:
            i = limiter % len(limiters)
            limiters[i].start(size, clock.wait)
            started.append((clock.now, size))
            minute = [size for time, size in started if time > clock.now - WINDOW + 1e-6]
            assert len(minute) <= limits[i][0]
            assert sum(minute) <= limits[i][1] or len(minute) == 1
            clock.now += pause


def test_accounts_do_not_share_limits(cache):
    RateLimit(1, 1).shared("one").start(1, refuse)
    RateLimit(1, 1).shared("other").start(1, refuse)
    RateLimit(1, 1).shared(None).start(1, refuse)
    with pytest.raises(WaitError):
        RateLimit(1, 1).shared("one").start(1, refuse)


def test_account_covers_model_address_key(monkeypatch):
    def quota(model="m", url="http://127.0.0.1:1/v1", key="first"):
        monkeypatch.setenv("SOME_MODEL_KEY", key)
        return openai_model(url, model, api_key_env="SOME_MODEL_KEY").quota

    assert quota() == quota()
    accounts = {quota(), quota(model="n"), quota(url="http://127.0.0.1:2/v1"), quota(key="second")}
    assert len(accounts) == 4 and "first" not in "".join(accounts)


def test_server_hold_pauses_all_processes(cache):
    clock = Clock()
    first, second = (RateLimit(clock=clock).shared("one") for _ in range(2))
    first.hold(5.0)
    second.hold(2.0)
    second.start(1, clock.wait)
    assert clock.now == 1005.0


def test_times_prior_to_reboot_are_ignored(cache):
    clock = Clock()
    limits = RateLimit(requests_per_minute=1, clock=clock).shared("one")
    limits.start(1, refuse)
    limits.hold(1000.0)
    clock.now = 1.0
    limits.start(1, refuse)


def test_unwritable_folder_raises(cache):
    cache.write_text("a file")
    with pytest.raises(ConfigError, match=r"llm\.limits"):
        RateLimit().shared("one")


def process(code):
    """Return a process of this user, which has a limiter of the same account."""
    lines = f"import os, sys, time\nfrom llmrl.llms.rate_limit import RateLimit\n{code}"
    return subprocess.Popen([sys.executable, "-c", lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_external_requests_count(cache):
    with process("limit = RateLimit(8, 2, 100).shared('one'); limit.start(10)(30); limit.start(10)") as second_process:
        assert second_process.wait(60) == 0
    with pytest.raises(WaitError):
        RateLimit(8, requests_per_minute=2).shared("one").start(1, refuse)
    with pytest.raises(WaitError):
        RateLimit(8, tokens_per_minute=100).shared("one").start(61, refuse)
    RateLimit(8, 3, 100).shared("one").start(60, refuse)


def test_dead_process_frees_slot(cache):
    code = "with RateLimit(1).shared('one').slot():\n    print('taken', flush=True)\n    sys.stdin.read()"
    with process(code) as second_process:
        assert second_process.stdout.readline() == "taken\n"
        with pytest.raises(WaitError), RateLimit(1).shared("one").slot(refuse):
            pass
        with (
            RateLimit(2).shared("one").slot(refuse),
            pytest.raises(WaitError),
            RateLimit(2).shared("one").slot(refuse),
        ):
            pass
        second_process.send_signal(signal.SIGKILL)
        assert second_process.wait(60) == -signal.SIGKILL
        with RateLimit(1).shared("one").slot(refuse):
            pass


def test_slots_across_processes(cache, tmp_path):
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
    processes = [process(code) for _ in range(3)]
    for process_ in processes:
        with process_:
            assert process_.wait(120) == 0
    in_flight = list(accumulate(1 if sign == "+" else -1 for sign in log.read_text()))
    assert len(in_flight) == 30 and max(in_flight) <= 2


def test_stored_files_hide_account(cache):
    with RateLimit().shared("a model, A_KEY").slot():
        RateLimit().shared("a model, A_KEY").start(1)
    for file in shared_folder().iterdir():
        assert b"A_KEY" not in file.read_bytes()
    assert shared_folder().is_relative_to(cache) and not shared_folder().stat().st_mode & 0o077
