"""What holds of one environment as it was made, and of no other of its kind: its limit of steps, and arguments that
change its rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmrl.envs.gym.stock import limit_of

if TYPE_CHECKING:
    import gymnasium


def limit(env: gymnasium.Env[Any, Any]) -> str:
    """A sentence about the steps an episode may take; empty where they are not limited, or nobody knows."""
    steps = limit_of(env)
    return "" if steps is None else f"An episode ends after {steps} step{'s' * (steps != 1)} at the latest."


def rules(env: gymnasium.Env[Any, Any]) -> str:
    """Sentences about arguments of Gymnasium's environments that change their rules; empty where none does."""
    kind, given = type(env.unwrapped).__name__, {} if env.spec is None else env.spec.kwargs
    told = []
    if kind == "TaxiEnv" and given.get("is_rainy"):
        straight = float(given.get("rainy_probability", 0.8))
        told.append(
            f"It rains: a taxi that can drive goes where you want with probability {straight:g}, and otherwise to one "
            "of the two sides, at right angles to it, with equal probability."
        )
    if kind == "TaxiEnv" and given.get("fickle_passenger"):
        told.append(
            "In some episodes the passenger changes the destination, once, as soon as the taxi has moved after the "
            "pickup."
        )
    if kind == "LunarLander" and given.get("enable_wind"):
        told.append("There is wind, which pushes the lander to the sides and turns it, as long as no leg is down.")
    if kind == "BlackjackEnv" and given.get("natural") and not given.get("sab"):
        told.append("A win with an ace and a ten as your first two cards gives 1.5.")
    return " ".join(told)
