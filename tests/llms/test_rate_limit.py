import threading

import pytest

from llmrl.llms.rate_limit import RateLimit
from models import make_openai_model


class SimulatedClock:
    """Simulated clock that advances only during waits."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        assert seconds > 0
        self.now += seconds


def test_no_limits_no_waiting():
    limits = RateLimit()
    for _ in range(1000):
        limits.wait_for_pause(lambda seconds: 1 / 0)


def test_hold_pauses_all_threads():
    clock = SimulatedClock()
    limits = RateLimit(clock=clock)
    limits.start_pause(5.0)
    limits.start_pause(2.0)
    limits.wait_for_pause(clock.wait)
    assert clock.now == 1005.0


def test_slots():
    limits = RateLimit(3)
    n_active, maximum, lock = [0], [0], threading.Lock()
    gate = threading.Barrier(3, timeout=10)

    def work():
        with limits.hold_slot():
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


class WaitError(Exception):
    pass


def refuse(seconds):
    raise WaitError(seconds)


def test_account_limiters_share_slots():
    first, second = (RateLimit(1).for_account("a shared account") for _ in range(2))
    with first.hold_slot(refuse):
        with pytest.raises(WaitError), second.hold_slot(refuse):
            pass
        with (
            RateLimit(2).for_account("a shared account").hold_slot(refuse),
            RateLimit(1).for_account("another").hold_slot(refuse),
        ):
            pass
        with RateLimit(1).for_account(None).hold_slot(refuse):
            pass
    with second.hold_slot(refuse):
        pass


def test_account_limiters_share_pauses():
    clock = SimulatedClock()
    first, second = (RateLimit(clock=clock).for_account("a paused account") for _ in range(2))
    first.start_pause(5.0)
    second.wait_for_pause(clock.wait)
    assert clock.now == 1005.0


def test_account_covers_model_address_key(monkeypatch):
    def quota(model="m", url="http://127.0.0.1:1/v1", key="first"):
        monkeypatch.setenv("SOME_MODEL_KEY", key)
        return make_openai_model(url, model, api_key_env="SOME_MODEL_KEY").rate_limit_account

    assert quota() == quota()
    accounts = {quota(), quota(model="n"), quota(url="http://127.0.0.1:2/v1"), quota(key="second")}
    assert len(accounts) == 4 and "first" not in "".join(accounts)
