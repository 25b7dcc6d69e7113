"""Conversion of Hydra's sweep grammar to a search space.

The underscore in its name hides this module from Hydra's scan for plugins, which would import it in every command.

Named with an underscore, so that Hydra's scan for plugins does not import it on every command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer

from hydra_plugins.llmrl_optuna import SEED
from llmrl.core.errors import ConfigError
from llmrl.tuning.space import CategoricalChoice, Dimension, NumericRange

_EXAMPLE = "'agent.ppo.learning_rate=tag(log,interval(1e-5,1e-2))'"


@dataclass(frozen=True)
class SearchRequest:
    """The search that a command line describes.

    Attributes:
        space: searched dimensions by key.
        fixed: other overrides as typed.
        seeds: seeds of each trial; None: not given.
    """

    space: dict[str, Dimension]
    fixed: list[str]
    seeds: list[str] | None


def read(arguments: Sequence[str], loader: ConfigLoader) -> SearchRequest:
    """Return the search that a command line describes; of several overrides of one key the last counts.

    Raises:
        ConfigError: nothing is searched, or something cannot be.
    """
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(arguments))
    last = {override.get_key_element(): override for override in parsed}
    seeds = _seeds(last.pop(SEED, None))
    space = {key: _dimension(key, o, loader) for key, o in last.items() if o.is_sweep_override()}
    if not space:
        raise ConfigError(
            f"hydra/sweeper=optuna has nothing to search; sweep a key other than {SEED}, such as {_EXAMPLE}, or leave "
            "out hydra/sweeper"
        )
    # As typed, including quotes, so that Hydra can parse them again.
    return SearchRequest(space, [str(o.input_line) for o in last.values() if not o.is_sweep_override()], seeds)


def _seeds(override: Override | None) -> list[str] | None:
    if override is None:
        return None
    if override.is_interval_sweep():
        raise ConfigError(f"{SEED} is not searched: every trial runs all seeds. Name them: {SEED}=0,1,2")
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    return list(dict.fromkeys(override.sweep_string_iterator()))


def _dimension(key: str, override: Override, loader: ConfigLoader) -> Dimension:
    value = override.value()
    tags = set(getattr(value, "tags", ()))
    if tags - {"log"}:
        raise ConfigError(f"{key} is tagged {', '.join(sorted(tags - {'log'}))}; the only tag known here is log")
    dimension: Dimension
    if isinstance(value, IntervalSweep | RangeSweep):
        if parts := loader.get_group_options(override.key_or_group):
            raise ConfigError(f"{key} chooses a part, not a number; name the options: {key}={','.join(parts)}")
        dimension = _interval(value) if isinstance(value, IntervalSweep) else _range(key, value)
    else:
        if tags:
            raise ConfigError(f"{key} chooses between values, which have no scale; leave out the tag log")
        # Not in shuffled order, which would be another search space each time.
        if isinstance(value, ChoiceSweep):
            options = [Transformer.str(option) for option in value.list]
        else:
            options = list(override.sweep_string_iterator())
        dimension = CategoricalChoice(tuple(dict.fromkeys(options)))
    dimension.check(key)
    return dimension


def _interval(sweep: IntervalSweep) -> NumericRange:
    assert sweep.start is not None and sweep.end is not None
    is_integer = isinstance(sweep.start, int) and isinstance(sweep.end, int)  # int(interval(1, 8))
    return NumericRange(sweep.start, sweep.end, log="log" in sweep.tags, integer=is_integer)


def _range(key: str, sweep: RangeSweep) -> NumericRange:
    """Return the dimension of Hydra's range, which excludes its end."""
    values = sorted(sweep.range()) if sweep.step else []
    if not values:
        raise ConfigError(f"{key}=range({sweep.start},{sweep.stop},{sweep.step}) is empty")
    is_integer = all(isinstance(value, int) for value in values)
    return NumericRange(values[0], values[-1], abs(sweep.step), "log" in sweep.tags, is_integer)
