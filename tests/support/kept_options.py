"""How tests make compositions cheap: shipped option files are read, listed and merged once a process, with libyaml.

Most of the time of a composition goes into finding which thirty files it consists of, reading them, making OmegaConf's
nodes of them and merging these, and most tests begin with one. This goes round private functions of Hydra, so it is no
part of the package; `tests/config/test_kept_options.py` compares what is composed with what Hydra alone composes, and
commands that are started as processes of their own have Hydra as it is.
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

_SHIPPED = "llmrl.conf"
_HYDRAS = "hydra.conf"
_HYDRA = "hydra"
"""Provider of Hydra's own options."""


class _Kept(ConfigResult):
    """What a shipped option file holds, or one of Hydra's."""


class _Shipped(list[Any]):
    """The files of a composition, all of them shipped or Hydra's."""


def read_once() -> None:
    """Have Hydra keep what it has read and merged of the shipped option files; done once a process.

    What Hydra is given is its own each time. Files of the user's own are read and merged as Hydra does it.
    """
    import hydra
    from hydra._internal import config_loader_impl, defaults_list
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.config_repository import CachingConfigRepository
    from hydra._internal.defaults_list import DefaultsList
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins
    from omegaconf import OmegaConf

    if not hydra.__version__.startswith("1.3."):  # others have other private functions
        return
    Plugins.instance()  # registers what reads packages
    Source: Any = SourcesRegistry.instance().resolve("pkg")  # noqa: N806
    read, merge = Source._read_config, ConfigLoaderImpl._compose_config_from_defaults_list
    listing = defaults_list.create_defaults_list
    if hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def read_kept(self: Any, file: Any) -> Any:
        from yaml import YAMLError

        if self.path not in (_SHIPPED, _HYDRAS):
            return read(self, file)
        text = file.read_text(encoding="utf-8")
        try:
            packed = _read(text)
        except YAMLError:
            return read(self, file)  # which says where
        config, header = pickle.loads(packed)  # noqa: S301 (of this process)
        return _Kept(self.provider, f"{self.scheme()}://{self.path}", config, header)

    listed: dict[Any, tuple[bytes, Any]] = {}
    merged: dict[Any, bytes] = {}

    @functools.wraps(listing)
    def listing_kept(
        repo: IConfigRepository, config_name: str | None, overrides_list: list[Override], *how: bool, **named: bool
    ) -> DefaultsList:
        key = _what_is_listed(repo, config_name, overrides_list, (*how, *named.items()))
        if key is not None and key in listed:
            packed, tree = listed[key]
            overrides = defaults_list.Overrides(repo, overrides_list)
            defaults, overrides.known_choices, overrides.known_choices_per_group = pickle.loads(packed)  # noqa: S301
            return DefaultsList(_Shipped(defaults), tree, overrides.config_overrides, overrides)
        found = listing(repo, config_name, overrides_list, *how, **named)
        if key is not None and _are_shipped(found.defaults, repo):
            told = (found.defaults, found.overrides.known_choices, found.overrides.known_choices_per_group)
            listed[key] = (pickle.dumps(told, pickle.HIGHEST_PROTOCOL), found.defaults_tree)
            found.defaults = _Shipped(found.defaults)
        return found

    @functools.wraps(merge)
    def merge_kept(self: ConfigLoaderImpl, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        if not isinstance(defaults, _Shipped):
            return merge(self, defaults, repo)
        key = tuple((each.config_path, each.package, each.primary) for each in defaults)
        if key not in merged:
            merged[key] = pickle.dumps(merge(self, defaults, repo), pickle.HIGHEST_PROTOCOL)
        config: DictConfig = pickle.loads(merged[key])  # noqa: S301 (of this process)
        return config

    choices = defaults_list._create_interpolation_map

    @functools.wraps(choices)
    def choices_if_asked(overrides: Overrides, entries: list[InputDefault], self_added: bool) -> DictConfig:
        # What `${...}` in a defaults list may refer to, made anew for each file, although hardly any has one.
        asked = any(each.is_interpolation() for each in entries)
        return choices(overrides, entries, self_added) if asked else OmegaConf.create()

    def begin(self: CachingConfigRepository, delegate: IConfigRepository) -> None:
        # Its sources are replaced, never changed, so they need no copies of their own.
        self.delegate, self.cache = copy.copy(delegate), {}

    CachingConfigRepository.__init__ = begin  # type: ignore[method-assign]
    defaults_list._create_interpolation_map = choices_if_asked  # type: ignore[assignment]
    Source._read_config = read_kept
    config_loader_impl.create_defaults_list = listing_kept
    ConfigLoaderImpl._compose_config_from_defaults_list = merge_kept  # type: ignore[method-assign]


def _what_is_listed(
    repo: IConfigRepository, config_name: str | None, overrides: Sequence[Override], how: object
) -> tuple[Any, ...] | None:
    """All that the files of a composition are a function of: where options are looked for, and which are chosen. None
    if options are looked for in files that are neither shipped nor Hydra's."""
    sources = [(source.scheme(), source.provider, source.path) for source in repo.get_sources()]
    if any(scheme != "structured" and path not in (_SHIPPED, _HYDRAS) for scheme, _, path in sources):
        return None
    stored = _names(ConfigStore.instance().repo)
    chosen = [each.input_line for each in overrides if repo.group_exists(each.key_or_group)]
    return (config_name, how, *sources, stored, *chosen)


def _names(stored: Any) -> Any:
    """What is in Hydra's store."""
    return tuple((name, _names(each)) for name, each in stored.items()) if isinstance(stored, dict) else id(stored)


def _are_shipped(defaults: Sequence[ResultDefault], repo: IConfigRepository) -> bool:
    """Whether all that is composed is in shipped files or Hydra's own."""
    stored = repo.get_schema_source()
    for each in defaults:
        assert each.config_path is not None
        loaded = repo.load_config(each.config_path)
        if isinstance(loaded, _Kept) and loaded.provider != _HYDRA:
            if stored.is_config(each.config_path):  # somebody's schema of the same name
                return False
        elif loaded is None or loaded.provider != _HYDRA:
            return False
    return True


@functools.cache
def _read(text: str) -> bytes:
    """The config and the header of an option file's text, pickled: a config is copied so several times faster than by
    `copy.deepcopy`.

    Raises:
        yaml.YAMLError: it is no YAML.
    """
    import yaml
    from omegaconf import OmegaConf

    content = yaml.load(text, Loader=loader())
    config = OmegaConf.create() if content is None else OmegaConf.create(content)
    return pickle.dumps((config, ConfigSource._get_header_dict(text[:512])), pickle.HIGHEST_PROTOCOL)


@functools.cache
def loader() -> Any:
    """Return the class that OmegaConf loads YAML with, on libyaml's parser where PyYAML has it."""
    import yaml
    from omegaconf._utils import get_yaml_loader

    own = get_yaml_loader()
    if not yaml.__with_libyaml__:
        return own
    parser = yaml.cyaml.CParser  # type: ignore[attr-defined]

    class Loader(parser, own):  # type: ignore[misc, valid-type]
        def __init__(self, stream: str) -> None:
            parser.__init__(self, stream)
            yaml.constructor.SafeConstructor.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return Loader
