"""Makes the small pictures of environments that README and documentation show, in `docs/figures/env_<name>.png`.

    python scripts/pictures.py

Each is a frame of an episode in which agents act at random, so it is the same whenever the script runs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import llmrl

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SIZE = 160
"""Height of a picture, pixels."""
DRAWN_ON_DEMAND = ("goto_local", "taxi", "cartpole")
"""Environments that draw only where they were asked to be able to."""
STEPS = {"harvest": 60, "fishery": 2, "simple_doorkey": 60, "goto_local": 4, "taxi": 3, "cartpole": 12}
"""Environment -> steps until its frame."""


def frame(name: str, steps: int) -> np.ndarray:
    """Return what an environment looks like after that many random steps, [height, width, 3] uint8."""
    env = llmrl.make_env(name, n_envs=1, **({"render": True} if name in DRAWN_ON_DEMAND else {}))
    env.reset(seed=1)
    rng = np.random.default_rng(1)
    for _ in range(steps):
        env.step(rng.integers(env.spec.n_actions, size=(1, env.spec.n_agents)))
    return np.asarray(env.render(0))


def main() -> None:
    """Write all pictures."""
    for name, steps in STEPS.items():
        picture = Image.fromarray(frame(name, steps))
        width = round(picture.width * SIZE / picture.height)
        small = picture.resize((width, SIZE), Image.Resampling.LANCZOS).quantize(64)
        small.save(FIGURES / f"env_{name}.png", optimize=True)


if __name__ == "__main__":
    main()
