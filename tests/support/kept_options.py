"""Cache of config compositions for tests.

Shipped option files are read, listed and merged once per process, with libyaml.

Most tests compose a config, and Hydra spends most of that time on finding about thirty files, reading them, converting
them to OmegaConf nodes and merging these. The cache replaces private functions of Hydra and is therefore not part of
the package. `tests/config/test_kept_options.py` compares cached configs with those of unmodified Hydra, which commands
in separate processes use.
"""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.config_source import ConfigResult, ConfigSource

if TYPE_CHECKING:
    from hydra._internal.config_repository import IConfigRepository
    from hydra._internal.defaults_list import DefaultsList, Overrides
    from hydra.core.default_element import InputDefault, ResultDefault
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

_SHIPPED = ("llmrl", "options")
"""Scheme and path of the shipped options in Hydra's search path (`hydra_plugins.llmrl_options`)."""
_HYDRAS = "hydra.conf"
_HYDRA = "hydra"
"""Provider of Hydra's own options."""


class _CachedConfig(ConfigResult):
    """Cached content of an option file of the package or of Hydra."""


class _PackagedList(list[Any]):
    """Defaults list whose files are all shipped with the package or with Hydra."""


def cache_options() -> None:
    """Make Hydra cache the shipped option files and their merged configs in this process.

    Every composition gets a copy. Hydra reads and merges files of users as usual. Repeated calls have no effect.
    """
    import hydra
    from hydra._internal import config_loader_impl, defaults_list
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra._internal.defaults_list import DefaultsList
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins
    from omegaconf import OmegaConf

    import llmrl.conf  # noqa: F401 (makes Hydra merge the rows of tables, which are cached, too)

    if not hydra.__version__.startswith("1.3."):  # other versions have other private functions
        return
    Plugins.instance()  # registers the sources of packages
    Source: Any = SourcesRegistry.instance().resolve("pkg")  # noqa: N806
    OptionSource: Any = SourcesRegistry.instance().resolve("llmrl")  # noqa: N806
    read, load, merge = (
        Source._read_config,
        OptionSource.load_config,
        ConfigLoaderImpl._compose_config_from_defaults_list,
    )
    listing = defaults_list.create_defaults_list
    if hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def load_cached(self: Any, file: Any) -> Any:
        from yaml import YAMLError

        if self.path != _HYDRAS:
            return read(self, file)
        text = file.read_text(encoding="utf-8")
        try:
            packed = _load_pickled(text)
        except YAMLError:
            return read(self, file)  # raises an error with the position
        config, header = pickle.loads(packed)  # noqa: S301 (of this process)
        return _CachedConfig(self.provider, f"{self.scheme()}://{self.path}", config, header)

    loaded: dict[str, bytes] = {}

    @functools.wraps(load)
    def load_option(self: Any, config_path: str) -> Any:
        if config_path not in loaded:
            result = load(self, config_path)
            loaded[config_path] = pickle.dumps((result.config, result.header), pickle.HIGHEST_PROTOCOL)
        return _CachedConfig(self.provider, self.full_path(), *pickle.loads(loaded[config_path]))  # noqa: S301

    listings: dict[Any, tuple[bytes, Any]] = {}
    merged: dict[Any, bytes] = {}

    @functools.wraps(listing)
    def list_cached(
        repo: IConfigRepository, config_name: str | None, overrides_list: list[Override], *flags: bool, **options: bool
    ) -> DefaultsList:
        key = _listing_key(repo, config_name, overrides_list, (*flags, *options.items()))
        if key is not None and key in listings:
            packed, tree = listings[key]
            overrides = defaults_list.Overrides(repo, overrides_list)
            defaults, overrides.known_choices, overrides.known_choices_per_group = pickle.loads(packed)  # noqa: S301
            return DefaultsList(_PackagedList(defaults), tree, overrides.config_overrides, overrides)
        listing_ = listing(repo, config_name, overrides_list, *flags, **options)
        if key is not None and _are_all_packaged(listing_.defaults, repo):
            contents = (listing_.defaults, listing_.overrides.known_choices, listing_.overrides.known_choices_per_group)
            listings[key] = (pickle.dumps(contents, pickle.HIGHEST_PROTOCOL), listing_.defaults_tree)
            listing_.defaults = _PackagedList(listing_.defaults)
        return listing_

    @functools.wraps(merge)
    def merge_cached(self: ConfigLoaderImpl, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        if not isinstance(defaults, _PackagedList):
            return merge(self, defaults, repo)
        key = tuple((default.config_path, default.parent, default.package, default.primary) for default in defaults)
        if key not in merged:
            merged[key] = pickle.dumps(merge(self, defaults, repo), pickle.HIGHEST_PROTOCOL)
        config: DictConfig = pickle.loads(merged[key])  # noqa: S301 (of this process)
        return config

    choices = defaults_list._create_interpolation_map

    @functools.wraps(choices)
    def resolve_choices(overrides: Overrides, entries: list[InputDefault], self_added: bool) -> DictConfig:
        # Hydra creates the map of interpolations for each file, although few defaults lists have interpolations.
        has_interpolation = any(default.is_interpolation() for default in entries)
        return choices(overrides, entries, self_added) if has_interpolation else OmegaConf.create()

    def begin(self: CachingConfigRepository, delegate: IConfigRepository) -> None:
        # Sources are replaced but never modified, so a shallow copy suffices.
        self.delegate, self.cache = copy.copy(delegate), {}

    CachingConfigRepository.__init__ = begin  # type: ignore[method-assign]
    defaults_list._create_interpolation_map = resolve_choices  # type: ignore[assignment]
    Source._read_config = load_cached
    OptionSource.load_config = load_option
    config_loader_impl.create_defaults_list = list_cached
    ConfigLoaderImpl._compose_config_from_defaults_list = merge_cached  # type: ignore[method-assign]


def _listing_key(
    repo: IConfigRepository, config_name: str | None, overrides: Sequence[Override], flags: object
) -> tuple[Any, ...] | None:
    """Return the cache key of a defaults list, or None if it cannot be cached.

    The key consists of the config sources and the chosen options. Lists with sources other than the shipped ones and
    those of Hydra are not cached.
    """
    sources = [(source.scheme(), source.provider, source.path) for source in repo.get_sources()]
    permanent = (_SHIPPED, ("pkg", _HYDRAS))
    if any(scheme != "structured" and (scheme, path) not in permanent for scheme, _, path in sources):
        return None
    stored = _list_store_names(ConfigStore.instance().repo)
    choices = [override.input_line for override in overrides if repo.group_exists(override.key_or_group)]
    return (config_name, flags, *sources, stored, *choices)


def _list_store_names(stored: Any) -> Any:
    """Return the names of all nodes in Hydra's config store, as nested tuples."""
    return (
        tuple((name, _list_store_names(node)) for name, node in stored.items())
        if isinstance(stored, dict)
        else id(stored)
    )


def _are_all_packaged(defaults: Sequence[ResultDefault], repo: IConfigRepository) -> bool:
    """Return whether all composed files are shipped with the package or with Hydra."""
    stored = repo.get_schema_source()
    for default in defaults:
        assert default.config_path is not None
        loaded = repo.load_config(default.config_path)
        if isinstance(loaded, _CachedConfig) and loaded.provider != _HYDRA:
            if stored.is_config(default.config_path):  # a schema with the same name
                return False
        elif loaded is None or loaded.provider != _HYDRA:
            return False
    return True


@functools.cache
def _load_pickled(text: str) -> bytes:
    """Return the pickled config and header of the text of an option file.

    Unpickling copies a config several times faster than `copy.deepcopy`.

    Raises:
        yaml.YAMLError: the text is not valid YAML.
    """
    import yaml
    from omegaconf import OmegaConf

    content = yaml.load(text, Loader=get_yaml_loader_class())
    config = OmegaConf.create() if content is None else OmegaConf.create(content)
    return pickle.dumps((config, ConfigSource._get_header_dict(text[:512])), pickle.HIGHEST_PROTOCOL)


@functools.cache
def get_yaml_loader_class() -> Any:
    """Return OmegaConf's YAML loader class, with libyaml's parser if PyYAML provides it."""
    import yaml
    from omegaconf._utils import get_yaml_loader

    base_loader = get_yaml_loader()
    if not yaml.__with_libyaml__:
        return base_loader
    parser = yaml.cyaml.CParser  # type: ignore[attr-defined]

    class Loader(parser, base_loader):  # type: ignore[misc, valid-type]
        def __init__(self, stream: str) -> None:
            parser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return Loader
