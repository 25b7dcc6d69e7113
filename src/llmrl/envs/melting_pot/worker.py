"""The process that plays one game of a batch: `python -m llmrl.envs.melting_pot.worker`, started by `MeltingPotEnv`.

Building a game costs 0.1 to 0.4 s and starting it 0.2 s, as much as hundreds of steps, and the engine can start a
game only once. So the worker builds one game and keeps it untouched; for each episode it forks a child, which starts
its copy and plays it. The next child is forked as soon as an episode is over, and starts its game while the learner
is busy with the update.

The learner sends one byte at a time over a socket, the numbers lie in shared memory:
`R` begin an episode, `S` step, `L` the last step of this episode; the answer is `C` (the episode goes on) or `E` (the
engine ended it). A closed socket means that the learner is gone: the worker exits.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import mmap
import os
import signal
import socket
import sys

from llmrl.envs.melting_pot.dmlab2d_game import Game
from llmrl.envs.melting_pot.memory_layout import MemoryLayout

OVER = 0
"""Exit code of a child whose episode is over: the next one may get ready."""
AGAIN = 11
"""Exit code of a child that was told to begin another episode than the one it has: the next one must answer."""
GONE = 12
"""Exit code of a child that found the learner gone."""

_PR_SET_PDEATHSIG = 1


def play(game: Game, layout: MemoryLayout, slot: int, link: socket.socket, memory: mmap.mmap, begun: bool) -> int:
    """Start the game, play one episode, and return the exit code. `begun`: the learner already waits for its first
    answer."""
    arrays = layout.views(memory)
    seed = int(arrays["seed"][slot])
    game.start(seed)
    if not begun:
        order = link.recv(1)
        if not order:
            return GONE
        if int(arrays["seed"][slot]) != seed:
            return AGAIN
    game.observe(arrays, slot)
    link.sendall(b"C")
    action = arrays["action"][slot]
    while True:
        order = link.recv(1)
        if not order:
            return GONE
        if order == b"R":
            return AGAIN
        running = game.step(action)
        game.observe(arrays, slot)
        link.sendall(b"C" if running else b"E")
        if order == b"L" or not running:
            return OVER


def serve(layout: MemoryLayout, slot: int, link: socket.socket, memory: mmap.mmap) -> int:
    """Keep a pristine game and fork a child for every episode; returns the worker's exit code."""
    game = Game(layout)
    begun = False
    while True:
        child = os.fork()
        if child == 0:
            # Nobody would be left to fork the next episode: die with the worker.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                code = play(game, layout, slot, link, memory, begun)
            except (BrokenPipeError, ConnectionResetError):
                code = GONE
            except Exception:
                logging.exception("game %d of %d (%s) failed", slot, layout.n_envs, layout.substrate)
                code = 1
            # Not sys.exit: the child must not run the clean-up of the process it was copied from.
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == GONE:
            return 0
        if code not in (OVER, AGAIN):
            return code if code > 0 else 128 - code
        begun = code == AGAIN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", type=json.loads, required=True, help="the batch, as JSON")
    parser.add_argument("--slot", type=int, required=True, help="which game of the batch this is")
    parser.add_argument("--link", type=int, required=True, help="file descriptor of the socket to the learner")
    parser.add_argument("--memory", type=int, required=True, help="file descriptor of the shared memory")
    arguments = parser.parse_args()
    # Ctrl-C and a preempted job signal every process; the learner decides when the games end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    layout = MemoryLayout.from_json(arguments.layout)
    with socket.socket(fileno=arguments.link) as link, mmap.mmap(arguments.memory, layout.nbytes) as memory:
        return serve(layout, arguments.slot, link, memory)


if __name__ == "__main__":
    sys.exit(main())
