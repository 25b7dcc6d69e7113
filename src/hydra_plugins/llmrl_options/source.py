"""A config source of Hydra for the shipped option files and the variants in them (`llmrl.core.option_files`).

Hydra imports this module at every start, so it must not import heavy modules.
"""

from __future__ import annotations

import builtins
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin

PACKAGE = "pkg://llmrl.conf"


class OptionSource(ConfigSource):
    """A config source for the options of `llmrl.conf`, in which each variant of a file has the path of a file."""

    @staticmethod
    def scheme() -> str:
        return "llmrl"

    def load_config(self, config_path: str) -> ConfigResult:
        from omegaconf import OmegaConf

        from llmrl.core.option_files import read_file, sets_global_keys

        if not self.is_config(config_path):
            raise ConfigLoadError(f"llmrl has no option {config_path}")
        path = self._path(config_path)
        header = {"package": "_global_" if sets_global_keys(path) else None}
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(read_file(path)), header)

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        from llmrl.core.option_files import get_root

        return (get_root() / config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        from llmrl.core.option_files import find_file

        return find_file(self._path(config_path)) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> builtins.list[str]:
        from llmrl.core.option_files import get_root, list_option_names

        option_names: set[str] = set()
        if results_filter != ObjectType.GROUP:
            option_names.update(list_option_names(config_path))
        if results_filter != ObjectType.CONFIG:
            option_names.update(path.name for path in (get_root() / config_path).glob("[!_]*") if path.is_dir())
        return sorted(option_names)

    def _path(self, config_path: str) -> Path:
        from llmrl.core.option_files import get_root

        return get_root() / self._normalize_file_name(config_path)


class OptionSearchPath(SearchPathPlugin):
    """A plugin that replaces the package of the options in Hydra's search path by `OptionSource`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for element in search_path.get_path():
            if element.path is not None and _is_option_package(element.path):
                element.path = "llmrl://options"


def _is_option_package(path: str) -> bool:
    """Return whether a path in Hydra's search path is the package of the shipped options, or their folder."""
    folder = path.removeprefix("file://")
    if "://" in folder:
        return path == PACKAGE
    from llmrl.core.option_files import get_root

    return Path(folder).resolve() == get_root()
