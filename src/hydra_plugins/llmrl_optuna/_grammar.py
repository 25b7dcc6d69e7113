"""Conversion of sweep overrides in Hydra's grammar to a search space of Optuna.

Hydra's plugin discovery imports all modules of `hydra_plugins` except those whose names begin with an underscore.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer

from hydra_plugins.llmrl_optuna import SEED
from llmrl.core.errors import ConfigError
from llmrl.tuning.space import check_optuna

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_EXAMPLE = "'agent.ppo.learning_rate=tag(log,interval(1e-5,1e-2))'"


@dataclass(frozen=True)
class SearchRequest:
    """The search space and the fixed overrides of a command line.

    Attributes:
        space: distributions of the searched keys.
        fixed: overrides of other keys.
        seeds: seeds of each trial; None: no override sets the seed.
    """

    space: dict[str, BaseDistribution]
    fixed: list[str]
    seeds: list[str] | None


def parse_search_request(arguments: Sequence[str], loader: ConfigLoader) -> SearchRequest:
    """Return the search of a command line; the last override of a key replaces earlier ones.

    Raises:
        ConfigError: no key is searched, a key cannot be searched, or Optuna is not installed.
    """
    check_optuna()
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(list(arguments))
    override_by_key = {override.get_key_element(): override for override in overrides}
    seeds = _parse_seeds(override_by_key.pop(SEED, None))
    space = {key: _parse_distribution(key, o, loader) for key, o in override_by_key.items() if o.is_sweep_override()}
    if not space:
        raise ConfigError(
            f"hydra/sweeper=optuna has nothing to search; sweep a key other than {SEED}, such as {_EXAMPLE}, or leave "
            "out hydra/sweeper"
        )
    # The original text includes quotes, so that Hydra can parse it again.
    fixed = [str(o.input_line) for o in override_by_key.values() if not o.is_sweep_override()]
    return SearchRequest(space, fixed, seeds)


def _parse_seeds(override: Override | None) -> list[str] | None:
    if override is None:
        return None
    if override.is_interval_sweep():
        raise ConfigError(f"{SEED} is not searched: every trial runs all seeds. Name them: {SEED}=0,1,2")
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    return list(dict.fromkeys(override.sweep_string_iterator()))


def _parse_distribution(key: str, override: Override, loader: ConfigLoader) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    tags = set(getattr(value, "tags", ()))
    if tags - {"log"}:
        raise ConfigError(f"{key} is tagged {', '.join(sorted(tags - {'log'}))}; the only tag known here is log")
    if not isinstance(value, IntervalSweep | RangeSweep):
        if tags:
            raise ConfigError(f"{key} chooses between values, which have no scale; leave out the tag log")
        # The order of `shuffle(...)` is ignored, because it would give a different search space each time.
        if isinstance(value, ChoiceSweep):
            options = [Transformer.str(option) for option in value.list]
        else:
            options = list(override.sweep_string_iterator())
        if not options:
            raise ConfigError(f"{key} has no values to choose from; give at least one, as in choice(1,10)")
        return CategoricalDistribution(tuple(dict.fromkeys(options)))
    if option_names := loader.get_group_options(override.key_or_group):
        raise ConfigError(f"{key} chooses a part, not a number; name the options: {key}={','.join(option_names)}")
    low, high, step = _parse_bounds(key, value)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ConfigError(f"{key} is searched from {low:g} to {high:g}; give two finite numbers")
    try:
        if isinstance(low, int) and isinstance(high, int) and isinstance(step, int | None):
            return IntDistribution(low, high, log="log" in tags, step=step or 1)
        return FloatDistribution(low, high, log="log" in tags, step=step)
    except ValueError as error:
        raise ConfigError(f"{key} cannot be searched from {low:g} to {high:g}: {error}") from error


def _parse_bounds(key: str, sweep: IntervalSweep | RangeSweep) -> tuple[float, float, float | None]:
    """Return the lowest and highest number of a sweep, and the step, None without one. A range excludes its end."""
    if isinstance(sweep, IntervalSweep):
        assert sweep.start is not None and sweep.end is not None
        return sweep.start, sweep.end, None
    values = sorted(sweep.range()) if sweep.step else []
    if not values:
        raise ConfigError(f"{key}=range({sweep.start},{sweep.stop},{sweep.step}) is empty")
    return values[0], values[-1], abs(sweep.step)
