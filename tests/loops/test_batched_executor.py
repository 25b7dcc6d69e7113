"""Batched execution of several runs: each has the results of a single run, independently of the other runs."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments import compose
from llmrl.core.errors import ConfigError
from llmrl.core.observers import Observer
from llmrl.core.seeding import Seeds
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.loops.batched_executor import MAX_SKIPS, BatchedExecutor
from llmrl.loops.executor import serve
from some import mark_long_except

ROOM = ("env=escape_room", "env.n_envs=4", "design.adapt_rounds=2", "design.validate_episodes=4", "design.steps=3")
ROOM += ("design.evaluations=1",)
HARVEST = (
    *(
        "env=harvest",
        "env.n_envs=1",
        "design.candidates=1",
        "env.horizon=20",
        "agent.init_from=null",
        "design.adapt_rounds=2",
        "design.validate_episodes=1",
    ),
    *(
        "design.steps=4",
        "design.rollout_steps=10",
        "agent.ppo.minibatch_size=30",
        "design.confirm_steps=2",
        "design.evaluations=1",
    ),
)
CLEANUP = (
    "env=cleanup",
    "env.n_envs=1",
    "design.candidates=1",
    "env.horizon=8",
    "design.adapt_rounds=1",
    "design.steps=2",
    "agent.ppo.minibatch_size=24",
)
CLEANUP = (
    *CLEANUP,
    "design.validate_episodes=1",
    "design.confirm_steps=0",
    "design.evaluations=0",
    "agent.features=8",
    "design.rollout_steps=4",
    "agent.ppo.epochs=2",
)
GAMES = {
    "escape room": ROOM,
    "harvest, pieces, confirmation": HARVEST,
    "harvest, two proposals": (*HARVEST, "design.candidates=2", "env.n_envs=2"),
    "cleanup, everything learned": (*CLEANUP, "agent.init_from=null", "agent.freeze=none"),
    "cleanup, convolutions": (*CLEANUP, "agent.init_from=null", "agent.core=auto", "agent.map_channels=[4,8]"),
    "cleanup, pixels": (*CLEANUP, "agent.init_from=null", "agent.core=auto", "env.observe=[pixels]"),
    "agents of their own": (*ROOM, "agent.share_parameters=false"),
}
KINDS = ("principal=ucb", "principal=random", "principal=cem", "principal=fixed", "principal=gp", "principal=cmaes")
LEARNING = ("agent.ppo.learning_rate=0.003", "agent.ppo.entropy_coefficient=0.07", "agent.ppo.gamma=0.9")


class Recorder:
    """Run that records the metrics logged by its loop."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.restored_state, self.summary, self.metrics, self.folder = None, {}, self, Path()

    def log(self, kind: str, x: str, metrics: dict[str, Any], **counters: int) -> None:
        self.rows.append((kind, x, dict(metrics), counters))

    @contextmanager
    def progress(self, *_: Any, **__: Any):
        yield self

    def advance(self, units: float) -> None: ...

    def show_result(self, value: float, proposal: str = "") -> None: ...

    def safe_point(self, *_: Any) -> None: ...

    checkpoint = stop_after_grace = safe_point

    def save_on_llm_error(self, *_: Any) -> Any:
        return nullcontext()

    def get_resume_position(self) -> dict[str, Any]:
        return {}


def digest(run: Recorder, loop: Any) -> str:
    """Return a digest of all results of a run: its metrics, its proposals and its weights."""
    timeless = [[kind, x, {k: v for k, v in m.items() if not k.startswith("time/")}, c] for kind, x, m, c in run.rows]
    weights = [x.numpy().tobytes() for agent in loop.agents for x in agent.policy.state_dict().values()]
    text = json.dumps([timeless, run.summary], default=lambda x: x.tolist() if hasattr(x, "tolist") else repr(x))
    return hashlib.sha256(text.encode() + b"".join(weights)).hexdigest()


def compute(
    config: dict[str, Any], connection: Any = None, slow: random.Random | None = None, watch: Any = None
) -> str:
    parts = build_parts(config, None)
    try:
        loop, run = build_loop(config, parts), Recorder()
        if watch is not None:
            loop.collector._observers.append(watch)
        if slow is not None:
            ask, waits = loop.principal.ask, [slow.choice([0, 0, 0.02, 0.1]) for _ in range(50)]
            loop.principal.ask = lambda *args: (time.sleep(waits.pop()), ask(*args))[1]
        serve(loop.requests(run), run, connection)
        return digest(run, loop)
    finally:
        parts.close()


def run_batched(
    configs: Sequence[dict[str, Any]], seed: int | None = None, watch: dict[int, Any] | None = None
) -> list[Any]:
    """Return digests or exceptions of runs in one process; with a seed they join and answer after random delays."""
    rows, summaries = BatchedExecutor(), [None] * len(configs)
    connections = [rows.connect("alike") for _ in configs]
    late = None if seed is None else random.Random(seed)
    delays = [0.0 if late is None else late.choice([0, 0, 0.05, 0.2]) for _ in configs]
    slow = [None if late is None else random.Random(late.random()) for _ in configs]

    def live(i: int) -> None:
        try:
            with connections[i].detached():
                time.sleep(delays[i])
            summaries[i] = compute(configs[i], connections[i], slow[i], (watch or {}).get(i))
        except Exception as error:  # noqa: BLE001 (shown by the caller)
            summaries[i] = error
        finally:
            connections[i].close()

    threads = [threading.Thread(target=live, args=(i,)) for i in range(len(configs))]
    for thread in threads:
        thread.start()
    rows.run()
    for thread in threads:
        thread.join()
    return summaries


@pytest.fixture(autouse=True)
def single_thread():
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.parametrize("game", mark_long_except(["escape room"], GAMES))
def test_batched_runs_match_single_runs(game):
    kinds = KINDS[:3] if game != "escape room" else KINDS
    configs = [compose(*GAMES[game], kind, f"seed={i % 2}") for i, kind in enumerate(kinds)]
    configs.append(compose(*GAMES[game], "principal=ucb", "seed=0", *LEARNING))
    single_results = [compute(config) for config in configs]
    assert len(set(single_results)) == len(single_results), "the runs differ"
    assert run_batched(configs) == single_results
    assert run_batched(configs[::-1][:3]) == single_results[::-1][:3]


@pytest.mark.parametrize("seed", mark_long_except([0], range(4)))
def test_join_order_keeps_metrics(seed):
    configs = [compose(*ROOM, kind, f"seed={i // 2}") for i, kind in enumerate(KINDS)]
    sample = random.Random(seed).sample(configs, 4)
    assert run_batched(sample, seed) == [compute(config) for config in sample]


class FailingObserver(Observer):
    """Observer that raises an error after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def on_step(self, transition: Any) -> None:
        assert transition.step.reward.shape == transition.output.action.shape == (1, 7)
        assert transition.ended.shape == (1,) and transition.observation["grid"].shape[:2] == (1, 7)
        self.left -= 1
        if not self.left:
            raise ConfigError("enough")


@pytest.mark.parametrize("steps", mark_long_except([15], [5, 15, 35]))
def test_failing_run_ends_independently(steps):
    configs = [compose(*HARVEST, "principal=ucb", f"seed={i}") for i in range(3)]
    single_results = [compute(config) for config in configs]
    first, broken, last = run_batched(configs, watch={1: FailingObserver(steps)})
    assert [first, last] == [single_results[0], single_results[2]]
    assert isinstance(broken, ConfigError) and str(broken) == "enough"


def test_batched_calls_are_counted(monkeypatch):
    """The runs above are executed in batches and not sequentially."""
    from llmrl.loops import batched_executor
    from llmrl.loops.run_batch import RunBatch

    # On a busy machine, a thread may start later than the executor waits by default.
    monkeypatch.setattr(batched_executor, "MIN_DETACHED_WAIT_SECONDS", 60.0)
    sizes = []
    play = RunBatch.play
    monkeypatch.setattr(RunBatch, "play", lambda self, *a, **k: (sizes.append(len(self.runs)), play(self, *a, **k))[1])
    run_batched(
        [
            compose(*ROOM, "design.confirm_steps=0", "design.evaluations=0", "principal=ucb", f"seed={i}")
            for i in range(4)
        ]
    )
    assert sizes and set(sizes) == {4}


def test_abandonment_reason_reaches_seat():
    rows = BatchedExecutor()
    connection, messages = rows.connect(), []

    def live() -> None:
        try:
            compute(compose(*ROOM, "principal=ucb"), connection)
        except ConfigError as error:
            messages.append(str(error))
        finally:
            connection.close()

    rows.fail_all_requests(ConfigError("all end"))
    thread = threading.Thread(target=live)
    thread.start()
    rows.run()
    thread.join()
    assert messages == ["all end"]


@pytest.mark.parametrize(("needs_batch", "max_waves"), [(False, MAX_SKIPS + 2), (True, 2)])
def test_lone_run_gets_answer(needs_batch, max_waves):
    """Three other runs continue in batches until the request is answered; a prerequisite is answered at once."""
    rows, done, waves = BatchedExecutor(), threading.Event(), []
    config = compose(*ROOM, "principal=ucb")

    def live(connection: Any, is_unbatched: bool) -> None:
        try:
            parts = build_parts(config, None)
            loop = build_loop(config, parts)
            neutral = np.stack([parts.env.spec.mechanism.neutral] * loop.settings.candidates)
            request = loop.adaptation.make_episode_request(5, [Seeds(0)] * loop.settings.candidates, neutral, 0)
            with connection.suspend_batching() if is_unbatched and needs_batch else nullcontext():
                while not done.is_set() and len(waves) < 1000:
                    connection.answer(request)
                    done.set() if is_unbatched else waves.append(1)
        finally:
            connection.close()

    connections = [rows.connect("alike") for _ in range(3)] + [rows.connect()]
    threads = [
        threading.Thread(target=live, args=(connection, connection is connections[3])) for connection in connections
    ]
    for thread in threads:
        thread.start()
    rows.run()
    for thread in threads:
        thread.join()
    assert done.is_set() and len(waves) < 3 * max_waves
