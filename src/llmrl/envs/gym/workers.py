"""Processes that play episodes: `python -m llmrl.envs.gym.workers`, started by `WorkerPool`.

The numbers of the episodes still to be played lie in one pipe that all workers read from, four bytes each, so that a
worker that is done takes the next one without anybody's help. Everything else is said over a socket to each worker: the
evaluation goes there, its scores come back. A second pipe says nothing: its end means that the asking process is gone,
and a thread waits for that, in the middle of an episode, too. A worker imports no torch, but for a controller that is
made of it.
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError, EngineError
from llmrl.envs.env_errors import raised
from llmrl.envs.gym.batched_episodes import BatchedEpisodes, EpisodeResults

if TYPE_CHECKING:
    from llmrl.core.protocols import Controller
    from llmrl.envs.gym.batched_episodes import EpisodeRules

_NUMBER = struct.Struct("=i")
_MOST = 1024
"""Numbers in the pipe at once: a page of memory, which is all that a pipe holds where a user has many of them."""
_EXIT_SECONDS = 2.0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    link: Connection


class WorkerPool:
    """Worker processes that play one game, started with the first evaluation.

    They end when the pool is closed or its process is gone, however it ended. They ignore the signals of a terminal
    and of a scheduler: what becomes of an evaluation is the business of who asked for it.

    Args:
        rules: which game, and how.
        n: processes.
    """

    def __init__(self, rules: EpisodeRules, n: int) -> None:
        self._rules, self._n = rules, n
        self._workers: list[_Worker] = []
        self._pipes: list[int] = []
        """Our ends of the two pipes, that of the numbers first; empty while there are none."""

    def play(self, controller: Controller, vectors: np.ndarray, seeds: np.ndarray, lanes: int) -> EpisodeResults:
        """All episodes of `vectors` [q, d] under `seeds` [k], see `BatchedEpisodes.play`; `lanes` games side by side a
        process.

        Raises:
            ConfigError: the controller cannot be sent to another process, or reads what the game does not show.
            EngineError: a worker died, or its game failed.
        """
        try:
            message = pickle.dumps((controller, vectors, seeds, lanes))
        except (pickle.PicklingError, AttributeError, TypeError) as fault:
            raise ConfigError(f"the policy cannot go to worker processes, use workers=1: {fault}") from fault
        if type(controller).__module__ == "__main__":
            raise ConfigError(
                f"{type(controller).__name__} is defined in the script that runs, where worker processes cannot find "
                "it: put it into a module, or use workers=1"
            )
        scores: list[EpisodeResults] = []
        try:
            if not self._workers:
                self._start()
            total = len(vectors) * len(seeds)
            for first in range(0, total, _MOST):
                numbers = range(first, min(first + _MOST, total))
                os.write(self._pipes[0], struct.pack(f"={len(numbers)}i", *numbers))
                for worker in self._workers:
                    self._send(worker, message)
                scores += self._answers()
        except BaseException:
            # The pipe may hold numbers of an evaluation that nobody waits for any more.
            self.close()
            raise
        return EpisodeResults.joined(scores)

    def close(self) -> None:
        """End the processes; may be called twice, and after one has died."""
        for worker in self._workers:
            worker.link.close()
        # A worker in the middle of an episode would only notice at its end; there is nothing in it to be saved.
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
        self._workers = []
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes = []

    def _start(self) -> None:
        (jobs, ours), (life, kept) = os.pipe(), os.pipe()
        self._pipes = [ours, kept]
        os.set_blocking(jobs, False)
        try:
            for _ in range(self._n):
                self._workers.append(_spawn(jobs, life))
        finally:
            os.close(jobs)
            os.close(life)
        for worker in self._workers:
            self._send(worker, pickle.dumps(sys.path))
            self._send(worker, pickle.dumps(self._rules))

    def _send(self, worker: _Worker, message: bytes) -> None:
        try:
            worker.link.send_bytes(message)
        except OSError as fault:
            raise self._died(worker) from fault

    def _answers(self) -> Iterator[EpisodeResults]:
        waiting = {worker.link: worker for worker in self._workers}
        while waiting:
            for ready in wait(list(waiting)):
                worker = waiting.pop(ready)  # type: ignore[call-overload]
                try:
                    answer = worker.link.recv()
                except (EOFError, OSError) as fault:
                    raise self._died(worker) from fault
                if isinstance(answer, Exception):
                    raise answer
                yield answer

    def _died(self, worker: _Worker) -> EngineError:
        try:
            code = worker.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return EngineError(f"a worker process of {self._rules.env_factory.id} does not answer")
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return EngineError(
            f"a worker process of {self._rules.env_factory.id} died ({cause}); what it had to say is above"
        )


def _spawn(jobs: int, life: int) -> _Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "llmrl.envs.gym.workers", "--link", str(theirs.fileno())]
        command += ["--jobs", str(jobs), "--life", str(life)]
        # A game is one core's work: threads of NumPy's linear algebra would take the cores of the other workers.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, pass_fds=(theirs.fileno(), jobs, life), env=environment, stdin=subprocess.DEVNULL
        )
    return _Worker(process, Connection(ours.detach()))


def _numbers(jobs: int) -> Iterator[int]:
    """Numbers of the episodes to be played, until there are no more."""
    while True:
        try:
            number = os.read(jobs, _NUMBER.size)
        except BlockingIOError:
            return
        if not number:
            return
        yield int(_NUMBER.unpack(number)[0])


def _serve(link: Connection, jobs: int) -> None:
    sys.path[:] = pickle.loads(link.recv_bytes())  # noqa: S301
    rules: EpisodeRules = pickle.loads(link.recv_bytes())  # noqa: S301
    lanes: BatchedEpisodes | None = None
    while True:
        message = link.recv_bytes()
        answer: Any
        try:
            controller, vectors, seeds, n = pickle.loads(message)  # noqa: S301
            if lanes is None or lanes.games.n != n:
                if lanes is not None:
                    lanes.close()
                lanes = BatchedEpisodes(rules, n)
            answer = lanes.play(controller, vectors, seeds, _numbers(jobs))
        except (ConfigError, EngineError) as fault:
            answer = fault
        except Exception as fault:  # noqa: BLE001 (whatever a game of a third party raises is told to who waits)
            answer = raised(rules.env_factory.id, "a worker process", fault)
            answer.add_note(traceback.format_exc())
        link.send(answer)


def _leave_at_the_end_of(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link", type=int, required=True, help="file descriptor of the socket to the asking process")
    parser.add_argument("--jobs", type=int, required=True, help="file descriptor of the pipe of episode numbers")
    parser.add_argument("--life", type=int, required=True, help="file descriptor of the pipe that ends with it")
    arguments = parser.parse_args()
    threading.Thread(target=_leave_at_the_end_of, args=(arguments.life,), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    try:
        with Connection(arguments.link) as link:
            _serve(link, arguments.jobs)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # Who asked is gone.
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
