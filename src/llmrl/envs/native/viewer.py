"""Display of a game in a terminal or as PNG: `python -m llmrl.envs.native.viewer --substrate harvest --steps 20`."""

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
from llmrl.envs.native.cell_codes import CellCodes, assign_codes, content_of
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.env_spec import SubstrateSettings
from llmrl.envs.substrate.grid_text import BEAMS, CONTENTS
from llmrl.envs.substrate.maps import find

CONTENT_SYMBOLS = dict(zip(CONTENTS, " .,~x#a", strict=True))
"""Symbol of each content of a cell, as in the channel `text`."""
HEADING_SYMBOLS = "^>v<"
BEAM_SYMBOLS = dict(zip(BEAMS, " +*", strict=True))
_NAMES = "123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LEGEND = (
    ", ".join(f"{sign} {name}" for name, sign in CONTENT_SYMBOLS.items() if name != "outside")
    + "; players by number and heading; + a clean beam, * a zap"
)


def ascii_world(codes: CellCodes, cells: NDArray[np.integer]) -> str:
    """Return a world as text with two characters per cell: content or player, and heading or beam.

    Args:
        codes: meaning of the codes.
        cells: codes of the cells, [height, width].
    """
    ground, avatar, beam = (part[cells] for part in codes.parts())
    symbols = [CONTENT_SYMBOLS[CONTENTS[content_of(stack)]] for stack in codes.grounds]
    lines = []
    for row in zip(ground.tolist(), avatar.tolist(), beam.tolist(), strict=True):
        line = ""
        for kind, player, passes in zip(*row, strict=True):
            slot, heading = divmod(player - 1, 4)
            line += (
                _NAMES[slot % len(_NAMES)] + HEADING_SYMBOLS[heading]
                if player
                else symbols[kind] + BEAM_SYMBOLS[BEAMS[passes]]
            )
        lines.append(line.rstrip())
    return "\n".join(lines)


def save(picture: NDArray[np.uint8], file: Path) -> None:
    """Write an image [height, width, 3] uint8 as PNG, enlarged so that pixels are visible."""
    from PIL import Image

    Image.fromarray(enlarge(picture, 672)).save(file, format="PNG")


def main(argv: Sequence[str] | None = None) -> int:
    """Play random actions and print every step; the optional image shows the last step."""
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
    options = parser.parse_args(argv)
    try:
        _run(options)
    except (LlmrlError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.player is not None and not 1 <= options.player <= options.agents:
        raise ConfigError(f"--player {options.player} must be 1 to {options.agents}")
    game = SubstrateSettings(
        options.substrate,
        1,
        n_agents=options.agents,
        horizon=None,
        rules=options.rules,
        observe=["vector"] if options.player is None else ["pixels"],
        map=options.map,
    )
    env = NativeEnv(game, Seeds(options.seed), tiles=options.tiles)
    codes = assign_codes(find(options.substrate, options.map), options.agents)
    rng = np.random.default_rng(options.seed)
    observation, returns = env.reset(), np.zeros(options.agents)
    sys.stdout.write(f"{LEGEND}\n\nstart\n{ascii_world(codes, env.world_codes(0))}\n")
    for step in range(1, options.steps + 1):
        action = rng.integers(0, env.spec.n_actions, (1, options.agents))
        outcome = env.step(action)
        observation = outcome.observation
        returns += on_host(outcome.reward)[0]
        action_text = ", ".join(
            f"{_NAMES[i % len(_NAMES)]} {env.spec.action_names[choice]}" for i, choice in enumerate(action[0])
        )
        world = ascii_world(codes, env.world_codes(0))
        sys.stdout.write(
            f"\nstep {step}: {action_text}\n{world}\nreturns {' '.join(f'{total:g}' for total in returns)}\n"
        )
        if outcome.truncated[0] or outcome.terminated[0]:
            break
    if options.png is not None:
        image = env.render(0) if options.player is None else on_host(observation["pixels"])[0, options.player - 1]
        save(image, options.png)
    env.close()


if __name__ == "__main__":
    sys.exit(main())
