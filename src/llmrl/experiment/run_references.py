"""References to runs in a config: `run:<hash>`, `latest:<name>`, `preset:<study>`, or a folder.

When a run is composed, `resolved` finds the run that each reference names, replaces the reference by its folder, and
records its identity (`resolved_runs`). The hash covers the identity, not the reference as typed. So a run that starts
from other weights is another run, and `latest:` names the same run whenever a command is repeated.
"""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.config import input_digests
from llmrl.core.errors import ConfigError, Incompatible, Misfit, RunFolderError
from llmrl.experiment.members import parts_of, reads
from llmrl.experiment.prerequisites import PrerequisiteRun
from llmrl.experiment.run_lookup import RunReference, experiment_runs, is_finished, listing, newest_run, only_of, parsed
from llmrl.run.config_hash import RESOLVED, config_hash
from llmrl.run.folder_names import hash_of, safe_path, seed_folder, seed_of

log = logging.getLogger(__name__)

Config = Mapping[str, Any]
_STORE = ".references"
"""Folder beside the runs of a name, with a record of the run that each `latest:` was resolved to."""
_OWN, _SHARED = "own", "shared"

_TAKEN_OVER = ("output_root", "hardware", "trusted_modules", "checkpoint_seconds", "private")
"""Keys that the run of a preset takes from the run that needs it; they do not change results."""

OWN_GAMES = ("n_envs", "render")
"""Options of the environment that the preset keeps: the number of games, and options outside the game."""

SHAPE = (
    *(
        "share_parameters",
        "observation_channels",
        "features",
        "core",
        "encoding",
        "map_channels",
        "map_stride",
        "planes",
        "join",
    ),
    *("core_hidden", "head_hidden", "memory", "memory_layers", "critic", "film"),
)
"""Options of an agent that determine the shapes of its weights."""


@dataclass(frozen=True)
class Place:
    """A key of a config that names a run.

    Attributes:
        key: key of the config.
        inside: file or folder inside the run folder to use; empty: the run folder itself.
        many: whether the value is a list, each entry of which may name all runs of an experiment.
        presets: whether the run may be that of a preset.
        folders: whether a folder as the value must be a run folder, or one around a run.
    """

    key: str
    inside: str = ""
    many: bool = False
    presets: bool = False
    folders: bool = False


PLACES = (
    Place("agent.init_from", presets=True, folders=True),
    Place("agent.data", presets=True, folders=True),
    Place("agent.examples_from", folders=True),
    Place("teacher.table", "plans.json", presets=True),
    Place("llm.calls"),
    Place("llm.adapter", "adapter"),
    Place("dataset.runs", many=True),
)
"""All keys that name a run."""


def resolved(config: Config) -> dict[str, Any]:
    """Return a resolved config with the folders of the runs that it refers to, and their identities in `resolved_runs`.
    A config without references, or with `resolved_runs`, is returned unchanged.

    Raises:
        ConfigError: an invalid reference, a preset that cannot be used, or a preset for a key that takes none.
        RunFolderError: there is no such run, or there are several; the message lists them.
    """
    if RESOLVED in config:
        return dict(config)
    found: dict[str, dict[str, Any]] = {}
    made: dict[str, Any] = dict(config)
    for place in PLACES:
        group, _, key = place.key.partition(".")
        typed = (config.get(group) or {}).get(key)
        values = list(typed or []) if place.many else [typed]
        texts = [text for text in values if isinstance(text, str)]
        entries = [entry for text in texts if (entry := _entry(place, text, config)) is not None]
        if not entries or len(entries) < len(texts):
            if entries:
                raise ConfigError(f"{place.key}: name all runs by reference, or all by their folder")
            continue
        places = [entry.folder / place.inside if place.inside else entry.folder for entry in entries]
        own = [str(each) for each in places] if place.many else str(places[0])
        made[group] = {**made[group], key: own}
        pinned = [entry.pinned for entry in entries] if place.many else entries[0].pinned
        found[place.key] = {"run": ",".join(entry.identity for entry in entries), "as": pinned}
    return {**made, RESOLVED: found} if found else made


def unresolved(config: Config) -> dict[str, Any]:
    """Return the config as it was before `resolved`, except that `latest:` is replaced by the run it stands for."""
    made = {key: value for key, value in config.items() if key != RESOLVED}
    for path, entry in (config.get(RESOLVED) or {}).items():
        group, _, key = path.partition(".")
        made[group] = {**made[group], key: entry["as"]}
    return made


def with_digests(config: Config) -> dict[str, Any]:
    """Return a config with the identities of runs (`resolved`) and digests of files (`input_digests`) that results
    depend on.

    Raises:
        ConfigError: a file is missing or has changed since the run was submitted, or as `resolved`.
        RunFolderError: as `resolved`.
    """
    return input_digests.with_digests(resolved(config))


def without_digests(config: Config) -> dict[str, Any]:
    """Return the config as it was before `with_digests`; `latest:` is replaced as by `unresolved`."""
    return unresolved(input_digests.without_digests(config))


def needed(config: Config) -> list[PrerequisiteRun]:
    """Return the runs that the run of a config refers to, which must be finished before it begins.

    Args:
        config: resolved config, before or after `resolved`.

    Raises:
        ConfigError: a preset has changed since the config was resolved; or as `resolved`.
    """
    config = resolved(config)
    found = []
    for key, entry in (config.get(RESOLVED) or {}).items():
        for text, identity in zip(_listed(entry["as"]), entry["run"].split(","), strict=True):
            reference = parsed(text)
            if reference is None:
                continue
            if reference.kind == "preset":
                run = _of_preset(key, reference, config)
                if config_hash(run.config) != identity.partition("/")[0]:
                    raise ConfigError(
                        f"the preset of {key}={reference} has changed since this run was submitted; repeat its "
                        "command, which makes a new run"
                    )
                found.append(run)
            else:
                folder = _existing(key, config)
                found += [
                    PrerequisiteRun.existing(_what(key), str(reference), run, config["trusted_modules"])
                    for run in folder
                ]
    return found


@dataclass(frozen=True)
class _Entry:
    """A run that was found: its folder (with `many`, that of its experiment), its identity in the hash, and the
    reference that names it from now on."""

    folder: Path
    identity: str
    pinned: str


def _entry(place: Place, text: str, config: Config) -> _Entry | None:
    """Return the run that `text` names at `place`; None if it is not a reference, but something for the part itself."""
    reference = parsed(text)
    if reference is None:
        return _given(place, text, config) if place.folders else None
    try:
        if reference.kind == "preset":
            if not place.presets:
                raise ConfigError("name a run: run:<hash>, latest:<name>, or its folder; a preset is not one")
            run = _of_preset(place.key, reference, config)
            return _Entry(run.folder, f"{config_hash(run.config)}/{_said_seed(reference.seed, config)}", text)
        if reference.kind == "latest":
            reference = _pinned(place, reference, config)
        runs = experiment_runs(reference, Path(config["output_root"]))
        own = f"run:{hash_of(runs[0])}"
        if place.many:
            wanted = runs if reference.seed is None else [only_of(reference, runs)]
            folder = wanted[0].parent if reference.seed is None else wanted[0]
            return _Entry(folder, f"{hash_of(runs[0])}/{'all' if reference.seed is None else folder.name}", own)
        return _chosen(place, reference, runs, config)
    except (ConfigError, RunFolderError) as error:
        if not str(error).startswith("seed="):
            error.args = (f"{place.key}={text}: {error}",)
        raise


def _given(place: Place, text: str, config: Config) -> _Entry | None:
    """Return the run in or around which a folder is given; None for a folder that is missing or has no run, which the
    part that reads it reports."""
    from llmrl.analysis.runs import find_runs
    from llmrl.run.artifacts import CONFIG_NAME
    from llmrl.run.folder_names import old_layout

    folder = Path(text).expanduser()
    if said := old_layout(folder):
        raise RunFolderError(f"{place.key}={text}: {said}")
    runs = [folder] if (folder / CONFIG_NAME).is_file() else find_runs(folder) if folder.is_dir() else []
    if not runs:
        return None
    if len({run.parent for run in runs}) > 1:
        raise RunFolderError(f"{place.key}={text} holds {listing(runs)}")
    found = _chosen(place, None, runs, config)
    progress = "" if is_finished(found.folder) else f"@{_checkpoint(found.folder)}"
    return _Entry(found.folder, found.identity + progress, text)


def _chosen(place: Place, reference: RunReference | None, runs: Sequence[Path], config: Config) -> _Entry:
    """Return the run that a reference means among those of one experiment: the only run, that of the reference's seed,
    or that of the seed in `<key>_seed` (by default the seed of the config)."""
    named = None if reference is None else reference.seed
    digest = hash_of(runs[0]) or _own_hash(runs[0])
    if len(runs) == 1 and named is None:
        own = runs[0]
        return _Entry(own, f"{digest}/{own.name}", f"run:{digest}/{own.name}")
    seed = _seed(named, place.key, config)
    for run in runs:
        if seed_of(run) == seed:
            said = _said_seed(named, config, place.key)
            return _Entry(run, f"{digest}/{said}", f"run:{digest}" + ("" if said == _OWN else f"/{said}"))
    how = "" if named is not None else f" ({place.key}_seed={_rule(place.key, config)})"
    raise RunFolderError(f"there is no seed {seed}{how} among {listing(runs)}")


def _pinned(place: Place, reference: RunReference, config: Config) -> RunReference:
    """Return the experiment that `latest:` stands for in `config`, as recorded when the config was first composed."""
    root = Path(config["output_root"]).expanduser()
    folder = root / safe_path(str(config["name"])) / _STORE
    path = folder / f"{config_hash({**config, 'key': place.key})}.json"
    kept = _kept(path)
    if kept is None:
        digest = hash_of(newest_run(reference.what, root))
        kept = {
            "key": place.key,
            "reference": str(reference),
            "run": digest,
            "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        if not config["dry_run"]:
            from llmrl.run.files import write_atomic

            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(kept))
        others = {entry["run"] for each in folder.glob("*.json") if (entry := _kept(each)) and _alike(entry, kept)}
        if others - {digest}:
            log.warning(
                "%s=%s is run:%s, and runs of this name began with %s: to compare with those, name it run:<hash>",
                *(place.key, reference, digest, ", ".join(f"run:{each}" for each in sorted(others - {digest}))),
            )
    else:
        log.info("%s=%s is run:%s, as found on %s (%s)", place.key, reference, kept["run"], kept["time"], path)
    return RunReference("run", kept["run"], reference.seed)


def _alike(one: Config, other: Config) -> bool:
    return all(one[key] == other[key] for key in ("key", "reference"))


def _kept(path: Path) -> dict[str, Any] | None:
    """Return the record in `path`; None if there is none."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        return {key: str(entry[key]) for key in ("key", "reference", "run", "time")}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error!r}); remove it, and the newest run is looked up"
        ) from error


def _of_preset(key: str, reference: RunReference, config: Config) -> PrerequisiteRun:
    """Return the run of a preset that the run of `config` names at `key`."""
    from llmrl.experiment.unused_sections import only_read

    seed = _seed_of(reference, config)
    own, overrides = composed(reference.what, seed, config)
    steps = own["learn"]["env_steps"]
    return PrerequisiteRun(_what(key), f"{reference}, seed {seed}", with_digests(only_read(own)), overrides, steps)


def _what(key: str) -> str:
    """Return the purpose of the run that `key` names, in words."""
    return "pre-training" if key == "agent.init_from" else f"the run of {key}"


def _seed_of(reference: RunReference, config: Config) -> int:
    """Return the seed of the preset's run that the run of `config` starts from."""
    return _seed(reference.seed, "agent.init_from", config)


def _seed(named: int | None, key: str, config: Config) -> int:
    if named is not None:
        return named
    rule = _rule(key, config)
    seed = config["seed"] if rule == _OWN else 0 if rule == _SHARED else rule
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed={seed!r}: a whole number >= 0 is needed")
    return seed


def _rule(key: str, config: Config) -> str | int:
    """Return `<key>_seed` of the config; `own` without such a key."""
    group, _, name = key.partition(".")
    rule = (config.get(group) or {}).get(f"{name}_seed", _OWN)
    if rule in (_OWN, _SHARED) or (isinstance(rule, int) and not isinstance(rule, bool) and rule >= 0):
        return rule  # type: ignore[no-any-return]
    raise ConfigError(f"{key}_seed={rule!r}: own, shared, or a seed, a whole number >= 0, is needed")


def _said_seed(named: int | None, config: Config, key: str = "agent.init_from") -> str:
    """Return the seed's part of the identity: `own` if each run uses its own seed, so that seeds are one experiment."""
    return _OWN if named is None and _rule(key, config) == _OWN else seed_folder(_seed(named, key, config))


def _existing(key: str, config: Config) -> list[Path]:
    """Return the runs whose folders a resolved config has at `key`."""
    from llmrl.analysis.runs import find_runs

    [place] = [place for place in PLACES if place.key == key]
    group, _, name = key.partition(".")
    value = config[group][name]
    folders = [Path(each) for each in _listed(value)]
    return [run for folder in folders for run in find_runs(folder.parent if place.inside else folder)]


def _listed(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _own_hash(run: Path) -> str:
    """Return the hash of a run from its config, for a folder whose name has none."""
    from llmrl.run.artifacts import read_config

    return config_hash(read_config(run, ()))


def _checkpoint(run: Path) -> str:
    """Return the iteration of an unfinished run's newest checkpoint, because another checkpoint means another run."""
    return max((path.stem.rpartition("_")[2] for path in (run / "checkpoints").glob("checkpoint_*.pt")), default="0")


def composed(preset: str, seed: int, config: Config) -> tuple[dict[str, Any], list[str]]:
    """Compose the run of a preset for the run of `config`, in the environment of the latter, and with weights of the
    same shape. Return its plain config, and the overrides that its folder is named after.

    Args:
        preset: `<study>` or `<study>+<treatment>`.
        seed: seed of the preset's run.
        config: resolved config of the run that needs it, in plain containers.

    Raises:
        ConfigError: an unknown preset, one for another environment, one with a principal, or one that starts from
            another preset.
    """
    from llmrl.experiment.composition import plain

    study, _, treatment = preset.partition("+")
    overrides = [f"experiment={study}", *([f"treatment={treatment}"] if treatment else [])]
    own = {**copy.deepcopy(plain("train", *overrides)), **{each: config[each] for each in _TAKEN_OVER}}
    own["seed"] = seed
    if own["principal"].get("_target_") is not None or str(own["agent"].get("init_from")).startswith("preset:"):
        raise ConfigError(
            "a preset to begin with trains agents alone, from weights of their own; this one has a principal, or "
            "begins with another preset"
        )
    _inherit(own, config)
    return own, [*overrides, f"seed={seed}"]


def _inherit(own: dict[str, Any], config: Config) -> None:
    """Copy the environment of `config`, and the options that shape its agents' weights, to the preset's config."""
    env = config["env"]
    for name in ("_target_", "substrate"):
        if own["env"].get(name) != env.get(name):
            raise Incompatible(
                Misfit.ONE_GAME,
                f"that preset is for another environment: env.{name} is {own['env'].get(name)} there and "
                f"{env.get(name)} here",
            )
    own["env"] = {**copy.deepcopy(dict(env)), **{name: own["env"][name] for name in OWN_GAMES if name in own["env"]}}
    if not reads(own) and own["env"].get("observe"):  # words are for those beside them who read
        own["env"]["observe"] = [channel for channel in own["env"]["observe"] if channel != "text"]
    for agent in parts_of(config["agent"]):
        if own["agent"].get("_target_") == agent.get("_target_"):
            own["agent"] |= {
                name: copy.deepcopy(agent[name]) for name in SHAPE if name in agent and name in own["agent"]
            }
            break
