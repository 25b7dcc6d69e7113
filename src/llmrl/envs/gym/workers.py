"""Processes that play episodes: `python -m llmrl.envs.gym.workers`, started by `WorkerPool`.

Evaluations and their results are exchanged over a socket to each worker. The standard input of a worker carries no
data: it is closed when the parent process ends, and a thread of the worker waits for this, even in the middle of an
episode. A worker does not import torch, unless a controller needs it.
"""

from __future__ import annotations

import argparse
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError, EngineError
from llmrl.envs.env_errors import raised
from llmrl.envs.gym.batched_episodes import RESULT, BatchedEpisodes

if TYPE_CHECKING:
    from llmrl.core.protocols import Controller
    from llmrl.envs.gym.batched_episodes import EpisodeRules

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

    def play(self, controller: Controller, vectors: np.ndarray, seeds: np.ndarray, lanes: int) -> np.ndarray:
        """Return the results of all episodes of `vectors` [q, d] under `seeds` [k] (see `BatchedEpisodes.play`).

        Each process plays every n-th episode, `lanes` games in lock step.

        Raises:
            ConfigError: the controller cannot be pickled, or the game lacks the channel that it reads.
            EngineError: a worker died, or its game failed.
        """
        try:
            evaluation = pickle.dumps((controller, vectors, seeds, lanes))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(f"the policy cannot be sent to worker processes ({error}); use workers=1") from error
        if type(controller).__module__ == "__main__":
            raise ConfigError(
                f"{type(controller).__name__} is defined in the main script, from which worker processes cannot import "
                "it; move it into a module, or use workers=1"
            )
        results = np.zeros(len(vectors) * len(seeds), dtype=RESULT)
        try:
            while len(self._workers) < self._n:
                self._workers.append(_spawn())
                self._send(self._workers[-1], pickle.dumps((sys.path, self._rules)))
            for k, worker in enumerate(self._workers):
                self._send(worker, evaluation)
                self._send(worker, pickle.dumps(range(k, len(results), self._n)))
            for k, worker in enumerate(self._workers):
                results[k :: self._n] = self._receive(worker)
        except BaseException:
            # Workers may still play an evaluation that was aborted.
            self.close()
            raise
        return results

    def close(self) -> None:
        """End the processes. It may be called twice, and after a process has died."""
        for worker in self._workers:
            worker.link.close()
        # A worker would notice the closed socket only at the end of an episode, so it is killed; it has no data to
        # save.
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.communicate()
        self._workers = []

    def _send(self, worker: _Worker, message: bytes) -> None:
        try:
            worker.link.send_bytes(message)
        except OSError as error:
            raise self._worker_error(worker) from error

    def _receive(self, worker: _Worker) -> np.ndarray:
        try:
            answer = worker.link.recv()
        except (EOFError, OSError) as error:
            raise self._worker_error(worker) from error
        if isinstance(answer, Exception):
            raise answer
        results: np.ndarray = answer
        return results

    def _worker_error(self, worker: _Worker) -> EngineError:
        try:
            code = worker.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return EngineError(f"a worker process of {self._rules.env_factory.id} does not respond")
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return EngineError(f"a worker process of {self._rules.env_factory.id} died ({cause}); its output is above")


def _spawn() -> _Worker:
    parent_socket, child_socket = socket.socketpair()
    with child_socket:
        command = [sys.executable, "-m", "llmrl.envs.gym.workers", "--link", str(child_socket.fileno())]
        # A game uses one core: threads of NumPy's linear algebra would slow down the other workers.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(command, pass_fds=(child_socket.fileno(),), env=environment, stdin=subprocess.PIPE)
    return _Worker(process, Connection(parent_socket.detach()))


def _serve(link: Connection) -> None:
    rules: EpisodeRules
    sys.path[:], rules = pickle.loads(link.recv_bytes())  # noqa: S301
    episodes: BatchedEpisodes | None = None
    while True:
        evaluation, jobs = link.recv_bytes(), link.recv()
        answer: Any
        try:
            controller, vectors, seeds, n = pickle.loads(evaluation)  # noqa: S301
            if episodes is None or episodes.games.n != n:
                if episodes is not None:
                    episodes.close()
                episodes = BatchedEpisodes(rules, n)
            answer = episodes.play(controller, vectors, seeds, jobs)
        except (ConfigError, EngineError) as error:
            answer = error
        except Exception as error:  # noqa: BLE001 (whatever a game of a third party raises is told to who waits)
            answer = raised(rules.env_factory.id, "a worker process", error)
            answer.add_note(traceback.format_exc())
        link.send(answer)


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link", type=int, required=True, help="file descriptor of the socket to the asking process")
    arguments = parser.parse_args()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    try:
        with Connection(arguments.link) as link:
            _serve(link)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The parent process has exited.
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
