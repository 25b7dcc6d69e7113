"""Changes to the composition of configs by Hydra: tables in option files, hidden bases, and a cache of steps.

Tables are the values that an option file sets for single options of another group.

    # treatment/props.yaml
    per_env:
      cartpole: {principal: {optimum: 500.0}}
      hopper: {agent: {clip_actions: false}}

With `env=cartpole` the file holds the row `cartpole` in addition to its other values; the row comes last. Files that
follow in the defaults list, and the command line, override it as they override the rest of the file. The composed
config has the values of the row and no table. A file that includes another one in its `defaults` inherits its table.

`${option:env}` in a value at the top level of a file stands for the name of the chosen option. Unlike
`${hydra:runtime.choices.env}`, it needs no `HydraConfig`, so the composed config can be resolved anywhere.

The cache is for sweeps whose runs have most steps in common: the reading of option files, the list of the chosen
options, and the merge of their files. Values on the command line are set afterwards, in each config. Results are
copies, because Hydra changes them.
"""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError
from llmrl.core.option_files import is_choosable

if TYPE_CHECKING:
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import IConfigRepository
    from hydra.core.default_element import ResultDefault
    from hydra.plugins.config_source import ConfigResult
    from omegaconf import DictConfig


TABLES: Mapping[str, str] = {"per_env": "env", "per_principal": "principal"}
"""Key of a table -> the config group whose options name its rows."""
_OPTION = re.compile(r"\$\{option:(\w+)\}")


def resolve_table_key(key: Sequence[str], choices: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the key of a config that a key of an option file sets; None for a key in a row that does not apply.

    >>> resolve_table_key(("per_env", "maze", "env", "horizon"), {"env": "maze"})
    ('env', 'horizon')
    >>> resolve_table_key(("per_env", "maze", "env", "horizon"), {"env": "nim"})
    >>> resolve_table_key(("env", "horizon"), {"env": "nim"})
    ('env', 'horizon')
    """
    if key[0] not in TABLES:
        return tuple(key)
    return tuple(key[2:]) or None if key[1:2] == (choices.get(TABLES[key[0]]),) else None


def read_choices(defaults: Sequence[ResultDefault]) -> dict[str, str]:
    """Return the chosen option of each group in `TABLES` in a resolved defaults list."""
    choices = {}
    for default in defaults:
        group, _, name = (default.config_path or "").partition("/")
        is_base = (default.parent or "").startswith(f"{group}/")
        if group in TABLES.values() and default.package in ("", group) and not is_base:
            choices[group] = name
    return choices


def merge_tables() -> None:
    """Make Hydra merge the rows of tables. It patches Hydra once per process; further calls do nothing."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    compose = ConfigLoaderImpl._compose_config_from_defaults_list
    if getattr(compose, "merges_tables", False):
        return

    @functools.wraps(compose)
    def with_rows(self: ConfigLoaderImpl, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        return compose(self, defaults, _RowRepository(repo, read_choices(defaults)))  # type: ignore[arg-type]

    with_rows.merges_tables = True  # type: ignore[attr-defined]
    ConfigLoaderImpl._compose_config_from_defaults_list = with_rows  # type: ignore[method-assign]


class _RowRepository:
    """Option files with rows and names of chosen options in place of tables and of `${option:<group>}`."""

    def __init__(self, repo: IConfigRepository, choices: Mapping[str, str]) -> None:
        self._repo, self._choices = repo, choices

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repo, name)

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return the content of a file; None if there is none.

        Raises:
            ConfigError: a table is not a mapping of rows, a row has the name of no option, or no option is chosen of a
                group whose option's name is asked for.
        """
        from omegaconf import DictConfig

        source = self._repo.load_config(config_path=config_path)
        if source is None or not isinstance(source.config, DictConfig):
            return source
        for key, group in TABLES.items():
            if key in source.config:
                table = source.config.pop(key)
                self._check(table, f"{config_path}.yaml, {key}", group)
                if (row := table.get(self._choices.get(group))) is not None:
                    source.config.merge_with(row)
        for name, value in source.config.items_ex(resolve=False):
            if isinstance(value, str) and _OPTION.search(value):
                source.config[name] = _OPTION.sub(lambda match: self._option(match[1], config_path), value)
        return source

    def _option(self, group: str, config_path: str) -> str:
        """Return the name of the chosen option of a group.

        Raises:
            ConfigError: the config has no option of the group.
        """
        if group not in self._choices:
            raise ConfigError(
                f"{config_path}.yaml: ${{option:{group}}} must name one of the groups {', '.join(TABLES.values())} "
                "of which an option is chosen"
            )
        return self._choices[group]

    def _check(self, table: Any, place: str, group: str) -> None:
        """Raise ConfigError for a table that is not a mapping of rows, and for a row of an unknown option."""
        from hydra.core.object_type import ObjectType
        from omegaconf import DictConfig

        if not isinstance(table, DictConfig):
            raise ConfigError(f"{place}: a table holds a row of values for each option of {group}=, not {table}")
        for name in map(str, table):
            if not self._repo.config_exists(f"{group}/{name}"):
                options = self._repo.get_group_options(group, ObjectType.CONFIG)
                raise ConfigError(f"{place}: {group} has no option '{name}'; it has: {', '.join(options)}")
            if not isinstance(table[name], DictConfig):
                raise ConfigError(f"{place}.{name}: a row is a mapping of keys to values, not {table[name]}")


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


def hide_bases() -> None:
    """Make Hydra list only options that can be chosen (`--help`, messages, completion, `glob(*)`).

    It patches Hydra once per process; further calls do nothing.
    """
    from hydra._internal.config_repository import ConfigRepository

    list_options: Callable[..., list[str]] = ConfigRepository.get_group_options
    if hasattr(list_options, "__wrapped__"):
        return

    @functools.wraps(list_options)
    def list_choosable(self: ConfigRepository, group_name: str, *args: Any, **kwargs: Any) -> list[str]:
        return [name for name in list_options(self, group_name, *args, **kwargs) if is_choosable(name)]

    ConfigRepository.get_group_options = list_choosable  # type: ignore[method-assign]
