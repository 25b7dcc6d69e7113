"""`--again <run> <override> ...`: a run once more, with changes; the arguments of the command that does it.

What was typed for the run is typed again. Where its options mean something else by now, or its config was made by
another run, the values that it had are typed, too. So what is not changed is as it was.
"""

from __future__ import annotations

import copy
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.destinations import with_approvals
from llmrl.core.errors import ConfigError
from llmrl.core.typed_values import written

FLAG = "--again"
_DIRS = ("--config-dir", "-cd")
_FOLDERS = (*_DIRS, "--config-path", "-cp", "--config-name", "-cn")
_NOT_PINNED = (
    "output_root",
    "hardware",
    "trusted_modules",
    "dry_run",
    "resume",
    "rerun",
    "private",
    "checkpoint_seconds",
)
"""Keys that say where and how a run is computed: those of whoever repeats it, unless they were typed."""
_ABSENT = object()


def repeated(command: str, arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command without `--again <run>`, with those of that run before the others.

    The same as given where there is no `--again`.

    Args:
        command: `llmrl-train` or `llmrl-finetune`.
        arguments: what was typed after it.

    Raises:
        ConfigError: there is no run to repeat, another command made it, it had option files of its own that are not
            named, or it sends a key to a host that the user has not approved.
        RunFolderError: there is no such run, or there are several, which are listed.
    """
    found = [i for i, argument in enumerate(arguments) if argument == FLAG or argument.startswith(f"{FLAG}=")]
    if not found:
        return list(arguments)
    if len(found) > 1:
        raise ConfigError(f"{FLAG} names one run; it is there {len(found)} times")
    [at] = found
    inline = "=" in arguments[at]
    run = arguments[at].partition("=")[2] if inline else "".join(arguments[at + 1 : at + 2])
    rest = [*arguments[:at], *arguments[at + (1 if inline else 2) :]]
    if not run or (not inline and re.match(r"[\w.+~]+=|-", run)):
        raise ConfigError(
            f"which run? {command} {FLAG} <run> seed=3, where <run> is its folder, run:<hash> or latest:<name>"
        )
    made = _overrides_of(command, run, rest)
    sys.stderr.write(f"{command}: the same as\n{shlex.join([command, *made, *rest])}\n")
    return [*made, *rest]


def _overrides_of(command: str, run: str, rest: Sequence[str]) -> list[str]:
    """What is to be typed before `rest` to repeat a run."""
    from llmrl.config.trust_options import trusted_by
    from llmrl.core.option_files import merge
    from llmrl.experiment.composition import plain
    from llmrl.experiment.run_lookup import run_folder_of
    from llmrl.experiment.run_references import unresolved
    from llmrl.run.artifacts import read_config
    from llmrl.run.source_copies import changed_sources

    typed = {_key(each): each for each in rest if "=" in each and not each.startswith("--")}
    root = typed.get("output_root", "output_root=outputs").partition("=")[2].strip("'\"")
    folder = run_folder_of(run, Path(root))
    saved = read_config(folder, ())
    env_factory = "llmrl-finetune" if "method" in saved else "llmrl-train"
    if env_factory != command:
        raise ConfigError(f"{folder} is a run of {env_factory}: {env_factory} {FLAG} {run}")
    before = _typed_for(folder)
    own = _config_dir(rest)
    _check_files(folder, own)
    refused = [each for each in before if _trusts(_key(each))]
    before = [each for each in before if each not in refused]
    if refused:
        sys.stderr.write(
            f"{command}: left out, as only what is typed is trusted: {shlex.join(refused)}; type what you know\n"
        )
    primary = "finetune" if "method" in saved else "train"
    try:
        now = plain(primary, *before, config_dir=own)
    except ConfigError as error:
        raise ConfigError(
            f"what was typed for {folder} composes no config any more ({error}); type what it should be: "
            f"{shlex.join(before)}"
        ) from error
    if changed := changed_sources(folder):
        sys.stderr.write(f"{command}: changed since that run, and used as they are now: {', '.join(changed)}\n")
    chosen = {key for key in typed if "." not in key}
    old = {key: value for key, value in unresolved(saved).items() if not key.endswith("_digest")}
    pins = [
        f"++{path}={written(value)}"
        for path, value in _differing(old, now)
        if path.partition(".")[0] not in (*_NOT_PINNED, *chosen) and path not in typed
    ]
    kept = [each for each in before if _key(each) not in typed]
    dropped = [each for each in kept if _key(each).partition(".")[0] in chosen and "." in _key(each)]
    if dropped:
        sys.stderr.write(f"{command}: left out, as its part is chosen anew: {shlex.join(dropped)}\n")
    # Later steps take all overrides as typed by the user, so hosts and keys of the run are checked here.
    whole = copy.deepcopy(now)
    merge(whole, old)
    trusted = trusted_by(list(typed.values()))
    with_approvals(
        {key: value for key, value in whole.items() if key not in chosen} | {"trusted_modules": trusted}, set(typed)
    )
    return [*(each for each in kept if each not in dropped), *pins]


def _typed_for(folder: Path) -> list[str]:
    """The overrides of a run, by its status or by the launcher that took it on."""
    from llmrl.run.queued import read_queued
    from llmrl.run.status import read_status

    status, queued = read_status(folder), read_queued(folder)
    if status is not None:
        return list(status.overrides)
    return [] if queued is None else list(queued.overrides)


def _config_dir(arguments: Sequence[str]) -> str | None:
    """The folder of options of one's own that a command line names; None if it names none."""
    for i, argument in enumerate(arguments):
        flag, sign, value = argument.partition("=")
        if flag in _DIRS:
            return value if sign else next(iter(arguments[i + 1 : i + 2]), None)
    return None


def _check_files(folder: Path, own: str | None) -> None:
    """Raise ConfigError if a run was composed of option files that this command does not name."""
    from llmrl.core.plain_data import read_object

    try:
        command = read_object(folder / "provenance.json")["attempts"][-1]["command"]
    except (FileNotFoundError, ValueError, KeyError, TypeError, IndexError):
        return
    words = [str(word) for word in command] if isinstance(command, list) else str(command).split()
    for i, word in enumerate(words):
        flag, sign, value = word.partition("=")
        if flag in _FOLDERS and own is None:
            named = value if sign else "".join(words[i + 1 : i + 2])
            raise ConfigError(
                f"{folder} was composed with {flag} {named}, whose files are not in it; add --config-dir with that "
                "folder, as it was then"
            )


def _trusts(key: str) -> bool:
    """Whether an override says which code may run, or is one of Hydra's own: for whoever types the command to say."""
    return (
        key in ("trusted_modules", "hardware.backend")
        or re.split(r"[./@]", key)[0] == "hydra"
        or key.startswith("hardware.backend.")
    )


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0].strip()


def _differing(saved: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of `saved` that is another, or not there, in `now`, with its key."""
    for key, value in saved.items():
        other = now.get(key, _ABSENT)
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            yield from _differing(value, other, f"{path}.")
        elif value != other:
            yield path, value
