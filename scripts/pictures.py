"""Create the images of environments in the README and the documentation, `docs/figures/env_<name>.png`.

    python scripts/pictures.py

Each image is a frame of an episode with random actions and a fixed seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import llmrl

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
HEIGHT = 160
"""Height of an image, pixels."""
RENDER_OPTION_ENVS = ("goto_local", "taxi", "cartpole")
"""Environments that render only with `render=True`."""
STEPS = {"harvest": 60, "fishery": 2, "simple_doorkey": 60, "goto_local": 4, "taxi": 3, "cartpole": 12}
"""Number of steps before the frame, by environment."""


def render_frame(name: str, steps: int) -> np.ndarray:
    """Return the frame of an environment after random steps, [height, width, 3] uint8."""
    env = llmrl.make_env(name, n_envs=1, **({"render": True} if name in RENDER_OPTION_ENVS else {}))
    env.reset(seed=1)
    rng = np.random.default_rng(1)
    for _ in range(steps):
        env.step(rng.integers(env.spec.n_actions, size=(1, env.spec.n_agents)))
    return np.asarray(env.render(0))


def main() -> None:
    """Write all images."""
    for name, steps in STEPS.items():
        image = Image.fromarray(render_frame(name, steps))
        width = round(image.width * HEIGHT / image.height)
        thumbnail = image.resize((width, HEIGHT), Image.Resampling.LANCZOS).quantize(64)
        thumbnail.save(FIGURES / f"env_{name}.png", optimize=True)


if __name__ == "__main__":
    main()
