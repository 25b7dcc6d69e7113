"""How tests make compositions cheap: shipped option files are read with libyaml, and read and merged once a process.

Most of the time of a composition goes into reading some thirty files, making OmegaConf's nodes of them and merging
these, and most tests begin with one. This goes round private functions of Hydra, so it is no part of the package;
`tests/config/test_kept_options.py` compares what is composed with what Hydra alone composes, and commands that are
started as processes of their own have Hydra as it is.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.plugins.config_source import ConfigResult, ConfigSource

if TYPE_CHECKING:
    from hydra._internal.config_repository import IConfigRepository
    from hydra._internal.defaults_list import Overrides
    from hydra.core.default_element import InputDefault, ResultDefault
    from omegaconf import DictConfig

_SHIPPED = "llmrl.conf"
_HYDRA = "hydra"
"""Provider of Hydra's own options, which do not change."""


@dataclass
class _Kept(ConfigResult):
    """What a shipped option file holds; `text` is all of the file."""

    text: str = ""


def read_once() -> None:
    """Have Hydra keep what it has read and merged of the shipped option files; done once a process.

    What is kept belongs to the texts of files, so one that has changed is read anew. What Hydra is given is its own
    each time. Files of the user's own are read and merged as Hydra does it.
    """
    import hydra
    from hydra._internal import defaults_list
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins
    from omegaconf import OmegaConf

    if not hydra.__version__.startswith("1.3."):  # others have other private functions
        return
    Plugins.instance()  # registers what reads packages
    Source: Any = SourcesRegistry.instance().resolve("pkg")  # noqa: N806
    read, merge = Source._read_config, ConfigLoaderImpl._compose_config_from_defaults_list
    if hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def read_kept(self: Any, file: Any) -> Any:
        from yaml import YAMLError

        if self.path != _SHIPPED:
            return read(self, file)
        text = file.read_text(encoding="utf-8")
        try:
            packed = _read(text)
        except YAMLError:
            return read(self, file)  # which says where
        config, header = pickle.loads(packed)  # noqa: S301 (of this process)
        return _Kept(self.provider, f"{self.scheme()}://{self.path}", config, header, text=text)

    merged: dict[Any, bytes] = {}

    @functools.wraps(merge)
    def merge_kept(self: ConfigLoaderImpl, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        if (key := _what_is_merged(defaults, repo)) is None:
            return merge(self, defaults, repo)
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

    defaults_list._create_interpolation_map = choices_if_asked  # type: ignore[assignment]
    Source._read_config = read_kept
    ConfigLoaderImpl._compose_config_from_defaults_list = merge_kept  # type: ignore[method-assign]


def _what_is_merged(defaults: Sequence[ResultDefault], repo: IConfigRepository) -> tuple[Any, ...] | None:
    """All that the merged config is a function of; None if some of it is neither shipped nor Hydra's."""
    found: list[Any] = []
    stored = repo.get_schema_source()
    for each in defaults:
        assert each.config_path is not None
        loaded = repo.load_config(each.config_path)
        if isinstance(loaded, _Kept):
            if stored.is_config(each.config_path):  # somebody's schema of the same name
                return None
            text = loaded.text
        elif loaded is not None and loaded.provider == _HYDRA:
            text = ""
        else:
            return None
        found.append((each.config_path, each.package, each.primary, text))
    return tuple(found)


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
