"""Hints for mistyped options and fields: Hydra reports that one does not exist, and these list the existing ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from llmrl.core.option_files import choosable, options, root, subgroups

_IN_FOLDERS = ("experiment", "treatment")
"""Groups whose options are in subfolders, `experiment=<family>/<study>`."""
_OPEN_KEY = re.compile(r"\.(kwargs|arguments|replace)(\.|$)")


def removal_error(overrides: Sequence[str]) -> str | None:
    """Return a message about the first override that removes an option of the config (`~principal`); None without one.

    Keys of foreign classes (`env.kwargs.<key>`) and Hydra's own keys may be removed.
    """
    for override in overrides:
        key = override.partition("=")[0].removeprefix("~").partition("@")[0]
        if not override.startswith("~") or key.startswith("hydra") or _OPEN_KEY.search(key):
            continue
        if (resources.files("llmrl.conf") / key / "none.yaml").is_file():
            return f"~{key}: options cannot be removed; use {key}=none for an experiment without {key}"
        return f"~{key}: options cannot be removed; set {key}=<value>, or leave ~{key} out"
    return None


def is_ungrammatical(overrides: Sequence[str]) -> bool:
    """Return whether an override violates Hydra's grammar; Hydra reports where, and no hint is possible then."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_overrides([word for word in overrides if not word.startswith("-")])
    except HydraException:
        return True
    return False


def hint(arguments: Sequence[str], primary: str) -> str | None:
    """Return a hint on arguments from which Hydra could not compose a config; None if there is none.

    `primary` is the primary config of the command.
    """
    if is_ungrammatical(arguments):
        return None
    errors = (removal_error(arguments), missing_option(arguments), misplaced_subgroup(arguments))
    return next((error for error in errors if error), None) or missing_field(arguments, primary)


def missing_option(arguments: Sequence[str]) -> str | None:
    """Return a message about the first argument `group=option` whose option does not exist; None if all exist.

    Options are those of this package, of the folders of `--config-dir`, and of installed packages.
    """
    from llmrl.config.installed_options import installed_options

    roots = [root(), *folders(arguments)]
    for argument in arguments:
        key, equals, value = argument.partition("=")
        group = key.lstrip("+").partition("@")[0]
        if not equals or group.startswith("hydra") or not any((root / group).is_dir() for root in roots):
            continue
        option_names = {
            path.relative_to(base / group).with_suffix("").as_posix()
            for base in roots
            for path in (base / group).rglob("*.yaml")
        }
        option_names.update(installed_options(group))
        for option in (name.strip(" []'\"") for name in value.split(",")):
            if option.removesuffix(".yaml") not in {*option_names, "null", ""} and not any(
                c in option for c in "(){}:$"
            ):
                # A folder inside another group is a group of its own, such as hardware/backend.
                within = {
                    name for name in option_names if choosable(name) and (group in _IN_FOLDERS or "/" not in name)
                }
                return _no_option(group, option, within)
    return None


def misplaced_subgroup(arguments: Sequence[str]) -> str | None:
    """Return a message about the first `group/part=option` for which the chosen option of `group` has no such part."""
    chosen = dict(argument.partition("=")[::2] for argument in arguments if "=" in argument)
    for key in chosen:
        group, slash, part = key.partition("/")
        if slash and group != "hydra" and key in subgroups(group):
            with_part = [name for name, node in options(group).items() if part in node]
            if chosen.get(group) not in with_part:
                return f"{key}={chosen[key]} works only with {group}={', '.join(with_part)}; choose one of them"
    return None


def _no_option(group: str, option: str, option_names: set[str]) -> str:
    """Return a message that `group` has no `option`, with the most similar options, or else those of its folder."""
    folder, _, last = option.rpartition("/")
    siblings = sorted(name for name in option_names if name.rpartition("/")[0] == folder)
    candidates = siblings if folder and siblings else sorted(option_names)
    short = {name.rpartition("/")[2]: name for name in candidates}
    like = [short[match] for match in difflib.get_close_matches(last, list(short), cutoff=0.7)]
    if like:
        return f"{group} has no option '{option}'. Did you mean {' or '.join(like)}?"
    subfolders = {f"{name.split('/')[0]}/..." for name in option_names if "/" in name}
    folder_names = [] if folder and siblings else sorted(subfolders)
    return f"{group} has no option '{option}'; it has: {', '.join([*folder_names, *siblings])}"


def folders(arguments: Sequence[str]) -> list[Path]:
    """Return the folders of the user's own options (`--config-dir`)."""
    flags = ("--config-dir", "-cd")
    after = [arguments[i + 1] for i, argument in enumerate(arguments[:-1]) if argument in flags]
    inline_values = [
        argument.partition("=")[2] for argument in arguments if argument.partition("=")[0] in flags and "=" in argument
    ]
    return [Path(folder) for folder in (*after, *inline_values)]


def missing_field(arguments: Sequence[str], primary: str = "train") -> str | None:
    """Return a message about the first argument `part.field=value` whose field does not exist.

    None if all fields exist, or if the parts cannot be composed, which Hydra has reported. `primary` is the primary
    config of the command.
    """
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf

    from llmrl.config.hydra_versions import BASE

    overrides = [
        argument for argument in arguments if "=" in argument and not argument.startswith(("-", "+", "~", "hydra"))
    ]
    pairs = [argument.partition("=")[::2] for argument in overrides]
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
            *parents, field = parents  # `field` becomes the first missing part of the key
        node = OmegaConf.select(config, ".".join(parents)) if parents else config
        if isinstance(node, DictConfig) and field not in list(node):  # `in` denies a field without a default
            valid = [str(name) for name in node if name != "_target_"]
            close = difflib.get_close_matches(field, valid, n=1)
            guess = f" Did you mean {close[0]}?" if close else ""
            owner = ".".join(parents) or f"llmrl-{primary}"
            return f"{owner} has no option '{field}'; it has: {', '.join(valid)}.{guess}"
    return None
