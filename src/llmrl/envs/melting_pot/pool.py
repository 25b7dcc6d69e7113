"""The worker processes of a batch of games, and the memory they share with the learner."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from llmrl.core.errors import EngineError
from llmrl.envs.substrate.memory_layout import MemoryLayout

_POLL_SECONDS = 1
_EXIT_SECONDS = 5


@dataclass
class GameWorker:
    """The process of one game and its socket (the protocol is described in `worker`)."""

    process: subprocess.Popen[bytes]
    link: socket.socket


class GamePool:
    """One worker process per game.

    Workers end when the pool is closed or its process has ended for any reason. The shared memory has no name, so it is
    freed then, too.

    Args:
        layout: settings of the batch and of the shared memory.
        seeds: seed of the first episode of each game.
    """

    def __init__(self, layout: MemoryLayout, seeds: Sequence[int]) -> None:
        self._layout = layout
        self.workers: list[GameWorker] = []
        descriptor = os.memfd_create("llmrl-melting-pot")
        try:
            os.truncate(descriptor, layout.nbytes)
            # The memory is unmapped with the last array that refers to it.
            self.arrays: dict[str, NDArray[Any]] = layout.views(mmap.mmap(descriptor, layout.nbytes))
            self.arrays["seed"][:] = seeds
            for slot in range(layout.n_envs):
                self.workers.append(self._spawn(slot, descriptor))
        finally:
            os.close(descriptor)

    def exchange(self, orders: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send one order to each of the given games, and return their answers: game -> byte.

        Raises:
            EngineError: a game died. All games are ended then: the batch cannot go on without it.
        """
        for slot, order in orders.items():
            try:
                self.workers[slot].link.sendall(order)
            except OSError as error:
                raise self._died(slot) from error
        return {slot: self._answer(slot) for slot in orders}

    def close(self) -> None:
        """End the games. It may be called twice, and after a game has died."""
        for worker in self.workers:
            worker.link.close()
        deadline = time.monotonic() + _EXIT_SECONDS
        for worker in self.workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self.workers = []

    def _spawn(self, slot: int, memory: int) -> GameWorker:
        parent_socket, child_socket = socket.socketpair()
        # A time-out of the kernel: a Python time-out would cost one more system call for each step of each game.
        parent_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _POLL_SECONDS, 0))
        with child_socket:
            command = [sys.executable, "-m", "llmrl.envs.melting_pot.worker"]
            command += ["--layout", json.dumps(self._layout.to_json()), "--slot", str(slot)]
            command += ["--link", str(child_socket.fileno()), "--memory", str(memory)]
            # A game uses one core: threads of NumPy's linear algebra would also interfere with fork.
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            descriptors = (child_socket.fileno(), memory)
            process = subprocess.Popen(command, pass_fds=descriptors, env=environment, stdin=subprocess.DEVNULL)
        return GameWorker(process, parent_socket)

    def _answer(self, slot: int) -> bytes:
        worker = self.workers[slot]
        while True:
            try:
                answer = worker.link.recv(1)
            except BlockingIOError:
                # After a worker was killed, its child process keeps the socket open for a moment.
                if worker.process.poll() is None:
                    continue
                answer = b""
            except OSError:
                answer = b""
            if not answer:
                raise self._died(slot)
            return answer

    def _died(self, slot: int) -> EngineError:
        try:
            cause = _describe_exit(self.workers[slot].process.wait(_EXIT_SECONDS))
        except subprocess.TimeoutExpired:
            cause = "its process hangs"
        self.close()
        game = f"game {slot} of {self._layout.n_envs} ({self._layout.substrate})"
        return EngineError(
            f"{game} died ({cause}); the output of its process is above. Start the same command again; the run resumes "
            "from its newest checkpoint."
        )


def _describe_exit(code: int) -> str:
    """Return an exit code as text.

    As in a shell, the worker passes on a signal that killed its child as 128 + signal.
    """
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        return f"exit code {code}: {signal.Signals(number).name}"
    return f"exit code {code}"
