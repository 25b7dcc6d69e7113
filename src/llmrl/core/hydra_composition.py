"""Patches of Hydra's composition of configs: tables in option files, unlisted base files, and a cache of steps.

A table of an option file has rows of values, each for one option of another group.

    # treatment/props.yaml
    per_env:
      cartpole: {principal: {optimum: 500.0}}
      hopper: {agent: {clip_actions: false}}

With `env=cartpole`, the values of the row `cartpole` override the other values of the file. Later files of the defaults
list and the command line override both. The composed config contains the values of the row and no table. A file that
includes another one in its `defaults` inherits its table.

`${option:env}` in a value at the top level of a file stands for the name of the chosen option. Unlike
`${hydra:runtime.choices.env}`, it needs no `HydraConfig`, so the composed config can be resolved anywhere.

The cache is for sweeps, whose runs have most steps of composition in common: the reading of option files, the list of
chosen options, and the merge of their files. Values on the command line are set afterwards, in each config. The cache
returns copies, because Hydra modifies them.
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


TABLE_GROUPS: Mapping[str, str] = {"per_env": "env", "per_principal": "principal"}
"""Config group whose options name the rows of a table, by the table's key in option files."""
_OPTION_PATTERN = re.compile(r"\$\{option:(\w+)\}")


def resolve_table_key(key: Sequence[str], choices: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the config key that a key of an option file sets; None if the key is in a row of an option not chosen.

    >>> resolve_table_key(("per_env", "maze", "env", "horizon"), {"env": "maze"})
    ('env', 'horizon')
    >>> resolve_table_key(("per_env", "maze", "env", "horizon"), {"env": "nim"})
    >>> resolve_table_key(("env", "horizon"), {"env": "nim"})
    ('env', 'horizon')
    """
    if key[0] not in TABLE_GROUPS:
        return tuple(key)
    return tuple(key[2:]) or None if key[1:2] == (choices.get(TABLE_GROUPS[key[0]]),) else None


def read_chosen_options(defaults: Sequence[ResultDefault]) -> dict[str, str]:
    """Return the chosen option of each group in `TABLE_GROUPS`, by group, from a resolved defaults list."""
    choices = {}
    for default in defaults:
        group, _, name = (default.config_path or "").partition("/")
        is_base = (default.parent or "").startswith(f"{group}/")
        if group in TABLE_GROUPS.values() and default.package in ("", group) and not is_base:
            choices[group] = name
    return choices


def patch_table_merging() -> None:
    """Patch Hydra so that it merges the rows of tables. Further calls in this process do nothing."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    compose = ConfigLoaderImpl._compose_config_from_defaults_list
    if getattr(compose, "is_merging_tables", False):
        return

    @functools.wraps(compose)
    def compose_with_tables(
        self: ConfigLoaderImpl, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        return compose(self, defaults, _TableRepository(repo, read_chosen_options(defaults)))  # type: ignore[arg-type]

    compose_with_tables.is_merging_tables = True  # type: ignore[attr-defined]
    ConfigLoaderImpl._compose_config_from_defaults_list = compose_with_tables  # type: ignore[method-assign]


class _TableRepository:
    """Repository that returns option files with the rows of the chosen options instead of tables.

    It also replaces `${option:<group>}` by the name of the chosen option.
    """

    def __init__(self, repo: IConfigRepository, choices: Mapping[str, str]) -> None:
        self._repo, self._option_by_group = repo, choices

    def __getattr__(self, name: str) -> Any:
        return getattr(self._repo, name)

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Return the content of a file; None if there is none.

        Raises:
            ConfigError: a table is not a mapping of rows, a row is named after an unknown option, or
                `${option:<group>}` names a group without a chosen option.
        """
        from omegaconf import DictConfig

        source = self._repo.load_config(config_path=config_path)
        if source is None or not isinstance(source.config, DictConfig):
            return source
        for key, group in TABLE_GROUPS.items():
            if key in source.config:
                table = source.config.pop(key)
                self._check_table(table, f"{config_path}.yaml, {key}", group)
                if (row := table.get(self._option_by_group.get(group))) is not None:
                    source.config.merge_with(row)
        for name, value in source.config.items_ex(resolve=False):
            if isinstance(value, str) and _OPTION_PATTERN.search(value):
                source.config[name] = _OPTION_PATTERN.sub(
                    lambda match: self._get_chosen_option(match[1], config_path), value
                )
        return source

    def _get_chosen_option(self, group: str, config_path: str) -> str:
        """Return the name of the chosen option of a group.

        Raises:
            ConfigError: the config has no option of the group.
        """
        if group not in self._option_by_group:
            raise ConfigError(
                f"{config_path}.yaml: ${{option:{group}}} must name one of the groups "
                f"{', '.join(TABLE_GROUPS.values())} of which an option is chosen"
            )
        return self._option_by_group[group]

    def _check_table(self, table: Any, table_name: str, group: str) -> None:
        """Raise ConfigError for a table that is not a mapping of rows, and for a row of an unknown option."""
        from hydra.core.object_type import ObjectType
        from omegaconf import DictConfig

        if not isinstance(table, DictConfig):
            raise ConfigError(f"{table_name}: a table holds a row of values for each option of {group}=, not {table}")
        for name in map(str, table):
            if not self._repo.config_exists(f"{group}/{name}"):
                options = self._repo.get_group_options(group, ObjectType.CONFIG)
                raise ConfigError(f"{table_name}: {group} has no option '{name}'; it has: {', '.join(options)}")
            if not isinstance(table[name], DictConfig):
                raise ConfigError(f"{table_name}.{name}: a row is a mapping of keys to values, not {table[name]}")


_pickle_by_step: dict[Any, bytes] | None = None
"""Pickled results by name and arguments of the step; None outside of `cache_compositions`."""


@contextmanager
def cache_compositions() -> Iterator[None]:
    """Return a context in which composition steps with equal arguments are computed once; files must not change."""
    global _pickle_by_step
    _pickle_by_step = {}
    try:
        yield
    finally:
        _pickle_by_step = None


def compute_cached(key: Any, compute: Callable[[], Any]) -> Any:
    """Return a copy of the cached result of an earlier call with an equal key, or else the result of `compute`."""
    if _pickle_by_step is not None and key in _pickle_by_step:
        return pickle.loads(_pickle_by_step[key])  # noqa: S301 (this process pickled it)
    result = compute()
    if _pickle_by_step is not None:
        _pickle_by_step[key] = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)  # several times faster than copy.deepcopy
    return result


def list_source_keys(repository: Any) -> tuple[str, ...]:
    """Return the provider and path of each source of a repository of option files, as cache keys."""
    return tuple(f"{source.provider} {source.path}" for source in repository.get_sources())


def patch_step_caching() -> None:
    """Patch Hydra so that it caches files, lists and merges of options. Further calls in this process do nothing."""
    from hydra._internal import defaults_list
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import ConfigRepository

    list_defaults, load_config = defaults_list._create_defaults_list, ConfigRepository.load_config
    merge_files = ConfigLoaderImpl._compose_config_from_defaults_list
    if hasattr(list_defaults, "__wrapped__"):
        return

    @functools.wraps(list_defaults)
    def list_defaults_cached(repo: Any, config_name: str | None, overrides: Any, **flags: bool) -> Any:
        # `list_defaults` reads and completes these attributes. It does not read overrides of values.
        def copy_choices() -> dict[str, Any]:
            return {name: value for name, value in vars(overrides).items() if name != "config_overrides"}

        def compute() -> tuple[Any, dict[str, Any]]:
            return list_defaults(repo, config_name, overrides, **flags), copy_choices()

        key = ("list", list_source_keys(repo), config_name, pickle.dumps(copy_choices()), *flags.items())
        result, completed_choices = compute_cached(key, compute)
        vars(overrides).update(completed_choices)
        return result

    @functools.wraps(merge_files)
    def merge_files_cached(self: ConfigLoaderImpl, defaults: Any, repo: Any) -> Any:
        return compute_cached(
            ("merge", list_source_keys(repo), repr(defaults)), lambda: merge_files(self, defaults, repo)
        )

    @functools.wraps(load_config)
    def load_config_cached(self: ConfigRepository, config_path: str) -> Any:
        return compute_cached(("file", list_source_keys(self), config_path), lambda: load_config(self, config_path))

    ConfigRepository.load_config = load_config_cached  # type: ignore[method-assign]
    defaults_list._create_defaults_list = list_defaults_cached  # type: ignore[assignment]
    ConfigLoaderImpl._compose_config_from_defaults_list = merge_files_cached  # type: ignore[method-assign]


def patch_option_listing() -> None:
    """Patch Hydra so that it lists only options that can be chosen (`--help`, messages, completion, `glob(*)`).

    Further calls in this process do nothing.
    """
    from hydra._internal.config_repository import ConfigRepository

    list_options: Callable[..., list[str]] = ConfigRepository.get_group_options
    if hasattr(list_options, "__wrapped__"):
        return

    @functools.wraps(list_options)
    def list_choosable_options(self: ConfigRepository, group_name: str, *args: Any, **kwargs: Any) -> list[str]:
        return [name for name in list_options(self, group_name, *args, **kwargs) if is_choosable(name)]

    ConfigRepository.get_group_options = list_choosable_options  # type: ignore[method-assign]
