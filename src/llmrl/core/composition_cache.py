"""Cache of the steps in which Hydra composes a config, for sweeps whose runs have most of them in common.

The steps are the reading of option files, the list of the chosen options, and the merge of their files. Values on the
command line are set afterwards, in each config. Results are copies, because Hydra changes them.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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


def cached(key: Any, compute: Callable[[], Any]) -> Any:
    """Return the result of `compute`, or a copy of the result of an earlier call with an equal key, if it is cached."""
    if _results is not None and key in _results:
        return pickle.loads(_results[key])  # noqa: S301 (of this process)
    result = compute()
    if _results is not None:
        _results[key] = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)  # several times faster than copy.deepcopy
    return result


def sources_of(repository: Any) -> tuple[str, ...]:
    """Return a text for each source of a repository of option files."""
    return tuple(f"{source.provider} {source.path}" for source in repository.get_sources())


def cache_steps() -> None:
    """Make Hydra cache files, lists and merges of options.

    It patches Hydra once per process; further calls do nothing.
    """
    from hydra._internal import defaults_list
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import ConfigRepository

    create, compose = defaults_list._create_defaults_list, ConfigLoaderImpl._compose_config_from_defaults_list
    load = ConfigRepository.load_config
    if hasattr(create, "__wrapped__"):
        return

    @functools.wraps(create)
    def create_cached(repo: Any, config_name: str | None, overrides: Any, **flags: bool) -> Any:
        def choices() -> dict[str, Any]:  # `create` completes them; it does not read the overrides of values
            return {name: value for name, value in vars(overrides).items() if name != "config_overrides"}

        key = ("list", sources_of(repo), config_name, pickle.dumps(choices()), *flags.items())
        result, completed = cached(key, lambda: (create(repo, config_name, overrides, **flags), choices()))
        vars(overrides).update(completed)
        return result

    @functools.wraps(compose)
    def compose_cached(self: ConfigLoaderImpl, defaults: Any, repo: Any) -> Any:
        return cached(("merge", sources_of(repo), repr(defaults)), lambda: compose(self, defaults, repo))

    @functools.wraps(load)
    def load_cached(self: ConfigRepository, config_path: str) -> Any:
        return cached(("file", sources_of(self), config_path), lambda: load(self, config_path))

    ConfigRepository.load_config = load_cached  # type: ignore[method-assign]
    defaults_list._create_defaults_list = create_cached  # type: ignore[assignment]
    ConfigLoaderImpl._compose_config_from_defaults_list = compose_cached  # type: ignore[method-assign]
