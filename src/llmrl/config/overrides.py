"""Translation of overrides to Hydra's syntax, expansion of sweeps, and options of an evaluation (`--env KEY=VALUE`)."""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError
from llmrl.core.option_files import FREE_FORM_KEYS, get_root, list_option_names
from llmrl.run.folder import sanitize

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


_FREE_FORM_OVERRIDE_PATTERN = re.compile(rf"\w+(\.\w+)*\.({'|'.join(FREE_FORM_KEYS)})(\.\w+)*=")
"""Pattern of overrides below free-form keys, whose entries the option files do not list."""
_FLAGS_WITH_VALUE = (
    *("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn", "--package", "-p", "--cfg", "-c"),
    *("--info", "-i", "--experimental-rerun"),
)
"""Flags of Hydra that are followed by a value."""


def get_override_key(override: str) -> str:
    """Return the key of an override.

    >>> get_override_key("+env.kwargs.g=9.81"), get_override_key("~teacher")
    ('env.kwargs.g', 'teacher')
    """
    return override.lstrip("+~").partition("=")[0].strip()


def allow_new_key(argument: str) -> str:
    """Return a command-line argument with `++` before overrides of free-form keys, so that Hydra accepts new keys.

    >>> allow_new_key("env.kwargs.g=9.81"), allow_new_key("env.horizon=9")
    ('++env.kwargs.g=9.81', 'env.horizon=9')
    """
    return f"++{argument}" if _FREE_FORM_OVERRIDE_PATTERN.match(argument) else argument


def to_hydra_arguments(arguments: Sequence[str]) -> list[str]:
    """Return command-line arguments in a form that Hydra accepts.

    `+<group>=<option>` becomes `<group>=<option>`, because the config has a default for each group. `<group>=null`
    becomes `<group>=none`, because Hydra cannot choose an option by `null`.

    >>> to_hydra_arguments(["+experiment=search/table", "seed=1"])
    ['experiment=search/table', 'seed=1']
    >>> to_hydra_arguments(["treatment=null,props", "agent.init_from=null"])
    ['treatment=none,props', 'agent.init_from=null']

    Raises:
        ConfigError: an argument cannot be translated; the message states the correct syntax.
    """
    argument_values = {get_override_key(argument): argument.partition("=")[2] for argument in arguments}
    if argument_values.get("treatment", "").startswith("["):
        raise ConfigError("treatment= must be a single option; compare several by --multirun treatment=a,b")
    translated_arguments = []
    for argument in arguments:
        addition_match = re.match(r"\+([A-Za-z_]\w*)(?:=|$)", argument)
        adds_option = addition_match is not None and (get_root() / addition_match[1]).is_dir()
        translated_arguments.append(allow_new_key(_replace_null(argument[1:] if adds_option else argument)))
    return translated_arguments


def move_overrides_first(arguments: Sequence[str]) -> list[str]:
    """Return command-line arguments with all overrides before the flags, in order.

    Hydra's parser does not accept overrides both before and after a flag with a value.

    >>> move_overrides_first(["env=nim", "--config-dir", "conf", "seed=1", "--multirun"])
    ['env=nim', 'seed=1', '--config-dir', 'conf', '--multirun']
    """
    overrides, flags = [], []
    argument_iterator = iter(arguments)
    for argument in argument_iterator:
        if not argument.startswith("-"):
            overrides.append(argument)
            continue
        flags.append(argument)
        if argument in _FLAGS_WITH_VALUE:
            flags += itertools.islice(argument_iterator, 1)
    return [*overrides, *flags]


def _replace_null(argument: str) -> str:
    """Return an argument in which `none` replaces `null` as the option of a group.

    Raises:
        ConfigError: the group has no option `none`.
    """
    group, equals, value = argument.partition("=")
    if not equals or not group.isidentifier() or "null" not in value.split(","):
        return argument
    if "none" not in (option_names := list_option_names(group)):
        if option_names:
            raise ConfigError(f"{argument}: null is not an option of {group}; --list {group} shows the options")
        return argument
    return f"{group}={','.join('none' if choice == 'null' else choice for choice in value.split(','))}"


MAX_SWEEP_RUNS = 100_000
"""Maximum number of runs of a sweep. All are composed before the first one starts, about 8 per second; runs that differ
only in the seed are composed once."""


def expand_sweep(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of every run of a sweep; the last override of a key replaces earlier ones.

    Raises:
        ConfigError: a key is swept over an interval, or there are more than `MAX_SWEEP_RUNS` runs.
    """
    overrides_by_key: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            overrides_by_key[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            value_texts = itertools.islice(override.sweep_string_iterator(), MAX_SWEEP_RUNS + 1)
            overrides_by_key[key] = [f"{key}={value}" for value in value_texts]
        else:
            raise ConfigError(
                f"{key} is swept over an interval, which has infinitely many values; list values ({key}=a,b,c), or "
                "search the interval with hydra/sweeper=optuna"
            )
    if math.prod(len(alternatives) for alternatives in overrides_by_key.values()) > MAX_SWEEP_RUNS:
        swept_keys = ", ".join(key for key, alternatives in overrides_by_key.items() if len(alternatives) > 1)
        raise ConfigError(f"a sweep over {swept_keys} has more than {MAX_SWEEP_RUNS:,} runs; launch it in parts")
    return [list(run) for run in itertools.product(*overrides_by_key.values())]


def parse_env_changes(changes: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the environment after changes such as `engine=meltingpot`, whose values are parsed as YAML.

    Raises:
        ConfigError: a change is not of the form KEY=VALUE, or the environment has no such option.
    """
    import yaml

    new_options = dict(options)
    for change in changes:
        key, separator, value = change.partition("=")
        if not separator:
            raise ConfigError(f"--env {change} must be KEY=VALUE, e.g. --env engine=meltingpot")
        if key not in options or key == "_target_":
            option_names = ", ".join(name for name in options if name != "_target_")
            raise ConfigError(
                f"--env {change}: the environment of this run has no option {key!r}; it has: {option_names}"
            )
        try:
            new_options[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--env {change}: {value!r} is not a YAML value") from error
    return new_options


def make_evaluation_folder_name(changes: Sequence[str]) -> str:
    """Return the name of the folder for the results of an evaluation with `changes` of the environment.

    A name that is long or contains invalid characters is shortened and gets a digest.

    >>> make_evaluation_folder_name(["engine=meltingpot", "mechanism=none,best"])
    'evaluation_engine_meltingpot_mechanism_none-best'
    """
    joined = "_".join(["evaluation", *changes])
    name = joined.replace("=", "_").replace(",", "-")
    if name == sanitize(name) and "-" not in joined and len(name) <= 80:
        return name
    return f"{sanitize(name)[:72]}-{zlib.crc32(' '.join(changes).encode()):08x}"
