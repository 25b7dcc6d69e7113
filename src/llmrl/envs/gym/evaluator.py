"""Evaluation of controllers (policies with few parameters) in n parallel copies (games) of an environment.

An `EpisodeRunner` plays episodes in several games of one process. A `WorkerPool` starts worker processes, each of which
runs `python -m llmrl.envs.gym.evaluator` with an `EpisodeRunner`. A socket to each worker transmits evaluations and
their results. The standard input of a worker transmits nothing: it is closed when the parent process ends. A thread of
the worker waits for this and ends the process, even in the middle of an episode. A worker does not import torch unless
a controller needs it.
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
from llmrl.core.records import EvaluationBatch
from llmrl.envs.env_errors import build_engine_error
from llmrl.envs.gym.channel_spaces import build_channels, convert_actions
from llmrl.envs.gym.env_factory import EnvFactory, Games
from llmrl.envs.gym.episode_scores import SuccessCriterion

_MAX_GYMNASIUM_GAMES = 8
"""Maximum number of games of the stock engine in one process. A step calls the controller once for all of them."""
_MAX_BATCHED_GAMES = 1024
"""Maximum number of games of the batched engine, so that their arrays fit the caches of a processor."""
_EXIT_TIMEOUT_SECONDS = 2.0
"""Time for a worker whose connection is closed to end, after which it counts as not responding."""
_EPISODE_DTYPE = np.dtype([("episode_return", "f8"), ("length", "i8"), ("max_reward", "f8"), ("terminated", "?")])
"""Result of an episode: sum of its rewards, number of steps, highest reward of a step, and whether it terminated."""


@dataclass(frozen=True)
class EpisodeRules:
    """An environment and the rules under which its episodes are played.

    Args:
        env_factory: factory of the games.
        clip_actions: whether numbers of an action are clipped to their bounds. If false, a reward term for large
            actions depends on the unclipped numbers, as in ProPS (arXiv 2511.21928).
        success: success criterion of an episode; None: there is none.
    """

    env_factory: EnvFactory
    clip_actions: bool = True
    success: SuccessCriterion | None = None


class EpisodeRunner:
    """Runner of episodes in n games in lock step; a game whose episode has ended starts the next one.

    Args:
        rules: the environment and the rules of its episodes.
        n: number of games in lock step.

    Raises:
        ConfigError: see `EnvFactory.make`; or the environment has no step limit.
    """

    def __init__(self, rules: EpisodeRules, n: int) -> None:
        self._rules = rules
        self.games: Games = rules.env_factory.make(n)
        if self.games.horizon is None:
            raise ConfigError(f"{rules.env_factory.id} has no step limit, so an episode may never end; set env.horizon")
        self._channels = build_channels(self.games.observation_space)

    def play(
        self, controller: Controller, candidates: NDArray[np.float64], seeds: NDArray[np.int64], episodes: Sequence[int]
    ) -> NDArray[Any]:
        """Play the given episodes: episode i * k + j has the parameters `candidates[i]` and the seed `seeds[j]`.

        An episode begins as after `env.reset(seed=seeds[j])`. Its result does not depend on other episodes or on the
        number of games, if the controller uses only the observation and parameters of a game for its action.

        Args:
            controller: the policy. If it has the method `bind_parameters`, this is called with the parameters of all
                games [n, d] and returns a function from inputs to actions, which is faster than `act`.
            candidates: parameter vectors, [q, d].
            seeds: seeds of episodes, [k].
            episodes: indices of the episodes to play, each in 0 .. q * k - 1.

        Returns:
            An array of `_EPISODE_DTYPE`, one element for each episode.

        Raises:
            ConfigError: the controller reads a channel that the environment does not have.
        """
        if controller.channel not in self._channels:
            raise ConfigError(
                f"the policy reads the channel {controller.channel}, but channels of {self._rules.env_factory.id} are: "
                f"{', '.join(self._channels) or 'none without text'}; use a policy for one of these"
            )
        # Inputs of the controller are vectors [n, m] float64, or state indices [n] int64.
        encode_observation = self._channels[controller.channel][1]
        input_dtype = np.int64 if controller.channel == "state" else np.float64
        games, n = self.games, self.games.n
        results, remaining_episodes = np.zeros(len(episodes), dtype=_EPISODE_DTYPE), iter(enumerate(episodes))
        result_indices, game_seeds, lengths = np.zeros((3, n), dtype=np.int64)
        parameters, returns, max_rewards = np.zeros((n, candidates.shape[1])), np.zeros(n), np.zeros(n)
        # Start all games, even more than there are episodes: a game that was never started has no observation.
        active, start_mask = np.zeros(n, dtype=bool), np.ones(n, dtype=bool)
        while True:
            for game, (i, episode) in zip(np.flatnonzero(~active).tolist(), remaining_episodes, strict=False):
                result_indices[game] = i
                game_seeds[game], parameters[game] = seeds[episode % len(seeds)], candidates[episode // len(seeds)]
                active[game] = start_mask[game] = True
            if not active.any():
                return results
            bind_parameters = getattr(controller, "bind_parameters", None)
            act = bind_parameters(parameters) if bind_parameters else lambda inputs: controller.act(inputs, parameters)
            observation = games.reset(game_seeds, start_mask)
            returns[start_mask], max_rewards[start_mask], lengths[start_mask] = 0.0, -np.inf, 0
            start_mask[:] = False
            has_ended = np.zeros(n, dtype=bool)
            while not has_ended.any():
                action = act(encode_observation(observation)[:, 0].astype(input_dtype))
                actions = convert_actions(games.action_space, action[:, None], self._rules.clip_actions)
                observation, reward, terminated, truncated = games.step(actions, active)
                lengths += 1
                returns += reward
                np.maximum(max_rewards, reward, max_rewards)
                has_ended = terminated | truncated
            for game in np.flatnonzero(has_ended).tolist():
                results[result_indices[game]] = returns[game], lengths[game], max_rewards[game], terminated[game]
            active &= ~has_ended

    def resize(self, n: int) -> EpisodeRunner:
        """Return this runner if it has `n` games; otherwise close it and return a new one."""
        if self.games.n == n:
            return self
        self.close()
        return EpisodeRunner(self._rules, n)

    def close(self) -> None:
        self.games.close()


class GymEvaluator(AbstractContextManager["GymEvaluator"]):
    """Evaluator of controllers: games of the batched engine run in this process, others in worker processes.

    Use it as a context manager, or call `close`.

    Args:
        rules: the environment and the rules of its episodes.
        workers: number of worker processes for the stock engine, >= 1; None: one per core that this process may use.
            With 1, games run in this process, as those of the batched engine always do.

    Raises:
        ConfigError: see `EpisodeRunner`.
    """

    def __init__(self, rules: EpisodeRules, workers: int | None = None) -> None:
        self._rules = rules
        self.n_workers = 1 if rules.env_factory.engine == "batched" else workers or len(os.sched_getaffinity(0))
        # Created even if worker processes play, so that invalid options raise an error at once.
        self._runner = EpisodeRunner(rules, n=1)
        self._pool = WorkerPool(rules, self.n_workers) if self.n_workers > 1 else None

    def evaluate(
        self, controller: Controller, candidates: NDArray[np.float64], seeds: NDArray[np.int64]
    ) -> EvaluationBatch:
        """Play one episode of each parameter vector [q, d] under each seed [k]; return the results.

        Results do not depend on the number of workers.

        Raises:
            ConfigError: the environment lacks the channel that the controller reads, or the controller cannot be
                pickled.
            EngineError: a worker process died, or the environment raised an error.
        """
        candidates, seeds = np.asarray(candidates, dtype=np.float64), np.asarray(seeds, dtype=np.int64)
        n_episodes = len(candidates) * len(seeds)
        if self._rules.env_factory.engine == "batched":
            n_games = min(n_episodes, _MAX_BATCHED_GAMES)
        else:  # so few games that each plays at least two episodes, as the work of processes is then more equal
            n_games = max(1, min(-(-n_episodes // (2 * self.n_workers)), _MAX_GYMNASIUM_GAMES))
        try:
            if self._pool is not None:
                results = self._pool.play(controller, candidates, seeds, n_games)
            else:
                self._runner = self._runner.resize(n_games)
                results = self._runner.play(controller, candidates, seeds, range(n_episodes))
        except LlmrlError:
            raise
        except Exception as error:
            raise build_engine_error(self._rules.env_factory.id, "an episode", error) from error
        results = results.reshape(len(candidates), len(seeds))
        returns, success = results["episode_return"], self._rules.success
        successes = None if success is None else success.is_met(returns, results["max_reward"], results["terminated"])
        return EvaluationBatch(returns, results["length"], successes)

    def close(self) -> None:
        """End the worker processes; later calls do nothing."""
        self._runner.close()
        if self._pool is not None:
            self._pool.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection


class WorkerPool:
    """Worker processes that play episodes of one environment; the first evaluation starts them.

    They end when the pool is closed or the parent process has ended for any reason. They ignore signals from a terminal
    or a scheduler, because only the parent process decides when an evaluation ends.

    Args:
        rules: the environment and the rules of its episodes.
        n: number of processes.
    """

    def __init__(self, rules: EpisodeRules, n: int) -> None:
        self._rules, self._n_workers = rules, n
        self._workers: list[_Worker] = []

    def play(self, controller: Controller, candidates: np.ndarray, seeds: np.ndarray, n_games: int) -> np.ndarray:
        """Return the results of all episodes of `candidates` under `seeds` (see `EpisodeRunner.play`).

        Process k plays the episodes k, k + n, k + 2n and so on, in `n_games` games in lock step.

        Raises:
            ConfigError: the controller cannot be pickled, or the environment lacks the channel that it reads.
            EngineError: a worker died, or its environment raised an error.
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
                    response = worker.connection.recv()
                if isinstance(response, Exception):
                    raise response
                results[k :: self._n_workers] = response
        except BaseException:
            # Workers may still play an evaluation that was aborted.
            self.close()
            raise
        return results

    def close(self) -> None:
        """End the processes; later calls do nothing. It may be called after a process has died."""
        for worker in self._workers:
            worker.connection.close()
            # A worker would notice this only after its evaluation, so it is killed; it has nothing to save.
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
                exit_code = worker.process.wait(_EXIT_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                problem = "does not respond"
            else:
                cause = signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"
                problem = f"died ({cause}); its output is above"
            raise EngineError(f"a worker process of {self._rules.env_factory.id} {problem}") from error


def _start_worker() -> _Worker:
    parent_socket, child_socket = socket.socketpair()
    with child_socket:
        command = [sys.executable, "-m", "llmrl.envs.gym.evaluator", str(child_socket.fileno())]
        # One core per worker: threads of NumPy's linear algebra would slow down the other workers.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(command, pass_fds=(child_socket.fileno(),), env=environment, stdin=subprocess.PIPE)
    return _Worker(process, Connection(parent_socket.detach()))


def _serve_evaluations(connection: Connection) -> None:
    """Play the episodes that the parent process requests, until it closes the connection."""
    sys.path[:], rules = pickle.loads(connection.recv_bytes())  # noqa: S301
    runner: EpisodeRunner | None = None
    while True:
        pickled_evaluation, episodes = connection.recv_bytes(), connection.recv()
        response: Any
        try:
            controller, candidates, seeds, n_games = pickle.loads(pickled_evaluation)  # noqa: S301
            runner = EpisodeRunner(rules, n_games) if runner is None else runner.resize(n_games)
            response = runner.play(controller, candidates, seeds, episodes)
        except (ConfigError, EngineError) as error:
            response = error
        except Exception as error:  # noqa: BLE001 (the parent process raises any error of a third-party environment)
            response = build_engine_error(rules.env_factory.id, "a worker process", error)
            response.add_note(traceback.format_exc())
        connection.send(response)


def _exit_after_parent() -> None:
    """End this process when its standard input is closed, which the end of the parent process causes."""
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
