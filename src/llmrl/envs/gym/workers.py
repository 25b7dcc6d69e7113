"""Processes that play episodes: `python -m llmrl.envs.gym.workers`, started by `WorkerPool`.

All workers read the numbers of the remaining episodes from one pipe, four bytes each, so that a
worker that is done takes the next one without help. Evaluations and their results are exchanged over a socket to each
worker. A second pipe carries no data: it is closed when the parent process ends, and a thread of the worker waits for
this, even in the middle of an episode. A worker does not import torch, unless a controller needs it.
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
_MAX_JOBS = 1024
"""Maximum number of job numbers in the pipe: one memory page, the capacity of a pipe if the user has many pipes."""
_EXIT_SECONDS = 2.0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    link: Connection


class WorkerPool:
    """Worker processes that play one game, started with the first evaluation.

    They end when the pool is closed or its process has ended for any reason. They ignore the signals of a terminal and
    of a scheduler, because only the parent process decides when an evaluation ends.

    Args:
        rules: the game and the rules of its episodes.
        n: number of processes.
    """

    def __init__(self, rules: EpisodeRules, n: int) -> None:
        self._rules, self._n = rules, n
        self._workers: list[_Worker] = []
        self._pipes: list[int] = []
        """This process's ends of the two pipes, first that of the job numbers; empty before the start."""

    def play(self, controller: Controller, vectors: np.ndarray, seeds: np.ndarray, lanes: int) -> EpisodeResults:
        """Return the results of all episodes of `vectors` [q, d] under `seeds` [k] (see `BatchedEpisodes.play`).

        Each process plays `lanes` games in lock step.

        Raises:
            ConfigError: the controller cannot be pickled, or the game lacks the channel that it reads.
            EngineError: a worker died, or its game failed.
        """
        try:
            message = pickle.dumps((controller, vectors, seeds, lanes))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(f"the policy cannot be sent to worker processes ({error}); use workers=1") from error
        if type(controller).__module__ == "__main__":
            raise ConfigError(
                f"{type(controller).__name__} is defined in the main script, from which worker processes cannot import "
                "it; move it into a module, or use workers=1"
            )
        scores: list[EpisodeResults] = []
        try:
            if not self._workers:
                self._start()
            total = len(vectors) * len(seeds)
            for start in range(0, total, _MAX_JOBS):
                numbers = range(start, min(start + _MAX_JOBS, total))
                os.write(self._pipes[0], struct.pack(f"={len(numbers)}i", *numbers))
                for worker in self._workers:
                    self._send(worker, message)
                scores += self._receive_results()
        except BaseException:
            # The pipe may contain job numbers of an evaluation that was aborted.
            self.close()
            raise
        return EpisodeResults.concatenate(scores)

    def close(self) -> None:
        """End the processes. It may be called twice, and after a process has died."""
        for worker in self._workers:
            worker.link.close()
        # A worker would notice the closed socket only at the end of an episode, so it is killed; it has no data to
        # save.
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
        self._workers = []
        for pipe in self._pipes:
            os.close(pipe)
        self._pipes = []

    def _start(self) -> None:
        (jobs, jobs_writer), (life, life_writer) = os.pipe(), os.pipe()
        self._pipes = [jobs_writer, life_writer]
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
        except OSError as error:
            raise self._worker_error(worker) from error

    def _receive_results(self) -> Iterator[EpisodeResults]:
        waiting = {worker.link: worker for worker in self._workers}
        while waiting:
            for ready in wait(list(waiting)):
                worker = waiting.pop(ready)  # type: ignore[call-overload]
                try:
                    answer = worker.link.recv()
                except (EOFError, OSError) as error:
                    raise self._worker_error(worker) from error
                if isinstance(answer, Exception):
                    raise answer
                yield answer

    def _worker_error(self, worker: _Worker) -> EngineError:
        try:
            code = worker.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return EngineError(f"a worker process of {self._rules.env_factory.id} does not respond")
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return EngineError(f"a worker process of {self._rules.env_factory.id} died ({cause}); its output is above")


def _spawn(jobs: int, life: int) -> _Worker:
    parent_socket, child_socket = socket.socketpair()
    with child_socket:
        command = [sys.executable, "-m", "llmrl.envs.gym.workers", "--link", str(child_socket.fileno())]
        command += ["--jobs", str(jobs), "--life", str(life)]
        # A game uses one core: threads of NumPy's linear algebra would slow down the other workers.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, pass_fds=(child_socket.fileno(), jobs, life), env=environment, stdin=subprocess.DEVNULL
        )
    return _Worker(process, Connection(parent_socket.detach()))


def _job_numbers(jobs: int) -> Iterator[int]:
    """Yield the numbers of the episodes to be played, until there are no more."""
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
    episodes: BatchedEpisodes | None = None
    while True:
        message = link.recv_bytes()
        answer: Any
        try:
            controller, vectors, seeds, n = pickle.loads(message)  # noqa: S301
            if episodes is None or episodes.games.n != n:
                if episodes is not None:
                    episodes.close()
                episodes = BatchedEpisodes(rules, n)
            answer = episodes.play(controller, vectors, seeds, _job_numbers(jobs))
        except (ConfigError, EngineError) as error:
            answer = error
        except Exception as error:  # noqa: BLE001 (whatever a game of a third party raises is told to who waits)
            answer = raised(rules.env_factory.id, "a worker process", error)
            answer.add_note(traceback.format_exc())
        link.send(answer)


def _exit_on_eof(pipe: int) -> None:
    os.read(pipe, 1)
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link", type=int, required=True, help="file descriptor of the socket to the asking process")
    parser.add_argument("--jobs", type=int, required=True, help="file descriptor of the pipe of episode numbers")
    parser.add_argument("--life", type=int, required=True, help="file descriptor of the pipe that ends with it")
    arguments = parser.parse_args()
    threading.Thread(target=_exit_on_eof, args=(arguments.life,), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    try:
        with Connection(arguments.link) as link:
            _serve(link, arguments.jobs)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The parent process has exited.
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
