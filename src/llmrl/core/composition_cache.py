"""Cache of the steps in which Hydra composes a config, for sweeps whose runs have most of them in common.

The steps are the reading of option files, the list of the options, and their merge. The values on the command line are
set afterwards, in each config. Results are copies, because Hydra changes them.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import IConfigRepository
    from hydra._internal.defaults_list import DefaultsTreeNode, Overrides
    from hydra.core.default_element import ResultDefault
    from omegaconf import DictConfig

Result = TypeVar("Result")

_results: dict[Any, bytes] | None = None
"""Pickled results by step and arguments; None outside of `cache_compositions`."""


@contextmanager
def cache_compositions() -> Iterator[None]:
    """Return a context in which equal steps of compositions are computed once; option files must not change."""
    global _results
    _results = {}
    try:
        yield
    finally:
        _results = None


def is_active() -> bool:
    """Return whether results are cached."""
    return _results is not None


def cached(key: Any, compute: Callable[[], Result]) -> Result:
    """Return the result of `compute`, a copy of that of an earlier call with an equal key if results are cached."""
    if _results is None:
        return compute()
    if key in _results:
        return pickle.loads(_results[key])  # type: ignore[no-any-return]  # noqa: S301 (of this process)
    result = compute()
    _results[key] = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)  # several times faster than copy.deepcopy
    return result


def sources_of(repository: IConfigRepository) -> tuple[str, ...]:
    """Return a text for each source of a repository of option files."""
    return tuple(f"{source.provider} {source.path}" for source in repository.get_sources())


def cache_steps() -> None:
    """Make Hydra cache lists and merges of options. It patches Hydra once per process; further calls do nothing."""
    from hydra._internal import defaults_list
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    create, compose = defaults_list._create_defaults_list, ConfigLoaderImpl._compose_config_from_defaults_list
    if hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def create_cached(
        repo: IConfigRepository, config_name: str | None, overrides: Overrides, prepend_hydra: bool, skip_missing: bool
    ) -> tuple[list[ResultDefault], DefaultsTreeNode]:
        # All but the overrides of values, which do not change the list.
        choices = {name: value for name, value in vars(overrides).items() if name != "config_overrides"}

        def compute() -> tuple[dict[str, Any], tuple[list[ResultDefault], DefaultsTreeNode]]:
            result = create(repo, config_name, overrides, prepend_hydra, skip_missing)
            return choices, result  # which `create` has completed

        key = ("list", sources_of(repo), config_name, pickle.dumps(choices), prepend_hydra, skip_missing)
        completed, result = cached(key, compute)
        vars(overrides).update(completed)
        return result

    @functools.wraps(compose)
    def compose_cached(self: ConfigLoaderImpl, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        return cached(("merge", sources_of(repo), repr(defaults)), lambda: compose(self, defaults, repo))

    defaults_list._create_defaults_list = create_cached
    ConfigLoaderImpl._compose_config_from_defaults_list = compose_cached  # type: ignore[method-assign]
