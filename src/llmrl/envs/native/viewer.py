"""A look at a game in a terminal, or as a PNG: `python -m llmrl.envs.native.viewer --substrate harvest --steps 20`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError, LlmrlError
from llmrl.core.frames import enlarge
from llmrl.core.records import on_host
from llmrl.core.seeding import Seeds
from llmrl.envs.melting_pot.env_spec import SubstrateSettings
from llmrl.envs.melting_pot.grid_text import BEAMS, THINGS
from llmrl.envs.native.cell_codes import CellCodes, number, thing_of
from llmrl.envs.native.maps import find
from llmrl.envs.native.vec_env import NativeEnv

SIGNS = dict(zip(THINGS, " .,~x#a", strict=True))
"""What lies on a cell, as in the channel `text`."""
ARROWS = "^>v<"
MARKS = dict(zip(BEAMS, " +*", strict=True))
_NAMES = "123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LEGEND = (
    ", ".join(f"{sign} {thing}" for thing, sign in SIGNS.items() if thing != "outside")
    + "; players by number and heading; + a clean beam, * a zap"
)


def ascii_world(codes: CellCodes, cells: NDArray[np.integer]) -> str:
    """A world in two letters a cell: what lies there or who stands there, and its heading or a beam.

    Args:
        codes: what the numbers mean.
        cells: codes of the cells, [height, width].
    """
    ground, avatar, beam = (part[cells] for part in codes.parts())
    things = [SIGNS[THINGS[thing_of(stack)]] for stack in codes.grounds]
    lines = []
    for row in zip(ground.tolist(), avatar.tolist(), beam.tolist(), strict=True):
        line = ""
        for what, who, passes in zip(*row, strict=True):
            slot, heading = divmod(who - 1, 4)
            line += _NAMES[slot % len(_NAMES)] + ARROWS[heading] if who else things[what] + MARKS[BEAMS[passes]]
        lines.append(line.rstrip())
    return "\n".join(lines)


def save(picture: NDArray[np.uint8], file: Path) -> None:
    """Write a picture [height, width, 3] uint8 as PNG, enlarged so that pixels can be seen."""
    from PIL import Image

    Image.fromarray(enlarge(picture, 672)).save(file, format="PNG")


def main(argv: Sequence[str] | None = None) -> int:
    """Play at random and show every step; the pictures are of the last."""
    parser = argparse.ArgumentParser(prog="python -m llmrl.envs.native.viewer", description=main.__doc__)
    parser.add_argument("--substrate", choices=("cleanup", "harvest"), default="cleanup", help="which game")
    parser.add_argument("--steps", type=int, default=20, help="steps to play")
    parser.add_argument("--seed", type=int, default=0, help="of the game and of the actions")
    parser.add_argument("--agents", type=int, default=7, help="players")
    parser.add_argument("--rules", choices=("upstream", "legislative"), default="upstream", help="whose rules")
    parser.add_argument("--map", default="auto", help="a map, as for env.map: auto, melting_pot, own or a file")
    parser.add_argument("--tiles", default="auto", help="whose pictures, as for env.tiles: auto, melting_pot or plain")
    parser.add_argument("--png", type=Path, metavar="FILE", help="write the world of the last step as a picture")
    parser.add_argument("--player", type=int, metavar="N", help="write what player N (from 1) sees instead")
    chosen = parser.parse_args(argv)
    try:
        _show(chosen)
    except (LlmrlError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _show(chosen: argparse.Namespace) -> None:
    if chosen.player is not None and not 1 <= chosen.player <= chosen.agents:
        raise ConfigError(f"--player {chosen.player}: players are 1 to {chosen.agents}")
    game = SubstrateSettings(
        chosen.substrate,
        1,
        n_agents=chosen.agents,
        horizon=None,
        rules=chosen.rules,
        observe=["vector"] if chosen.player is None else ["pixels"],
        map=chosen.map,
    )
    env = NativeEnv(game, Seeds(chosen.seed), tiles=chosen.tiles)
    codes = number(find(chosen.substrate, chosen.map), chosen.agents)
    rng = np.random.default_rng(chosen.seed)
    observation, returns = env.reset(), np.zeros(chosen.agents)
    sys.stdout.write(f"{LEGEND}\n\nstart\n{ascii_world(codes, env.world_codes(0))}\n")
    for step in range(1, chosen.steps + 1):
        action = rng.integers(0, env.spec.n_actions, (1, chosen.agents))
        taken = env.step(action)
        observation = taken.observation
        returns += on_host(taken.reward)[0]
        did = ", ".join(f"{_NAMES[i % len(_NAMES)]} {env.spec.action_names[a]}" for i, a in enumerate(action[0]))
        world = ascii_world(codes, env.world_codes(0))
        sys.stdout.write(f"\nstep {step}: {did}\n{world}\nreturns {' '.join(f'{each:g}' for each in returns)}\n")
        if taken.truncated[0] or taken.terminated[0]:
            break
    if chosen.png is not None:
        seen = env.render(0) if chosen.player is None else on_host(observation["pixels"])[0, chosen.player - 1]
        save(seen, chosen.png)
    env.close()


if __name__ == "__main__":
    sys.exit(main())
