"""Whether and how an environment of Gymnasium draws itself."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.envs.registration import EnvSpec


def drawing_arguments(spec: EnvSpec) -> dict[str, Any]:
    """Arguments of `gymnasium.make` for pictures as arrays.

    Raises:
        ConfigError: the environment says that it draws none, or what it draws with cannot be loaded.
    """
    from gymnasium.envs.registration import load_env_creator

    mujoco = "envs.mujoco" in str(spec.entry_point)
    if mujoco and not _has_screen() and not os.environ.get("MUJOCO_GL"):
        # MuJoCo opens a window unless it is told how to draw without a screen.
        os.environ["MUJOCO_GL"] = "egl"
    try:
        creator = spec.entry_point if callable(spec.entry_point) else load_env_creator(str(spec.entry_point))
    except (ImportError, AttributeError, RuntimeError) as fault:
        if not mujoco or isinstance(fault, ModuleNotFoundError):
            raise
        # PyOpenGL says so with the attributes of a library that it did not find.
        raise ConfigError(_cannot(spec.id, fault)) from fault
    modes = getattr(creator, "metadata", {}).get("render_modes", [])
    if "rgb_array" not in modes:
        raise ConfigError(
            f"{spec.id} draws no pictures (its render modes: {', '.join(modes) or 'none'}), so there can be no video "
            "of it; leave --video out of llmrl-evaluate, or use play.videos=0 and env.render=false"
        )
    # Without a name what walks or swims leaves the picture.
    return {"render_mode": "rgb_array"} | ({"camera_name": "track"} if mujoco else {})


def check_draws(name: str, env: gymnasium.Env[Any, Any]) -> None:
    """Raise ConfigError, before anything is played, if a simulation of MuJoCo fails to draw."""
    if "envs.mujoco" not in type(env.unwrapped).__module__:
        return
    import mujoco

    env.reset(seed=0)
    try:
        env.render()
    except (mujoco.FatalError, ImportError, AttributeError, RuntimeError) as fault:
        raise ConfigError(_cannot(name, fault)) from fault


def _cannot(name: str, fault: BaseException) -> str:
    chosen = os.environ.get("MUJOCO_GL", "")
    return (
        f"{name} cannot be drawn with MUJOCO_GL={chosen or '(unset)'}: {type(fault).__name__}: {fault}. Without a "
        "screen set MUJOCO_GL=egl (a GPU's driver, or Debian's libegl1) or MUJOCO_GL=osmesa (libosmesa6); or make no "
        "videos (play.videos=0, env.render=false)"
    )


def _has_screen() -> bool:
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
