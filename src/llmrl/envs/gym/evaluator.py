"""Evaluation of controllers, policies with few parameters, in policy search.

An `EpisodeRunner` plays episodes as a batch in one process. A `WorkerPool` starts worker processes that each run
`python -m llmrl.envs.gym.evaluator` and have an `EpisodeRunner`. Evaluations and their results are exchanged over a
socket to each worker. The standard input of a worker carries no data: it is closed when the parent process ends, and a
thread of the worker waits for this, even in the middle of an episode. A worker does not import torch, unless a
controller needs it.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError, EngineError, LlmrlError
from llmrl.core.protocols import Controller
from llmrl.envs.env_errors import build_engine_error
from llmrl.envs.gym.channel_spaces import build_channels, convert_actions
from llmrl.envs.gym.env_factory import EnvFactory, Games
from llmrl.envs.gym.episode_scores import SuccessCriterion

_MAX_GYMNASIUM_GAMES = 8
"""Maximum number of Gymnasium's own games that a process plays in lock step, with one call of the controller for all of
them."""
_MAX_BATCHED_GAMES = 1024
"""Maximum number of batched games in lock step, which keeps their arrays small."""
_EXIT_TIMEOUT_SECONDS = 2.0
_EPISODE_DTYPE = np.dtype([("episode_return", "f8"), ("length", "i8"), ("max_reward", "f8"), ("terminated", "?")])
"""Result of an episode: sum of its rewards, number of steps, highest reward of a step, and whether it terminated."""


@dataclass(frozen=True)
class EpisodeRules:
    """A game and the rules under which its episodes are played.

    Args:
        env_factory: the game.
        clip_actions: whether numbers of an action are clipped to their bounds. If false, the environment gets the
            unclipped numbers, and a cost of large actions depends on them, as in ProPS (arXiv 2511.21928).
        success: criterion of a successful episode; None: there is none.
    """

    env_factory: EnvFactory
    clip_actions: bool = True
    success: SuccessCriterion | None = None


@dataclass(frozen=True)
class EpisodeBatch:
    """Results of q parameter vectors under k seeds each.

    Attributes:
        returns: sum of the rewards of each episode, [q, k] float64.
        lengths: steps of each episode, [q, k] int64.
        successes: whether each episode was a success, [q, k] bool; None without a criterion of success.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    successes: NDArray[np.bool_] | None = None


class EpisodeRunner:
    """Plays episodes in n games in lock step; a game whose episode ends starts the next one.

    Args:
        rules: the game and the rules of its episodes.
        n: number of games in lock step.

    Raises:
        ConfigError: see `EnvFactory.make`; or the game might never end.
    """

    def __init__(self, rules: EpisodeRules, n: int) -> None:
        self._rules = rules
        self.games: Games = rules.env_factory.make(n)
        if self.games.horizon is None:
            raise ConfigError(
                f"{rules.env_factory.id} has no limit of steps, so an episode may never end; set env.horizon"
            )
        self._channels = build_channels(self.games.observation_space)

    def play(
        self, controller: Controller, candidates: NDArray[np.float64], seeds: NDArray[np.int64], indices: Sequence[int]
    ) -> NDArray[Any]:
        """Play the episodes `indices`: i * k + j is vector i of `candidates` [q, d] under seed j of `seeds` [k].

        Each begins as `env.reset(seed=seeds[j])` does. So results do not depend on the other episodes or on the number
        of games, provided that an action of `controller` depends only on its own observation and parameters.

        If the controller has the method `bind_parameters`, it is called with the parameters of all games [n, d], and
        the faster function that it returns is used.

        Returns:
            An array of `_EPISODE_DTYPE`, one element for each episode.

        Raises:
            ConfigError: the controller reads a channel that the game does not have.
        """
        if controller.channel not in self._channels:
            channels = ", ".join(self._channels) or "nothing that can be read without words"
            raise ConfigError(
                f"the policy reads the channel {controller.channel}, and {self._rules.env_factory.id} has {channels}; "
                "use a policy for one of these"
            )
        # Inputs of the controller are [n, k] float64, or [n] int64 for states.
        encode_observation = self._channels[controller.channel][1]
        input_dtype = np.int64 if controller.channel == "state" else np.float64
        games, n = self.games, self.games.n
        results, remaining_episodes = np.zeros(len(indices), dtype=_EPISODE_DTYPE), iter(enumerate(indices))
        result_indices, game_seeds, lengths = np.zeros((3, n), dtype=np.int64)
        parameters, returns, max_rewards = np.zeros((n, candidates.shape[1])), np.zeros(n), np.zeros(n)
        # All games are started once, because before that they have no observations.
        active, start_mask = np.zeros(n, dtype=bool), np.ones(n, dtype=bool)
        while True:
            for game, (result_index, index) in zip(np.flatnonzero(~active).tolist(), remaining_episodes, strict=False):
                result_indices[game] = result_index
                game_seeds[game], parameters[game] = seeds[index % len(seeds)], candidates[index // len(seeds)]
                active[game] = start_mask[game] = True
            if not active.any():
                return results
            bind_parameters = getattr(controller, "bind_parameters", None)
            act = bind_parameters(parameters) if bind_parameters else lambda inputs: controller.act(inputs, parameters)
            observation = games.reset(game_seeds, start_mask)
            returns[start_mask], max_rewards[start_mask], lengths[start_mask] = 0.0, -np.inf, 0
            start_mask[:] = False
            done = np.zeros(n, dtype=bool)
            while not done.any():
                action = act(encode_observation(observation)[:, 0].astype(input_dtype))
                actions = convert_actions(games.action_space, action[:, None], self._rules.clip_actions)
                observation, reward, terminated, truncated = games.step(actions, active)
                lengths += 1
                returns += reward
                np.maximum(max_rewards, reward, max_rewards)
                done = terminated | truncated
            for game in np.flatnonzero(done).tolist():
                results[result_indices[game]] = returns[game], lengths[game], max_rewards[game], terminated[game]
            active &= ~done

    def resized(self, n: int) -> EpisodeRunner:
        """Return this runner if it has `n` games; otherwise close it and return a new one."""
        if self.games.n == n:
            return self
        self.close()
        return EpisodeRunner(self._rules, n)

    def close(self) -> None:
        self.games.close()


class GymEvaluator(AbstractContextManager["GymEvaluator"]):
    """Evaluates controllers: batched games in this process, Gymnasium's own games in worker processes.

    Use it as a context manager, or call `close`.

    Args:
        rules: the game and the rules of its episodes.
        workers: number of processes for Gymnasium's own games, >= 1; None: one per core that this process may use.
            With 1, they are played in this process, as batched games always are.

    Raises:
        ConfigError: see `EpisodeRunner`.
    """

    def __init__(self, rules: EpisodeRules, workers: int | None = None) -> None:
        self._rules = rules
        self.workers = 1 if rules.env_factory.engine == "batched" else workers or len(os.sched_getaffinity(0))
        # Created even if worker processes play, so that invalid games raise an error at once.
        self._runner = EpisodeRunner(rules, 1)
        self._pool = WorkerPool(rules, self.workers) if self.workers > 1 else None

    def evaluate(
        self, controller: Controller, candidates: NDArray[np.float64], seeds: NDArray[np.int64]
    ) -> EpisodeBatch:
        """Play one episode of each parameter vector [q, d] under each seed [k]; return the results.

        Results do not depend on the number of workers.

        Raises:
            ConfigError: the game lacks the channel that the controller reads, or the controller cannot be pickled.
            EngineError: a worker process died, or the game raised an error.
        """
        candidates, seeds = np.asarray(candidates, dtype=np.float64), np.asarray(seeds, dtype=np.int64)
        n_episodes = len(candidates) * len(seeds)
        if self._rules.env_factory.engine == "batched":
            n_games = min(n_episodes, _MAX_BATCHED_GAMES)
        else:  # each process plays at least two rounds of episodes
            n_games = max(1, min(-(-n_episodes // (2 * self.workers)), _MAX_GYMNASIUM_GAMES))
        try:
            if self._pool is not None:
                results = self._pool.play(controller, candidates, seeds, n_games)
            else:
                self._runner = self._runner.resized(n_games)
                results = self._runner.play(controller, candidates, seeds, range(n_episodes))
        except LlmrlError:
            raise
        except Exception as error:
            raise build_engine_error(self._rules.env_factory.id, "an episode", error) from error
        results = results.reshape(len(candidates), len(seeds))
        returns, success = results["episode_return"], self._rules.success
        successes = None if success is None else success.is_met(returns, results["max_reward"], results["terminated"])
        return EpisodeBatch(returns, results["length"], successes)

    def close(self) -> None:
        """End the worker processes. It may be called twice."""
        self._runner.close()
        if self._pool is not None:
            self._pool.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection


class WorkerPool:
    """Worker processes that play one game, started with the first evaluation.

    They end when the pool is closed or its process has ended for any reason. They ignore the signals of a terminal and
    of a scheduler, because only the parent process decides when an evaluation ends.

    Args:
        rules: the game and the rules of its episodes.
        n: number of processes.
    """

    def __init__(self, rules: EpisodeRules, n: int) -> None:
        self._rules, self._n_workers = rules, n
        self._workers: list[_Worker] = []

    def play(self, controller: Controller, candidates: np.ndarray, seeds: np.ndarray, n_games: int) -> np.ndarray:
        """Return the results of all episodes of `candidates` under `seeds` (see `EpisodeRunner.play`).

        Each process plays every n-th episode, in `n_games` games in lock step.

        Raises:
            ConfigError: the controller cannot be pickled, or the game lacks the channel that it reads.
            EngineError: a worker died, or its game failed.
        """
        try:
            pickled_evaluation = pickle.dumps((controller, candidates, seeds, n_games))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(f"the policy cannot be sent to worker processes ({error}); use workers=1") from error
        if type(controller).__module__ == "__main__":
            raise ConfigError(
                f"{type(controller).__name__} is defined in the main script, from which worker processes cannot import "
                "it; move it into a module, or use workers=1"
            )
        results = np.zeros(len(candidates) * len(seeds), dtype=_EPISODE_DTYPE)
        try:
            while len(self._workers) < self._n_workers:
                self._workers.append(worker := _start_worker())
                with self._convert_connection_errors(worker):
                    worker.connection.send((sys.path, self._rules))
            for k, worker in enumerate(self._workers):
                with self._convert_connection_errors(worker):
                    worker.connection.send_bytes(pickled_evaluation)
                    worker.connection.send(range(k, len(results), self._n_workers))
            for k, worker in enumerate(self._workers):
                with self._convert_connection_errors(worker):
                    reply = worker.connection.recv()
                if isinstance(reply, Exception):
                    raise reply
                results[k :: self._n_workers] = reply
        except BaseException:
            # Workers may still play an evaluation that was aborted.
            self.close()
            raise
        return results

    def close(self) -> None:
        """End the processes. It may be called twice, and after a process has died."""
        for worker in self._workers:
            worker.connection.close()
        # A worker would notice the closed socket only at the end of an episode, so it is killed; it has no data to
        # save.
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.communicate()
        self._workers = []

    @contextmanager
    def _convert_connection_errors(self, worker: _Worker) -> Iterator[None]:
        """Raise EngineError, with the exit status of the worker, if its connection is closed."""
        try:
            yield
        except (EOFError, OSError) as error:
            try:
                code = worker.process.wait(_EXIT_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                problem = "does not respond"
            else:
                cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                problem = f"died ({cause}); its output is above"
            raise EngineError(f"a worker process of {self._rules.env_factory.id} {problem}") from error


def _start_worker() -> _Worker:
    parent_socket, child_socket = socket.socketpair()
    with child_socket:
        command = [sys.executable, "-m", "llmrl.envs.gym.evaluator", str(child_socket.fileno())]
        # A game uses one core: threads of NumPy's linear algebra would slow down the other workers.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(command, pass_fds=(child_socket.fileno(),), env=environment, stdin=subprocess.PIPE)
    return _Worker(process, Connection(parent_socket.detach()))


def _serve_evaluations(connection: Connection) -> None:
    """Play the episodes that the parent process requests, until it closes the connection."""
    sys.path[:], rules = pickle.loads(connection.recv_bytes())  # noqa: S301
    runner: EpisodeRunner | None = None
    while True:
        pickled_evaluation, indices = connection.recv_bytes(), connection.recv()
        reply: Any
        try:
            controller, candidates, seeds, n_games = pickle.loads(pickled_evaluation)  # noqa: S301
            runner = EpisodeRunner(rules, n_games) if runner is None else runner.resized(n_games)
            reply = runner.play(controller, candidates, seeds, indices)
        except (ConfigError, EngineError) as error:
            reply = error
        except Exception as error:  # noqa: BLE001 (the parent process raises any error of a third party's game)
            reply = build_engine_error(rules.env_factory.id, "a worker process", error)
            reply.add_note(traceback.format_exc())
        connection.send(reply)


def _exit_after_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    """Run a worker process; its only argument is the file descriptor of the socket to the parent process."""
    threading.Thread(target=_exit_after_parent, daemon=True).start()
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signal_number, signal.SIG_IGN)
    # The connection fails when the parent process has exited.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError), Connection(int(sys.argv[1])) as connection:
        _serve_evaluations(connection)


if __name__ == "__main__":
    main()
