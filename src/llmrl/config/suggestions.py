"""Hints for mistyped options and fields.

Hydra only reports that a name does not exist; these hints list the valid names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from llmrl.core.option_files import choosable, options, root, subgroups

_NESTED_GROUPS = ("experiment", "treatment")
"""Groups whose options are in subfolders, `experiment=<family>/<study>`."""
_FREE_FORM_KEY = re.compile(r"\.(kwargs|arguments|replace)(\.|$)")
"""Keys below which arbitrary entries are allowed."""


def removal_message(overrides: Sequence[str]) -> str | None:
    """Return a message about the first override that deletes part of the config (e.g. `~principal`), or None.

    Keyword arguments of third-party classes (`env.kwargs.<key>`) and Hydra's own keys may be removed.
    """
    for override in overrides:
        key = override.partition("=")[0].removeprefix("~").partition("@")[0]
        if not override.startswith("~") or key.startswith("hydra") or _FREE_FORM_KEY.search(key):
            continue
        if (resources.files("llmrl.conf") / key / "none.yaml").is_file():
            return f"~{key}: options cannot be removed; use {key}=none for an experiment without {key}"
        return f"~{key}: options cannot be removed; set {key}=<value>, or leave ~{key} out"
    return None


def has_syntax_error(overrides: Sequence[str]) -> bool:
    """Return whether an override violates Hydra's grammar.

    Hydra itself reports the position, so no hint is given.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        OverridesParser.create().parse_overrides([word for word in overrides if not word.startswith("-")])
    except HydraException:
        return True
    return False


def hint(arguments: Sequence[str], config_name: str) -> str | None:
    """Return a hint about why Hydra could not compose a config from `arguments`, or None.

    `config_name` is the name of the command's primary config, e.g. `train`.
    """
    if has_syntax_error(arguments):
        return None
    errors = (removal_message(arguments), unknown_option_message(arguments), misplaced_subgroup_message(arguments))
    return next((error for error in errors if error), None) or unknown_field_message(arguments, config_name)


def unknown_option_message(arguments: Sequence[str]) -> str | None:
    """Return a message about the first argument `group=option` whose option does not exist; None if all exist.

    Options are those of this package, of the folders of `--config-dir`, and of installed packages.
    """
    from llmrl.config.installed_options import installed_options

    roots = [root(), *config_dirs(arguments)]
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
                # Exclude nested names: a subfolder of a group is usually a group itself, e.g. hardware/backend.
                selectable_names = {
                    name for name in option_names if choosable(name) and (group in _NESTED_GROUPS or "/" not in name)
                }
                return _no_option(group, option, selectable_names)
    return None


def misplaced_subgroup_message(arguments: Sequence[str]) -> str | None:
    """Return a message about the first `group/subgroup=option` whose subgroup the selected option of `group` lacks."""
    chosen = dict(argument.partition("=")[::2] for argument in arguments if "=" in argument)
    for key in chosen:
        group, slash, subgroup = key.partition("/")
        if slash and group != "hydra" and key in subgroups(group):
            compatible_options = [name for name, node in options(group).items() if subgroup in node]
            if chosen.get(group) not in compatible_options:
                return f"{key}={chosen[key]} requires {group} to be one of: {', '.join(compatible_options)}"
    return None


def _no_option(group: str, option: str, option_names: set[str]) -> str:
    """Return a message saying that `group` has no `option`.

    It suggests similar names, or lists those in the same folder.
    """
    folder, _, last = option.rpartition("/")
    siblings = sorted(name for name in option_names if name.rpartition("/")[0] == folder)
    candidates = siblings if folder and siblings else sorted(option_names)
    full_name_by_basename = {name.rpartition("/")[2]: name for name in candidates}
    basenames = difflib.get_close_matches(last, list(full_name_by_basename), cutoff=0.7)
    matches = [full_name_by_basename[basename] for basename in basenames]
    if matches:
        return f"{group} has no option '{option}'. Did you mean {' or '.join(matches)}?"
    subfolders = {f"{name.split('/')[0]}/..." for name in option_names if "/" in name}
    folder_names = [] if folder and siblings else sorted(subfolders)
    return f"{group} has no option '{option}'; it has: {', '.join([*folder_names, *siblings])}"


def config_dirs(arguments: Sequence[str]) -> list[Path]:
    """Return the folders of the user's own options (`--config-dir`)."""
    flags = ("--config-dir", "-cd")
    separate_values = [arguments[i + 1] for i, argument in enumerate(arguments[:-1]) if argument in flags]
    inline_values = [
        argument.partition("=")[2] for argument in arguments if argument.partition("=")[0] in flags and "=" in argument
    ]
    return [Path(folder) for folder in (*separate_values, *inline_values)]


def unknown_field_message(arguments: Sequence[str], config_name: str = "train") -> str | None:
    """Return a message about the first argument `group.field=value` whose field does not exist.

    Return None if all fields exist, or if the selected groups cannot be composed (Hydra has already reported that).
    `config_name` is the name of the command's primary config.
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
    searchpath = [str(Path(folder).expanduser().absolute()) for folder in config_dirs(arguments)]
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("llmrl.conf", **BASE):
            config = compose(
                config_name, [*choices, f"hydra.searchpath=[{','.join(f'file://{p}' for p in searchpath)}]"]
            )
    except HydraException:
        return None
    for key, _ in pairs:
        if key.partition("@")[0] in groups:  # the choice of a group's option, not a field
            continue
        *parents, field = key.split(".")
        while parents and not isinstance(OmegaConf.select(config, ".".join(parents)), DictConfig):
            *parents, field = parents  # `field` becomes the first missing part of the key
        node = OmegaConf.select(config, ".".join(parents)) if parents else config
        # `field in node` is False for a field without a value (`???`).
        if isinstance(node, DictConfig) and field not in list(node):
            valid = [str(name) for name in node if name != "_target_"]
            close = difflib.get_close_matches(field, valid, n=1)
            guess = f" Did you mean {close[0]}?" if close else ""
            owner = ".".join(parents) or f"llmrl-{config_name}"
            return f"{owner} has no option '{field}'; it has: {', '.join(valid)}.{guess}"
    return None
