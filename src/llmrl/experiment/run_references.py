"""References to runs in a config: `run:<hash>`, `latest:<name>`, `preset:<study>`, or a folder.

When a run is composed, `resolve_references` finds the run that each reference names, replaces the reference by its
folder, and records its identity (`resolved_runs`). The hash covers the identity, not the reference as typed. A run that
starts from other weights is therefore another run, and `latest:` names the same run whenever a command is repeated.
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
from llmrl.experiment.run_lookup import (
    RunReference,
    experiment_runs,
    is_finished,
    listing,
    newest_run,
    only_of,
    parse_reference,
)
from llmrl.run.artifacts import ADAPTER, CONFIG_NAME, read_config
from llmrl.run.config_hash import RESOLVED, config_hash
from llmrl.run.folder_names import hash_of, safe_path, seed_folder, seed_of

log = logging.getLogger(__name__)

Config = Mapping[str, Any]
_STORE = ".references"
"""Folder in that of all runs of a name, with a record of the run that each `latest:` was resolved to."""
_OWN, _SHARED = "own", "shared"
_COMMON_KEYS = ("output_root", "hardware", "trusted_modules", "checkpoint_seconds", "private")
"""Keys that the run of a preset takes from the run that needs it; they do not change results."""

_PRESET_ENV_KEYS = ("n_envs", "render")
"""Options of the environment that the preset keeps: the number of games, and options outside the game."""

_SHAPE_KEYS = (
    *("share_parameters", "observation_channels", "features", "core", "encoding", "map_channels", "planes"),
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
    Place("teacher.table", "plans.json", presets=True),
    Place("llm.calls"),
    Place("llm.adapter", ADAPTER),
    Place("dataset.runs", many=True),
)
"""All keys that name a run."""


def resolve_references(config: Config) -> dict[str, Any]:
    """Return a resolved config with the folders of the runs that it refers to, and their identities in `resolved_runs`.

    A config without references, or with `resolved_runs`, is returned unchanged.

    Raises:
        ConfigError: an invalid reference, a preset that cannot be used, or a preset for a key that takes none.
        RunFolderError: there is no such run, or there are several; the message lists them.
    """
    if RESOLVED in config:
        return dict(config)
    identities: dict[str, dict[str, Any]] = {}
    new_config: dict[str, Any] = dict(config)
    for place in PLACES:
        group, _, key = place.key.partition(".")
        setting = (config.get(group) or {}).get(key)
        values = list(setting or []) if place.many else [setting]
        texts = [text for text in values if isinstance(text, str)]
        entries = [entry for text in texts if (entry := _resolve(place, text, config)) is not None]
        if not entries or len(entries) < len(texts):
            if entries:
                raise ConfigError(f"{place.key} must name all runs by reference, or all by their folders")
            continue
        places = [entry.folder / place.inside if place.inside else entry.folder for entry in entries]
        folders = [str(path) for path in places] if place.many else str(places[0])
        new_config[group] = {**new_config[group], key: folders}
        references = [entry.pinned for entry in entries] if place.many else entries[0].pinned
        identities[place.key] = {"run": ",".join(entry.identity for entry in entries), "as": references}
    return {**new_config, RESOLVED: identities} if identities else new_config


def with_digests(config: Config) -> dict[str, Any]:
    """Return a config with the identities of runs (`resolve_references`) and digests of files (`input_digests`).

    These are the runs and files that affect results.

    Raises:
        ConfigError: a file is missing or has changed since the run was submitted, or as `resolve_references`.
        RunFolderError: as `resolve_references`.
    """
    return input_digests.with_digests(resolve_references(config))


def without_digests(config: Config) -> dict[str, Any]:
    """Return the config as it was before `with_digests`, except that `latest:` is replaced by its run."""
    original = {key: value for key, value in input_digests.without_digests(config).items() if key != RESOLVED}
    for path, entry in (config.get(RESOLVED) or {}).items():
        group, _, key = path.partition(".")
        original[group] = {**original[group], key: entry["as"]}
    return original


def prerequisite_runs(config: Config) -> list[PrerequisiteRun]:
    """Return the runs that the run of a config refers to, which must be finished before it starts.

    Args:
        config: resolved config, before or after `resolve_references`.

    Raises:
        ConfigError: a preset has changed since the config was resolved; or as `resolve_references`.
    """
    config = resolve_references(config)
    runs = []
    for key, entry in (config.get(RESOLVED) or {}).items():
        for text, identity in zip(_to_list(entry["as"]), entry["run"].split(","), strict=True):
            reference = parse_reference(text)
            if reference is None:
                continue
            if reference.kind == "preset":
                run = _preset_run(key, reference, config)
                if config_hash(run.config) != identity.partition("/")[0]:
                    raise ConfigError(
                        f"the preset of {key}={reference} has changed since this run was submitted; repeat its "
                        "command, which starts a new run"
                    )
                runs.append(run)
            else:
                folder = _referenced_runs(key, config)
                runs += [
                    PrerequisiteRun.existing(_run_purpose(key), str(reference), run, config["trusted_modules"])
                    for run in folder
                ]
    return runs


@dataclass(frozen=True)
class _ResolvedReference:
    """A resolved reference.

    It has the run's folder (with `many`, its experiment's), its identity in the hash, and the pinned reference, which
    replaces the typed one.
    """

    folder: Path
    identity: str
    pinned: str


def _resolve(place: Place, text: str, config: Config) -> _ResolvedReference | None:
    """Return the run that `text` names at `place`; None if it is not a reference but an ordinary value of the part."""
    reference = parse_reference(text)
    if reference is None:
        return _folder_entry(place, text, config) if place.folders else None
    try:
        if reference.kind == "preset":
            if not place.presets:
                raise ConfigError("a preset cannot be used here; use run:<hash>, latest:<name>, or the run's folder")
            run = _preset_run(place.key, reference, config)
            return _ResolvedReference(
                run.folder, f"{config_hash(run.config)}/{_seed_text(reference.seed, config)}", text
            )
        if reference.kind == "latest":
            reference = _pin_reference(place, reference, config)
        runs = experiment_runs(reference, Path(config["output_root"]))
        reference_text = f"run:{hash_of(runs[0])}"
        if place.many:
            matches = runs if reference.seed is None else [only_of(reference, runs)]
            folder = matches[0].parent if reference.seed is None else matches[0]
            return _ResolvedReference(
                folder, f"{hash_of(runs[0])}/{'all' if reference.seed is None else folder.name}", reference_text
            )
        return _select_entry(place, reference, runs, config)
    except (ConfigError, RunFolderError) as error:
        if not str(error).startswith("seed="):
            error.args = (f"{place.key}={text}: {error}",)
        raise


def _folder_entry(place: Place, text: str, config: Config) -> _ResolvedReference | None:
    """Return the run in a folder, or in a folder below it.

    None if the folder is missing or has no run, which the part that reads it reports.
    """
    from llmrl.results.run_records import find_runs

    folder = Path(text).expanduser()
    runs = [folder] if (folder / CONFIG_NAME).is_file() else find_runs(folder) if folder.is_dir() else []
    if not runs:
        return None
    if len({run.parent for run in runs}) > 1:
        raise RunFolderError(f"{place.key}={text} holds {listing(runs)}")
    entry = _select_entry(place, None, runs, config)
    progress = "" if is_finished(entry.folder) else f"@{_checkpoint(entry.folder)}"
    return _ResolvedReference(entry.folder, entry.identity + progress, text)


def _select_entry(
    place: Place, reference: RunReference | None, runs: Sequence[Path], config: Config
) -> _ResolvedReference:
    """Return the run that a reference means among those of one experiment.

    It is the only run, the run of the reference's seed, or the run of the seed in `<key>_seed` (by default the seed of
    the config).
    """
    explicit_seed = None if reference is None else reference.seed
    # A folder whose name has no hash.
    digest = hash_of(runs[0]) or config_hash(read_config(runs[0], ()))
    if len(runs) == 1 and explicit_seed is None:
        single_run = runs[0]
        return _ResolvedReference(single_run, f"{digest}/{single_run.name}", f"run:{digest}/{single_run.name}")
    seed = _seed(explicit_seed, place.key, config)
    for run in runs:
        if seed_of(run) == seed:
            seed_text = _seed_text(explicit_seed, config, place.key)
            return _ResolvedReference(
                run, f"{digest}/{seed_text}", f"run:{digest}" + ("" if seed_text == _OWN else f"/{seed_text}")
            )
    rule_note = "" if explicit_seed is not None else f" ({place.key}_seed={_rule(place.key, config)})"
    raise RunFolderError(f"there is no seed {seed}{rule_note} among {listing(runs)}")


def _pin_reference(place: Place, reference: RunReference, config: Config) -> RunReference:
    """Return the experiment that `latest:` means in `config`, as recorded when the config was first composed."""
    root = Path(config["output_root"]).expanduser()
    folder = root / safe_path(str(config["name"])) / _STORE
    path = folder / f"{config_hash({**config, 'key': place.key})}.json"
    record = _read_record(path)
    if record is None:
        digest = hash_of(newest_run(reference.what, root))
        record = {
            "key": place.key,
            "reference": str(reference),
            "run": digest,
            "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        if not config["dry_run"]:
            from llmrl.run.files import write_atomic

            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(record))
    else:
        log.info("%s=%s is run:%s, as found on %s (%s)", place.key, reference, record["run"], record["time"], path)
    return RunReference("run", record["run"], reference.seed)


def _read_record(path: Path) -> dict[str, Any] | None:
    """Return the record in `path`; None if there is none."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        return {key: str(entry[key]) for key in ("key", "reference", "run", "time")}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path} cannot be read ({error!r}); remove it, so that the newest run is looked up"
        ) from error


def _preset_run(key: str, reference: RunReference, config: Config) -> PrerequisiteRun:
    """Return the run of a preset that the run of `config` names at `key`."""
    from llmrl.experiment.unused_sections import only_read

    seed = _seed(reference.seed, "agent.init_from", config)
    preset_config, overrides = compose_preset(reference.what, seed, config)
    steps = preset_config["learn"]["env_steps"]
    return PrerequisiteRun(
        _run_purpose(key), f"{reference}, seed {seed}", with_digests(only_read(preset_config)), overrides, steps
    )


def _run_purpose(key: str) -> str:
    """Return the purpose of the run that `key` names, in words."""
    return "pre-training" if key == "agent.init_from" else f"the run of {key}"


def _seed(explicit_seed: int | None, key: str, config: Config) -> int:
    if explicit_seed is not None:
        return explicit_seed
    rule = _rule(key, config)
    seed = config["seed"] if rule == _OWN else 0 if rule == _SHARED else rule
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed={seed!r} must be a whole number >= 0")
    return seed


def _rule(key: str, config: Config) -> str | int:
    """Return `<key>_seed` of the config; `own` without such a key."""
    group, _, name = key.partition(".")
    rule = (config.get(group) or {}).get(f"{name}_seed", _OWN)
    if rule in (_OWN, _SHARED) or (isinstance(rule, int) and not isinstance(rule, bool) and rule >= 0):
        return rule  # type: ignore[no-any-return]
    raise ConfigError(f"{key}_seed={rule!r} must be own, shared, or a seed (a whole number >= 0)")


def _seed_text(explicit_seed: int | None, config: Config, key: str = "agent.init_from") -> str:
    """Return the seed's part of the identity: `own` if each run uses its own seed, so that seeds are one experiment."""
    return (
        _OWN if explicit_seed is None and _rule(key, config) == _OWN else seed_folder(_seed(explicit_seed, key, config))
    )


def _referenced_runs(key: str, config: Config) -> list[Path]:
    """Return the runs whose folders a resolved config has at `key`."""
    from llmrl.results.run_records import find_runs

    [place] = [place for place in PLACES if place.key == key]
    group, _, name = key.partition(".")
    value = config[group][name]
    folders = [Path(path) for path in _to_list(value)]
    return [run for folder in folders for run in find_runs(folder.parent if place.inside else folder)]


def _to_list(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _checkpoint(run: Path) -> str:
    """Return the iteration of an unfinished run's newest checkpoint, because another checkpoint means another run."""
    return max((path.stem.rpartition("_")[2] for path in (run / "checkpoints").glob("checkpoint_*.pt")), default="0")


def compose_preset(preset: str, seed: int, config: Config) -> tuple[dict[str, Any], list[str]]:
    """Compose the run of a preset in the environment of `config`, with weights of the same shape.

    Return its plain config, and the overrides that its folder is named after.

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
    run_config = {**copy.deepcopy(plain("train", *overrides)), **{key: config[key] for key in _COMMON_KEYS}}
    run_config["seed"] = seed
    if run_config["principal"].get("_target_") is not None or str(run_config["agent"].get("init_from")).startswith(
        "preset:"
    ):
        raise ConfigError(
            "this preset has a principal, or starts from another preset; use one that trains agents without a "
            "principal from new weights"
        )
    _inherit(run_config, config)
    return run_config, [*overrides, f"seed={seed}"]


def _inherit(preset: dict[str, Any], config: Config) -> None:
    """Copy the environment of `config`, and the options that shape its agents' weights, to the preset's config."""
    env = config["env"]
    for name in ("_target_", "substrate"):
        if preset["env"].get(name) != env.get(name):
            raise Incompatible(
                Misfit.ONE_GAME,
                f"this preset is for another environment: env.{name} is {preset['env'].get(name)} in the preset and "
                f"{env.get(name)} in this run",
            )
    preset["env"] = {
        **copy.deepcopy(dict(env)),
        **{name: preset["env"][name] for name in _PRESET_ENV_KEYS if name in preset["env"]},
    }
    if not reads(preset) and preset["env"].get("observe"):  # texts are only for agents that read
        preset["env"]["observe"] = [channel for channel in preset["env"]["observe"] if channel != "text"]
    for agent in parts_of(config["agent"]):
        if preset["agent"].get("_target_") == agent.get("_target_"):
            preset["agent"] |= {
                name: copy.deepcopy(agent[name]) for name in _SHAPE_KEYS if name in agent and name in preset["agent"]
            }
            break
