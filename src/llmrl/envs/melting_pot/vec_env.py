"""`MeltingPotEnv`: several Melting Pot games side by side, each in a worker process, as one `VecEnv`."""

from __future__ import annotations

import json
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.limits import PositiveInt
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvSpec
from llmrl.envs.mechanisms import Events, Mechanism, Settlement
from llmrl.envs.melting_pot import install
from llmrl.envs.melting_pot.layout import CENSUS, PIXELS, VECTOR, Layout
from llmrl.envs.melting_pot.rules import SUBSTRATES, Rules, SubstrateName, action_names, check_n_agents

log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
_EXIT_SECONDS = 5.0


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    link: socket.socket


class MeltingPotEnv:
    """Clean Up or Harvest on the Melting Pot engine.

    Observation channels: `pixels` [n_envs, n_agents, 88, 88, 3] uint8, `vector` [n_envs, n_agents, 1 or 2] float32 (see
    `layout.VECTOR`), and with a mechanism its current values, `mechanism` [n_envs, n_agents, d] float32, as they are. Players who have
    been zapped see black until they are back.

    An episode is truncated at the horizon. The end that the engine draws at random is a time limit too, so it is reported as
    truncation; nothing terminates. The same seed gives the same episode again while the workers live, and another one in another
    run: the engine's order of events depends on memory addresses.

    Args:
        substrate: `cleanup` or `harvest`.
        n_envs: games, and worker processes.
        seeds: the stream that episodes draw their seeds from.
        n_agents: players in a game.
        horizon: steps an episode; None leaves the end to the engine (1099 steps or more at random, at most 5000).
        rules: `upstream`, or `legislative` (see `rules.CHANGES`).
        observe: which channels every player sees beside `mechanism`.
        mechanism: what a principal sets, or None for plain rewards.
        render: whether `render` works: it costs a picture of the world at each step.

    Raises:
        EngineError: the engine is not installed or cannot run on this machine; later: a game died.
        ConfigError: values that the substrate cannot play.
    """

    def __init__(
        self,
        substrate: SubstrateName,
        n_envs: PositiveInt,
        seeds: Seeds,
        n_agents: PositiveInt = 7,
        horizon: PositiveInt | None = 1000,
        rules: Rules = "upstream",
        observe: list[Literal["pixels", "vector"]] | None = None,
        mechanism: Mechanism | None = None,
        render: bool = False,
    ) -> None:
        install.check()
        check_n_agents(n_agents, substrate, rules)
        self._facts = SUBSTRATES[substrate]
        if mechanism is not None and mechanism.needs_dirt and not self._facts.dirt:
            raise ConfigError(
                f"{type(mechanism).__name__} pays for cleaning, and {substrate} has no dirt: use BracketedTax or env=cleanup"
            )
        channels = tuple(dict.fromkeys(observe if observe is not None else ["pixels"]))
        self._layout = Layout(substrate, rules, n_envs, n_agents, channels, render)
        self._mechanism = mechanism
        self._horizon = horizon
        self._seeds = seeds
        self._episodes = [0] * n_envs
        self._workers: list[_Worker] = []
        self._memory: mmap.mmap | None = None
        self._arrays: dict[str, NDArray[Any]] = {}
        self._ended = np.ones(n_envs, dtype=bool)
        self._steps = np.zeros(n_envs, dtype=np.int64)
        self._present = np.ones((n_envs, n_agents), dtype=bool)
        self._apples = np.zeros(n_envs, dtype=np.float32)
        self._values = np.zeros((n_envs, 0), np.float32)
        if mechanism is not None:
            self._values = np.tile(mechanism.spec.low.astype(np.float32), (n_envs, 1))
        self.settlement: Settlement | None = None
        """How the mechanism settled the last step, with each player's exposure to its values; None without one."""
        self.spec = self._describe()

    def _describe(self) -> EnvSpec:
        layout, mechanism = self._layout, self._mechanism
        observation = {}
        if "pixels" in layout.channels:
            observation["pixels"] = Channel(PIXELS, "uint8", 0, 255)
        if "vector" in layout.channels:
            observation["vector"] = Channel((len(VECTOR[layout.substrate]),), "float32", 0, max(1, layout.n_agents - 1))
        metrics: dict[str, Aggregate] = {"apples_live": "last", "apples_eaten": "sum", "zaps": "sum"}
        if self._facts.dirt:
            metrics |= {"apples_regrown": "sum", "cells_cleaned": "sum", "cleaners": "sum", "dirt": "last"}
        if mechanism is not None:
            low, high = float(mechanism.spec.low.min()), float(mechanism.spec.high.max())
            observation["mechanism"] = Channel((mechanism.spec.dim,), "float32", low, high)
            metrics |= mechanism.metrics
        if not observation:
            raise ConfigError("observe is empty and there is no mechanism: players need a channel, e.g. observe=[pixels]")
        names = action_names(layout.substrate, layout.rules)
        return EnvSpec(
            name=layout.substrate,
            n_envs=layout.n_envs,
            n_agents=layout.n_agents,
            observation=observation,
            n_actions=len(names),
            action_names=names,
            horizon=self._horizon,
            mechanism=None if mechanism is None else mechanism.spec,
            metrics=metrics,
            deterministic=False,
        )

    def reset(self, mask: Array | None = None, seed: int | None = None) -> Observation:
        games = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        if seed is not None:
            self._seeds = Seeds(seed).child("melting_pot")
            self._episodes = [0] * self.spec.n_envs
        if not self._workers:
            self._start()
        elif seed is not None:
            for slot in range(self.spec.n_envs):
                self._arrays["seed"][slot] = self._next_seed(slot)
        self._exchange({int(slot): b"R" for slot in np.flatnonzero(games)})
        for slot in np.flatnonzero(games):
            # From here on the worker may get the episode after this one ready.
            self._episodes[slot] += 1
            self._arrays["seed"][slot] = self._next_seed(int(slot))
        census = self._census()
        self._ended[games], self._steps[games] = False, 0
        self._present[games] = census["present"][games] > 0
        self._apples[games] = census["apples_live"][games]
        if self._mechanism is not None:
            self._mechanism.reset(games)
        return self._observation()

    def step(self, action: Array) -> Step:
        if self._ended.all():
            raise ConfigError(f"every game of {self.spec.name} is over or has not begun: call reset() before step()")
        chosen = np.asarray(action)
        if chosen.shape != (self.spec.n_envs, self.spec.n_agents):
            wanted = [self.spec.n_envs, self.spec.n_agents]
            raise ValueError(f"actions of {self.spec.name} are {wanted} integers, got shape {list(chosen.shape)}")
        if chosen.min() < 0 or chosen.max() >= self.spec.n_actions:
            raise ValueError(f"actions of {self.spec.name} are 0 to {self.spec.n_actions - 1}, got {chosen.min()} to {chosen.max()}")
        live = ~self._ended
        self._arrays["action"][live] = chosen[live]
        self._steps[live] += 1
        last = self._steps >= self._horizon if self._horizon is not None else np.zeros_like(live)
        answers = self._exchange({int(slot): b"L" if last[slot] else b"S" for slot in np.flatnonzero(live)})
        for slot, answer in answers.items():
            self._ended[slot] = last[slot] or answer == b"E"
        return self._settle(live)

    def _settle(self, live: NDArray[np.bool_]) -> Step:
        census = {name: value * (live if value.ndim == 1 else live[:, None]) for name, value in self._census().items()}
        raw = census["reward"]
        cleaned = census["cleaned"] if self._facts.dirt else None
        eaten = raw.sum(axis=1)
        info = {"apples_live": census["apples_live"], "apples_eaten": eaten, "zaps": census["zapped"].sum(axis=1)}
        if cleaned is not None:
            info["apples_regrown"] = np.where(live, census["apples_live"] - self._apples + eaten, 0).astype(np.float32)
            info["cells_cleaned"] = cleaned.sum(axis=1)
            info["cleaners"] = (cleaned > 0).sum(axis=1).astype(np.float32)
            info["dirt"] = census["dirt"]
        base = reward = raw
        if self._mechanism is not None:
            self.settlement = self._mechanism.settle(Events(raw, cleaned, self._present & live[:, None]), self._values)
            base, reward = self.settlement.base_reward, self.settlement.reward(self._values)
            info |= self.settlement.metrics
        self._present = np.where(live[:, None], census["present"] > 0, self._present)
        self._apples = np.where(live, census["apples_live"], self._apples)
        return Step(self._observation(), reward, base, np.zeros_like(self._ended), self._ended.copy(), info)

    def _census(self) -> dict[str, NDArray[np.float32]]:
        """The last step's numbers by name: [n_envs, n_agents] for `layout.CENSUS`, [n_envs] for what is counted in the world."""
        census = self._arrays["census"].astype(np.float32)
        split = len(CENSUS) * self.spec.n_agents
        players = census[:, :split].reshape(self.spec.n_envs, self.spec.n_agents, len(CENSUS))
        numbers = {name: players[:, :, i] for i, name in enumerate(CENSUS)}
        return numbers | {name: census[:, split + i] for i, name in enumerate(self._facts.groups)}

    def _observation(self) -> Observation:
        """Copies, because the games write the next observation over this one."""
        observation = {name: self._arrays[name].copy() for name in self._layout.channels}
        if self._mechanism is not None:
            observation["mechanism"] = np.repeat(self._values[:, None, :], self.spec.n_agents, axis=1)
        return observation

    def set_mechanism(self, values: Array) -> None:
        if self._mechanism is None:
            raise ConfigError(f"{self.spec.name} runs without a mechanism: give it one, e.g. `env.mechanism` of its option file")
        checked = self._mechanism.spec.check(values).astype(np.float32)
        self._values = np.broadcast_to(checked, self._values.shape).copy()

    def set_context(self, context: int) -> None:
        raise ConfigError(f"{self.spec.name} has no contexts")

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """The whole world of game `index`, [168, 240, 3] for cleanup and [144, 192, 3] for harvest, uint8."""
        if "world" not in self._arrays:
            why = "render=false: set env.render=true" if not self._layout.render else "no episode has begun: call reset() first"
            raise ConfigError(f"{self.spec.name} has no picture to show: {why}")
        return np.array(self._arrays["world"][index])

    def state_dict(self) -> State:
        """How many episodes each game has begun, so that a resumed run does not replay seeds. A game cannot be saved."""
        return {"episodes": list(self._episodes), "seed": self._seeds.seed, "path": list(self._seeds._path)}

    def load_state_dict(self, state: State) -> None:
        self._seeds = Seeds(int(state["seed"]), tuple(int(key) for key in state["path"]))
        self._episodes = [int(count) for count in state["episodes"]]
        for slot in range(self.spec.n_envs if self._workers else 0):
            self._arrays["seed"][slot] = self._next_seed(slot)
        self._ended[:] = True

    def close(self) -> None:
        """End the games; may be called twice, and after a game has died."""
        for worker in self._workers:
            worker.link.close()
        for worker in self._workers:
            try:
                worker.process.wait(_EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
        self._workers = []
        self._ended[:] = True
        self._arrays, self._memory = {}, None  # unmapped with the last array that refers to it

    def _next_seed(self, slot: int) -> int:
        return self._seeds.child(f"game{slot}").integer(self._episodes[slot])

    def _start(self) -> None:
        """Start the workers. The shared memory has no name, so nothing is left behind however the processes end."""
        layout = self._layout
        descriptor = os.memfd_create("llmrl-melting-pot")
        try:
            os.truncate(descriptor, layout.nbytes)
            self._memory = mmap.mmap(descriptor, layout.nbytes)
            self._arrays = layout.views(self._memory)
            for slot in range(layout.n_envs):
                self._arrays["seed"][slot] = self._next_seed(slot)
                self._workers.append(self._spawn(slot, descriptor))
        finally:
            os.close(descriptor)

    def _spawn(self, slot: int, memory: int) -> _Worker:
        ours, theirs = socket.socketpair()
        ours.settimeout(_POLL_SECONDS)
        with theirs:
            command = [sys.executable, "-m", "llmrl.envs.melting_pot.worker", "--layout", json.dumps(self._layout.to_json())]
            command += ["--slot", str(slot), "--link", str(theirs.fileno()), "--memory", str(memory)]
            # One game is one core's work: threads of NumPy's linear algebra would only get in the way of fork.
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            process = subprocess.Popen(command, pass_fds=(theirs.fileno(), memory), env=environment, stdin=subprocess.DEVNULL)
        return _Worker(process, ours)

    def _exchange(self, orders: dict[int, bytes]) -> dict[int, bytes]:
        """Send one order to each of the games named, and wait for their answers."""
        for slot, order in orders.items():
            try:
                self._workers[slot].link.sendall(order)
            except OSError as error:
                raise self._died(slot) from error
        return {slot: self._answer(slot) for slot in orders}

    def _answer(self, slot: int) -> bytes:
        worker = self._workers[slot]
        while True:
            try:
                answer = worker.link.recv(1)
            except TimeoutError:
                # A worker that was killed leaves a child that keeps the socket open for a moment.
                if worker.process.poll() is None:
                    continue
                answer = b""
            except OSError:
                answer = b""
            if not answer:
                raise self._died(slot)
            return answer

    def _died(self, slot: int) -> EngineError:
        """The error for a dead game. The other games are ended: the batch cannot go on without it."""
        process = self._workers[slot].process
        try:
            code: int | str = process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = "unknown"
        number = -code if isinstance(code, int) and code < 0 else code - 128 if isinstance(code, int) and code > 128 else None
        cause = f"exit code {code}" + (f", {signal.Signals(number).name}" if number in set(signal.Signals) else "")
        where = f"after {int(self._steps[slot])} steps of episode {self._episodes[slot]}"
        self.close()
        return EngineError(
            f"game {slot} of {self.spec.n_envs} ({self.spec.name}) died {where} ({cause}); the messages of its process are above. "
            "Start the same command again: the run goes on from its newest checkpoint."
        )
