"""The search space of tuning: Optuna's distributions by key, and their values as text for Hydra overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_SIGNIFICANT_DIGITS = 6
"""Significant digits of real values in overrides; more digits would only lengthen the names of run folders."""

SearchSpace = Mapping[str, "BaseDistribution"]
"""Distributions by the left-hand side of an override, such as `agent.ppo.epochs`, `principal` or `+agent.extra`. The
choices of a categorical distribution are right-hand sides of overrides."""


def check_optuna() -> None:
    """Raise ConfigError if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("a hyperparameter search needs Optuna: pip install 'llmrl[tuning]'") from error


def format_overrides(space: SearchSpace, parameters: Mapping[str, Any]) -> list[str]:
    """Return the Hydra overrides that set `parameters` (values by key), in the order of the space."""
    return [f"{key}={format_value(distribution, parameters[key])}" for key, distribution in space.items()]


def format_value(distribution: BaseDistribution, value: Any) -> str:
    """Return a value as the right-hand side of an override, with all digits if rounding would leave the bounds."""
    if not isinstance(value, float):
        return str(value)
    low, high = vars(distribution)["low"], vars(distribution)["high"]
    text = f"{value:.{_SIGNIFICANT_DIGITS}g}"
    return text if low <= float(text) <= high else repr(float(value))


def list_options(distribution: BaseDistribution) -> list[str]:
    """Return all choices of a categorical distribution, or only the lower bound of a range, as in overrides."""
    from optuna.distributions import CategoricalDistribution

    if isinstance(distribution, CategoricalDistribution):
        return [str(option) for option in distribution.choices]
    return [format_value(distribution, vars(distribution)["low"])]


def describe_distribution(distribution: BaseDistribution) -> str:
    """Return a distribution as text, such as `numbers from 0 to 0.1, log scale`."""
    from optuna.distributions import FloatDistribution, IntDistribution

    if not isinstance(distribution, FloatDistribution | IntDistribution):
        return f"one of {', '.join(list_options(distribution))}"
    is_integer = isinstance(distribution, IntDistribution)
    step = "" if distribution.step is None or (is_integer and distribution.step == 1) else distribution.step
    step_text = f" in steps of {step:g}" if step else ""
    kind = "whole numbers" if is_integer else "numbers"
    bounds = f"from {distribution.low:.{_SIGNIFICANT_DIGITS}g} to {distribution.high:.{_SIGNIFICANT_DIGITS}g}"
    return f"{kind} {bounds}{step_text}{', log scale' if distribution.log else ''}"
