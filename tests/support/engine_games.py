"""Games on the Melting Pot engine that report the full game state, as references for the native games.

The engine can start a game only once. A server process therefore builds each game and plays every episode in a fork.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.envs.melting_pot import worker
from llmrl.envs.substrate import install
from llmrl.envs.substrate.substrate_rules import (
    SUBSTRATES,
    build_definition,
    find_avatars,
    find_component,
    list_action_names,
)

LUA = Path(__file__).parents[1] / "envs" / "native" / "lua"
HEADINGS = "NESW"
PLAYER_FIELDS = (
    "reward",
    "cleaned",
    "zapped",
    "alive",
    "x",
    "y",
    "heading",
    "zap_wait",
    "clean_wait",
    "others_cleaned",
    "ready",
    "turn",
)
PRIVATE_CELLS = "0123456789abcde"
"""Map symbols of the start cells of individual players, in the order of players."""


@dataclass(frozen=True)
class GameSettings:
    """Settings of a game on the engine.

    Attributes:
        text: map; None for the map of Melting Pot. Digits mark the start cells of players, `P` the spawn cells to
            which they return.
        headings: initial heading of each player, like "NEWS"; None for those of the rules.
        clean: whether the whole river is clean at the start.
        under: map symbol of the terrain in the start cells.
    """

    substrate: str
    text: str | None = None
    n_agents: int = 7
    rules: str = "upstream"
    headings: str | None = None
    clean: bool = False
    under: str = " "

    @property
    def map(self) -> str:
        """Map without start cells of individual players, in the format of the native games."""
        text = self.text or install.import_substrate(SUBSTRATES[self.substrate].module_name)[1].ASCII_MAP
        if self.clean:
            text = text.replace("F", "H")
        return "".join(self.under if char in PRIVATE_CELLS else char for char in text).strip("\n")

    @property
    def actions(self) -> tuple[str, ...]:
        return list_action_names(self.substrate, self.rules)


@dataclass
class EngineState:
    """State of a game after a step, for N players, A apple sites, D dirt sites and R river cells.

    In a recording all arrays have time as their first axis; time 0 is the start of the episode.

    Attributes:
        reward, cleaned, zapped: apples eaten, cells cleaned and players zapped in the step, [N].
        alive: whether each player is in the game, [N] bool.
        x, y: position of each player, the last one for players out of the game, [N].
        heading: 0 north, 1 east, 2 south, 3 west, [N].
        zap_wait, clean_wait: frames until each beam is ready, [N].
        others_cleaned, ready: observations of the same names, [N].
        turn: rank of each player in the order of moves, from 1, [N].
        apple: whether each site has an apple, [A] bool.
        waits: number of neighboring apples that determines the growth probability of a site, -1 for none, [A].
        grew: whether an apple grew in this step, [A] bool.
        dry: whether the grass of the site has withered, [A] bool.
        dirt: whether each site is dirty, [D] bool.
        spilled: whether the site became dirty in this step, [D] bool.
        water: animation frame of each river cell, [R].
    """

    reward: np.ndarray
    cleaned: np.ndarray
    zapped: np.ndarray
    alive: np.ndarray
    x: np.ndarray
    y: np.ndarray
    heading: np.ndarray
    zap_wait: np.ndarray
    clean_wait: np.ndarray
    others_cleaned: np.ndarray
    ready: np.ndarray
    turn: np.ndarray
    apple: np.ndarray
    waits: np.ndarray
    grew: np.ndarray
    dry: np.ndarray
    dirt: np.ndarray
    spilled: np.ndarray
    water: np.ndarray

    @classmethod
    def parse(cls, report: np.ndarray, n_agents: int, sites: np.ndarray) -> EngineState:
        kinds = sites[:, 2]
        n_apples, n_dirt, n_water = ((kinds == kind).sum() for kind in (1, 2, 3))
        at = len(PLAYER_FIELDS) * n_agents
        values = report[:at].reshape(n_agents, -1).T
        arrays: dict[str, np.ndarray] = dict(zip(PLAYER_FIELDS, values, strict=True))
        arrays |= {name: value.astype(int) for name, value in arrays.items() if name != "ready"}
        arrays["alive"] = arrays["alive"] > 0
        apples = report[at : at + 4 * n_apples].reshape(-1, 4).astype(int).T
        at += 4 * n_apples
        dirt = report[at : at + 2 * n_dirt].reshape(-1, 2).astype(bool).T
        at += 2 * n_dirt
        arrays |= {"apple": apples[0] > 0, "waits": apples[1], "grew": apples[2] > 0, "dry": apples[3] > 0}
        arrays |= {"dirt": dirt[0], "spilled": dirt[1], "water": report[at : at + n_water].astype(int)}
        return cls(**{name: np.array(value) for name, value in arrays.items()})

    @classmethod
    def stack(cls, frames: Sequence[EngineState]) -> EngineState:
        return cls(**{f.name: np.stack([getattr(frame, f.name) for frame in frames]) for f in fields(cls)})


@dataclass
class Recording:
    """Recorded episode of T steps.

    Attributes:
        sites: x, y and kind of each site; kinds are 1 apple, 2 dirt, 3 water, [n_sites, 3].
        seen: game states, with T + 1 times.
        action: actions of all players, [T, N].
        ended: whether the engine ended the episode with the last step.
    """

    game_settings: GameSettings
    sites: np.ndarray
    states: EngineState
    action: np.ndarray
    ended: bool


Policy = Callable[[EngineState, np.random.Generator], np.ndarray]
"""Function from the game state to the actions of all players, [N] indices of `GameSettings.actions`."""


class RealGame:
    """Game on the engine whose `start` can be called only once per process."""

    def __init__(self, game_settings: GameSettings) -> None:
        dmlab2d, module = install.import_substrate(SUBSTRATES[game_settings.substrate].module_name)
        self.game_settings = game_settings
        self._lab = dmlab2d.Lab2d(
            importlib.import_module("dmlab2d.runfiles_helper").find(), _settings(game_settings, module)
        )
        names = list(self._lab.action_discrete_names())
        controls = list(module.ACTION_SET[0])
        upstream_actions = SUBSTRATES[game_settings.substrate].upstream_actions
        actions = [upstream_actions.index(action) for action in game_settings.actions]
        self._table = np.array([[module.ACTION_SET[action][c] for c in controls] for action in actions], dtype=np.int32)
        players = range(1, game_settings.n_agents + 1)
        self._columns = np.array([[names.index(f"{player}.{c}") for c in controls] for player in players])
        self._vector = np.zeros(len(names), dtype=np.int32)
        self._running = dmlab2d.RUNNING

    def start(self, seed: int) -> EngineState:
        self._lab.start(0, seed)
        self.sites = np.array(self._lab.observation("WORLD.SITES")).reshape(-1, 3).astype(int)
        return self._observe()

    def step(self, action: np.ndarray) -> tuple[EngineState, bool]:
        """Play a step and return the game state and whether the episode continues."""
        self._vector[self._columns] = self._table[action]
        self._lab.act_discrete(self._vector)
        status, _ = self._lab.advance()
        return self._observe(), bool(status == self._running)

    def _observe(self) -> EngineState:
        return EngineState.parse(
            np.array(self._lab.observation("WORLD.WITNESS")), self.game_settings.n_agents, self.sites
        )


@functools.cache
def _level_folder() -> Path:
    """Return a folder with links to the levels of the package and of the tests.

    The engine searches the modules of a level in a single folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="levels"))
    for path in worker.LUA_DIR.glob("*.lua"):
        name = f"watched_{path.name}" if (LUA / path.name).exists() else path.name
        (folder / name).symlink_to(path)
    for path in LUA.glob("*.lua"):
        (folder / path.name).symlink_to(path)
    return folder


def _settings(game_settings: GameSettings, module: Any) -> dict[str, str]:
    rows = game_settings.text.strip("\n").splitlines() if game_settings.text else []
    cells = {char: (x, y) for y, row in enumerate(rows) for x, char in enumerate(row) if char in PRIVATE_CELLS}

    definition = build_definition(
        module, game_settings.substrate, game_settings.n_agents, game_settings.rules, game_settings.map
    )
    simulation = definition["simulation"]
    simulation["scene"]["components"].append({"component": "Witness", "kwargs": {}})
    grid = [list(row) for row in simulation["map"].strip("\n").split("\n")]
    for index, avatar in enumerate(find_avatars(definition)):
        heading = game_settings.headings[index] if game_settings.headings else ""
        avatar["components"].append({"component": "Watched", "kwargs": {"heading": heading}})
        if PRIVATE_CELLS[index] in cells:
            x, y = cells[PRIVATE_CELLS[index]]
            grid[y][x] = PRIVATE_CELLS[index]
            point = copy.deepcopy(simulation["prefabs"]["spawn_point"])
            find_component(point, "StateManager")["stateConfigs"][0]["groups"] = [f"begin{index}"]
            simulation["prefabs"][f"begin{index}"] = point
            tile = simulation["charPrefabMap"][game_settings.under]
            tile = [tile] if isinstance(tile, str) else tile["list"]
            simulation["charPrefabMap"][PRIVATE_CELLS[index]] = {"type": "all", "list": [*tile, f"begin{index}"]}
            kwargs = find_component(avatar, "Avatar")
            kwargs["postInitialSpawnGroup"] = kwargs.get("postInitialSpawnGroup", "spawnPoints")
            kwargs["spawnGroup"] = f"begin{index}"
    simulation["map"] = "\n" + "\n".join("".join(row) for row in grid) + "\n"
    definition["levelDirectory"] = str(install.find_package_parent())
    definition["levelName"] = os.path.relpath(_level_folder() / definition["levelName"], install.find_package_parent())
    flat = importlib.import_module("dmlab2d.settings_helper").flatten_args(definition)
    return {key.replace("$", "."): str(value) for key, value in flat.items()}


@functools.cache
def _build_game(game_settings: GameSettings) -> RealGame:
    return RealGame(game_settings)


def run_in_fork(function: Callable[[], Any]) -> Any:
    """Call `function` in a fork of this process and return its result."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        code = 1
        try:
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(function(), pipe, protocol=5)
            code = 0
        finally:
            # sys.exit would run the exit handlers of pytest.
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the game died with exit code {code}"
    return pickle.loads(answer)  # noqa: S301  of our own child


@functools.cache
def _connect_server(process: int) -> Any:
    """Start the game server of the process with ID `process` and return the connection to it.

    Building a game takes seconds in a pytest worker and a tenth of a second in a small process; the cause is unknown.
    """
    parent_socket, child_socket = socket.socketpair()
    with child_socket:
        command = [sys.executable, "-c", f"from engine_games import serve; serve({child_socket.fileno()})"]
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        subprocess.Popen(command, pass_fds=[child_socket.fileno()], env={**os.environ, "PYTHONPATH": path})
    return parent_socket.makefile("rwb")


def _send(link: Any, message: object) -> None:
    pickle.dump(message, link, protocol=5)
    link.flush()


def serve(descriptor: int) -> None:
    """Build requested games and play each episode in a fork until the connection is closed."""
    link = socket.socket(fileno=descriptor).makefile("rwb")
    with contextlib.suppress(EOFError):
        while True:
            game_settings, seed = pickle.load(link)  # noqa: S301 (of the process that has started this one)
            game = _build_game(game_settings)
            if not (child := os.fork()):
                code = 1
                try:
                    _send(link, (game.start(seed), game.sites))
                    while (action := pickle.load(link)) is not None:  # noqa: S301
                        _send(link, game.step(action))
                    # The client waits for this message before its next request, which this fork must not read.
                    _send(link, None)
                    code = 0
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert code == 0, f"the game died with exit code {code}"


def play(game_settings: GameSettings, policy: Policy, steps: int, seed: int) -> Recording:
    """Play an episode of at most `steps` steps and return its recording."""
    rng, link = np.random.default_rng(seed), _connect_server(os.getpid())
    _send(link, (game_settings, seed))
    frame, sites = pickle.load(link)  # noqa: S301 (of our own child)
    frames, actions, going = [frame], [], True
    try:
        while going and len(actions) < steps:
            action = np.asarray(policy(frames[-1], rng))
            _send(link, action)
            frame, going = pickle.load(link)  # noqa: S301
            frames.append(frame)
            actions.append(action)
    finally:
        _send(link, None)
        pickle.load(link)  # noqa: S301
    return Recording(game_settings, sites, EngineState.stack(frames), np.array(actions), not going)


def play_script(game_settings: GameSettings, lines: Sequence[Sequence[str]], seed: int = 0) -> Recording:
    """Play an episode with given actions and return its recording.

    Args:
        lines: names of the actions of all players in each step; "" is noop.
    """
    table = np.array([[game_settings.actions.index(name or "noop") for name in line] for line in lines])
    steps = iter(table)
    return play(game_settings, lambda state, rng: next(steps), len(table), seed)


def uniform_policy(game_settings: GameSettings) -> Policy:
    """Return a policy in which all actions are equally probable."""
    return lambda state, rng: rng.integers(0, len(game_settings.actions), game_settings.n_agents)


def weighted_policy(weights: Sequence[float]) -> Policy:
    """Return a policy that samples actions with probabilities proportional to `weights`."""
    p = np.array(weights) / sum(weights)
    return lambda state, rng: rng.choice(len(p), len(state.alive), p=p)
