"""Hints for mistyped options and fields: Hydra says that one does not exist, and these list the ones that do."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from llmrl.core.option_files import choosable, root
from llmrl.run.folder_names import seed_of

_CONFIG = {"name": ("--config-name", "-cn"), "folder": ("--config-path", "-cp", "--config-dir", "-cd")}
_IN_FOLDERS = ("experiment", "treatment")
"""Groups whose options are in folders, `experiment=<family>/<study>`."""
_OPEN_KEY = re.compile(r"\.(kwargs|arguments|replace)(\.|$)")


def removed(overrides: Sequence[str]) -> str | None:
    """Return a message about the first override that removes an option of the config (`~principal`); None without one.

    Keys of foreign classes (`env.kwargs.<key>`) and Hydra's own keys may be removed.
    """
    for override in overrides:
        key = override.partition("=")[0].removeprefix("~").partition("@")[0]
        if not override.startswith("~") or key.startswith("hydra") or _OPEN_KEY.search(key):
            continue
        if (resources.files("llmrl.conf") / key / "none.yaml").is_file():
            return f"~{key}: an experiment without it is written {key}=none"
        return f"~{key}: no option can be taken out of an experiment; set {key}=<value>, or leave ~{key} out"
    return None


def ungrammatical(overrides: Sequence[str]) -> bool:
    """Return whether an override violates Hydra's grammar; Hydra reports where, and no hint is possible then."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_overrides([each for each in overrides if not each.startswith("-")])
    except HydraException:
        return True
    return False


def saved_config(arguments: Sequence[str]) -> str | None:
    """Return a message about a run's saved config that is given as `--config-name`; None without one."""
    given = {flag: _values(arguments, *names) for flag, names in _CONFIG.items()}
    for name in given["name"]:
        folders = [Path(), *map(Path, given["folder"])]
        for path in (folder / (name if name.endswith(".yaml") else f"{name}.yaml") for folder in folders):
            if path.is_file() and (path.name == "config.yaml" or seed_of(path.parent) is not None):
                return _of_run(path)
        if "/" in name and name.rpartition("/")[2].removesuffix(".yaml") == "config":
            return _of_run(Path(name))
    return None


def _of_run(path: Path) -> str:
    from llmrl.core.errors import RunFolderError
    from llmrl.run.status import read_status

    what = f"{path} is the config that a run has saved, with all values filled in; --config-name takes none"
    try:
        status = read_status(path.parent)
    except RunFolderError:
        status = None
    if status is None or not status.overrides:
        return f"{what}. Give the options by which that run was started"
    command = f"{Path(sys.argv[0]).name} {shlex.join(status.overrides)}"
    return f"{what}. The same run: {command}\nWith rerun=true it is computed again, with seed=<n> for another seed"


def hint(arguments: Sequence[str], primary: str) -> str | None:
    """Return a hint on arguments from which Hydra could not compose a config; None if there is none.

    `primary` is the primary config of the command.
    """
    if ungrammatical(arguments):
        return None
    return removed(arguments) or missing_option(arguments) or missing_field(arguments, primary)


def missing_option(arguments: Sequence[str]) -> str | None:
    """Return a message about the first argument `group=option` whose option does not exist, neither in this package nor
    in the folders of `--config-dir` or an installed package; None if all exist."""
    from llmrl.config.installed_options import installed_options

    roots = [root(), *folders(arguments)]
    for argument in arguments:
        key, equals, value = argument.partition("=")
        group = key.lstrip("+").partition("@")[0]
        if not equals or group.startswith("hydra") or not any((root / group).is_dir() for root in roots):
            continue
        found = {
            path.relative_to(each / group).with_suffix("").as_posix()
            for each in roots
            for path in (each / group).rglob("*.yaml")
        }
        found.update(installed_options(group))
        for option in (each.strip(" []'\"") for each in value.split(",")):
            if option.removesuffix(".yaml") not in {*found, "null", ""} and not any(c in option for c in "(){}:$"):
                # A folder inside another group is a group of its own, such as hardware/backend.
                within = {each for each in found if choosable(each) and (group in _IN_FOLDERS or "/" not in each)}
                return _no_option(group, option, within)
    return None


def _no_option(group: str, option: str, found: set[str]) -> str:
    """Return a message that `group` has no `option`, with the most similar options, or else those of its folder."""
    folder, _, last = option.rpartition("/")
    beside = sorted(name for name in found if name.rpartition("/")[0] == folder)
    near = beside if folder and beside else sorted(found)
    short = {name.rpartition("/")[2]: name for name in near}
    like = [short[each] for each in difflib.get_close_matches(last, list(short), cutoff=0.7)]
    if like:
        return f"{group} has no option '{option}'. Did you mean {' or '.join(like)}?"
    several = {f"{name.split('/')[0]}/..." for name in found if "/" in name}
    inside = [] if folder and beside else sorted(several)
    return f"{group} has no option '{option}'; it has: {', '.join([*inside, *beside])}"


def folders(arguments: Sequence[str]) -> list[Path]:
    """Return the folders of the user's own options (`--config-dir`)."""
    return [Path(each) for each in _values(arguments, "--config-dir", "-cd")]


def _values(arguments: Sequence[str], *names: str) -> list[str]:
    """Return the values of a flag, given after it or with an equals sign."""
    after = [arguments[i + 1] for i, a in enumerate(arguments[:-1]) if a in names]
    return [*after, *(a.partition("=")[2] for a in arguments if a.partition("=")[0] in names and "=" in a)]


def missing_field(arguments: Sequence[str], primary: str = "train") -> str | None:
    """Return a message about the first argument `part.field=value` whose field does not exist.

    `primary` is the primary config of the command. None if all fields exist, or if the parts cannot be composed, which
    Hydra has reported.
    """
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf

    from llmrl.config.hydra_versions import BASE

    overrides = [a for a in arguments if "=" in a and not a.startswith(("-", "+", "~", "hydra"))]
    pairs = [a.partition("=")[::2] for a in overrides]
    groups = {entry.name for entry in resources.files("llmrl.conf").iterdir() if entry.is_dir()}
    choices = [f"{key}={value.split(',')[0]}" for key, value in pairs if key in groups]
    searchpath = [str(Path(folder).expanduser().absolute()) for folder in folders(arguments)]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("llmrl.conf", **BASE):
            config = compose(primary, [*choices, f"hydra.searchpath=[{','.join(f'file://{p}' for p in searchpath)}]"])
    except HydraException:
        return None
    for key, _ in pairs:
        if key.partition("@")[0] in groups:  # the choice of a part, not a field
            continue
        *parents, field = key.split(".")
        while parents and not isinstance(OmegaConf.select(config, ".".join(parents)), DictConfig):
            *parents, field = parents  # the first part of the key that is not there
        node = OmegaConf.select(config, ".".join(parents)) if parents else config
        if isinstance(node, DictConfig) and field not in list(node):  # `in` denies a field without a default
            valid = [str(name) for name in node if name != "_target_"]
            close = difflib.get_close_matches(field, valid, n=1)
            guess = f" Did you mean {close[0]}?" if close else ""
            where = ".".join(parents) or f"llmrl-{primary}"
            return f"{where} has no option '{field}'; it has: {', '.join(valid)}.{guess}"
    return None
