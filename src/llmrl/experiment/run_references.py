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
from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible, RunFolderError
from llmrl.experiment.config_completion import agent_nodes, has_text_reader, without_unread_sections
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
from llmrl.run.folder import format_seed_folder, parse_hash, parse_seed, sanitize_path

log = logging.getLogger(__name__)

Config = Mapping[str, Any]
_PINNED_FOLDER = ".references"
"""Subfolder of `<output_root>/<name>` that records which run each `latest:` reference resolved to."""
_OWN, _SHARED = "own", "shared"
"""Values of `<key>_seed`: each run's own seed, or seed 0 for all runs."""
_COMMON_KEYS = ("output_root", "hardware", "trusted_modules", "checkpoint_seconds", "private")
"""Keys that the run of a preset takes from the run that needs it; they do not change results."""

_PRESET_ENV_KEYS = ("n_envs", "render")
"""Options of the environment that the preset keeps: the number of games, and options that do not change the game."""

_SHAPE_KEYS = (
    *("share_parameters", "observation_channels", "features", "core", "encoding", "map_channels", "planes"),
    *("core_hidden", "head_hidden", "memory", "memory_layers", "critic", "film"),
)
"""Options of an agent that determine the shapes of its weights."""


@dataclass(frozen=True)
class ReferenceKey:
    """A key of a config that names a run.

    Attributes:
        key: key of the config.
        subpath: file or folder inside the run folder to use; empty: the run folder itself.
        is_list: whether the value is a list, each entry of which may name all runs of an experiment.
        accepts_preset: whether the run may be that of a preset.
        accepts_folder: whether the value may also be the path of a run folder, or of a folder that contains the runs of
            one experiment.
    """

    key: str
    subpath: str = ""
    is_list: bool = False
    accepts_preset: bool = False
    accepts_folder: bool = False


REFERENCE_KEYS = (
    ReferenceKey("agent.init_from", accepts_preset=True, accepts_folder=True),
    ReferenceKey("agent.data", accepts_preset=True, accepts_folder=True),
    ReferenceKey("teacher.table", "plans.json", accepts_preset=True),
    ReferenceKey("llm.calls"),
    ReferenceKey("llm.adapter", ADAPTER),
    ReferenceKey("dataset.runs", is_list=True),
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
    for reference_key in REFERENCE_KEYS:
        group, _, key = reference_key.key.partition(".")
        setting = (config.get(group) or {}).get(key)
        values = list(setting or []) if reference_key.is_list else [setting]
        texts = [text for text in values if isinstance(text, str)]
        entries = [entry for text in texts if (entry := _resolve(reference_key, text, config)) is not None]
        if not entries or len(entries) < len(texts):
            if entries:
                raise ConfigError(f"{reference_key.key} must name all runs by reference, or all by their folders")
            continue
        paths = [entry.folder / reference_key.subpath if reference_key.subpath else entry.folder for entry in entries]
        folders = [str(path) for path in paths] if reference_key.is_list else str(paths[0])
        new_config[group] = {**new_config[group], key: folders}
        references = [entry.pinned for entry in entries] if reference_key.is_list else entries[0].pinned
        identities[reference_key.key] = {"run": ",".join(entry.identity for entry in entries), "as": references}
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
                runs += [
                    PrerequisiteRun.existing(_run_purpose(key), str(reference), folder, config["trusted_modules"])
                    for folder in _referenced_runs(key, config)
                ]
    return runs


@dataclass(frozen=True)
class _ResolvedReference:
    """A resolved reference.

    Attributes:
        folder: folder of the run; with `is_list`, that of its experiment if all seeds are meant.
        identity: identity of the run, which the hash covers.
        pinned: reference that replaces the typed one; it names the same run whenever it is resolved.
    """

    folder: Path
    identity: str
    pinned: str


def _resolve(reference_key: ReferenceKey, text: str, config: Config) -> _ResolvedReference | None:
    """Return the run that `text` names at `reference_key`; None if `text` is an ordinary value of the option."""
    reference = parse_reference(text)
    if reference is None:
        return _folder_entry(reference_key, text, config) if reference_key.accepts_folder else None
    try:
        if reference.kind == "preset":
            if not reference_key.accepts_preset:
                raise ConfigError("a preset cannot be used here; use run:<hash>, latest:<name>, or the run's folder")
            run = _preset_run(reference_key.key, reference, config)
            return _ResolvedReference(
                run.folder, f"{config_hash(run.config)}/{_seed_text(reference.seed, config)}", text
            )
        if reference.kind == "latest":
            reference = _pin_reference(reference_key, reference, config)
        runs = experiment_runs(reference, Path(config["output_root"]))
        reference_text = f"run:{parse_hash(runs[0])}"
        if reference_key.is_list:
            matches = runs if reference.seed is None else [only_of(reference, runs)]
            folder = matches[0].parent if reference.seed is None else matches[0]
            return _ResolvedReference(
                folder, f"{parse_hash(runs[0])}/{'all' if reference.seed is None else folder.name}", reference_text
            )
        return _select_entry(reference_key, reference, runs, config)
    except (ConfigError, RunFolderError) as error:
        if not str(error).startswith("seed="):
            error.args = (f"{reference_key.key}={text}: {error}",)
        raise


def _folder_entry(reference_key: ReferenceKey, text: str, config: Config) -> _ResolvedReference | None:
    """Return the run in a folder, or in a folder below it.

    None if the folder is missing or has no run; the error is then reported by whatever reads the folder.
    """
    from llmrl.results.run_records import find_runs

    folder = Path(text).expanduser()
    runs = [folder] if (folder / CONFIG_NAME).is_file() else find_runs(folder) if folder.is_dir() else []
    if not runs:
        return None
    if len({run.parent for run in runs}) > 1:
        raise RunFolderError(
            f"{reference_key.key}={text} contains runs of several experiments; name one: {listing(runs)}"
        )
    entry = _select_entry(reference_key, None, runs, config)
    progress = "" if is_finished(entry.folder) else f"@{_checkpoint(entry.folder)}"
    return _ResolvedReference(entry.folder, entry.identity + progress, text)


def _select_entry(
    reference_key: ReferenceKey, reference: RunReference | None, runs: Sequence[Path], config: Config
) -> _ResolvedReference:
    """Return the run that a reference means among those of one experiment.

    It is the only run, the run of the reference's seed, or the run of the seed in `<key>_seed` (by default the seed of
    the config).
    """
    explicit_seed = None if reference is None else reference.seed
    # Fall back to the hash of the config if the name of the folder has none.
    digest = parse_hash(runs[0]) or config_hash(read_config(runs[0], ()))
    if len(runs) == 1 and explicit_seed is None:
        single_run = runs[0]
        return _ResolvedReference(single_run, f"{digest}/{single_run.name}", f"run:{digest}/{single_run.name}")
    seed = _seed(explicit_seed, reference_key.key, config)
    for run in runs:
        if parse_seed(run) == seed:
            seed_text = _seed_text(explicit_seed, config, reference_key.key)
            return _ResolvedReference(
                run, f"{digest}/{seed_text}", f"run:{digest}" + ("" if seed_text == _OWN else f"/{seed_text}")
            )
    key = reference_key.key
    rule = "" if explicit_seed is not None else f" ({key}_seed={_seed_rule(key, config)})"
    raise RunFolderError(f"there is no seed {seed}{rule} among {listing(runs)}")


def _pin_reference(reference_key: ReferenceKey, reference: RunReference, config: Config) -> RunReference:
    """Return the experiment that `latest:` means in `config`, as recorded when the config was first composed."""
    root = Path(config["output_root"]).expanduser()
    folder = root / sanitize_path(str(config["name"])) / _PINNED_FOLDER
    path = folder / f"{config_hash({**config, 'key': reference_key.key})}.json"
    record = _read_record(path)
    if record is None:
        digest = parse_hash(newest_run(reference.target, root))
        record = {
            "key": reference_key.key,
            "reference": str(reference),
            "run": digest,
            "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        }
        if not config["dry_run"]:
            from llmrl.run.files import write_atomic

            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(record))
    else:
        log.info(
            "%s=%s is run:%s, as found on %s (%s)", reference_key.key, reference, record["run"], record["time"], path
        )
    return RunReference("run", record["run"], reference.seed)


def _read_record(path: Path) -> dict[str, Any] | None:
    """Return the record in `path`; None if there is none."""
    try:
        entry = json.loads(path.read_text(encoding="utf-8"))
        return {key: str(entry[key]) for key in ("key", "reference", "run", "time")}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read ({error!r}); delete it to resolve `latest:` again") from error


def _preset_run(key: str, reference: RunReference, config: Config) -> PrerequisiteRun:
    """Return the run of a preset that the run of `config` names at `key`."""
    # One rule for the presets of all keys: without a seed in the reference, `agent.init_from_seed` determines it.
    seed = _seed(reference.seed, "agent.init_from", config)
    preset_config, overrides = compose_preset(reference.target, seed, config)
    steps = preset_config["learn"]["env_steps"]
    return PrerequisiteRun(
        _run_purpose(key),
        f"{reference}, seed {seed}",
        with_digests(without_unread_sections(preset_config)),
        overrides,
        steps,
    )


def _run_purpose(key: str) -> str:
    """Return the purpose of the run that `key` names, in words."""
    return "pre-training" if key == "agent.init_from" else f"the run of {key}"


def _seed(explicit_seed: int | None, key: str, config: Config) -> int:
    if explicit_seed is not None:
        return explicit_seed
    rule = _seed_rule(key, config)
    seed = config["seed"] if rule == _OWN else 0 if rule == _SHARED else rule
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed={seed!r} must be a whole number >= 0")
    return seed


def _seed_rule(key: str, config: Config) -> str | int:
    """Return `<key>_seed` of the config; `own` without such a key."""
    group, _, name = key.partition(".")
    rule = (config.get(group) or {}).get(f"{name}_seed", _OWN)
    if rule in (_OWN, _SHARED) or (isinstance(rule, int) and not isinstance(rule, bool) and rule >= 0):
        return rule  # type: ignore[no-any-return]
    raise ConfigError(f"{key}_seed={rule!r} must be own, shared, or a seed (a whole number >= 0)")


def _seed_text(explicit_seed: int | None, config: Config, key: str = "agent.init_from") -> str:
    """Return the seed's part of the identity: `own` if each run uses its own seed.

    Runs that differ only in their seed then share one hash.
    """
    return (
        _OWN
        if explicit_seed is None and _seed_rule(key, config) == _OWN
        else format_seed_folder(_seed(explicit_seed, key, config))
    )


def _referenced_runs(key: str, config: Config) -> list[Path]:
    """Return the runs whose folders a resolved config has at `key`."""
    from llmrl.results.run_records import find_runs

    [reference_key] = [reference_key for reference_key in REFERENCE_KEYS if reference_key.key == key]
    group, _, name = key.partition(".")
    folders = [Path(path) for path in _to_list(config[group][name])]
    return [run for folder in folders for run in find_runs(folder.parent if reference_key.subpath else folder)]


def _to_list(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _checkpoint(run: Path) -> str:
    """Return the iteration of an unfinished run's newest checkpoint.

    It is part of the identity: starting from another checkpoint gives another run.
    """
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


def _inherit(preset_config: dict[str, Any], config: Config) -> None:
    """Copy the environment of `config`, and the options that shape its agents' weights, to the preset's config."""
    env = config["env"]
    for name in ("_target_", "substrate"):
        if preset_config["env"].get(name) != env.get(name):
            raise Incompatible(
                IncompatibilityReason.WRONG_GAME,
                f"this preset is for another environment: env.{name} is {preset_config['env'].get(name)} in the preset "
                f"and {env.get(name)} in this run",
            )
    preset_config["env"] = {
        **copy.deepcopy(dict(env)),
        **{name: preset_config["env"][name] for name in _PRESET_ENV_KEYS if name in preset_config["env"]},
    }
    if not has_text_reader(preset_config) and preset_config["env"].get(
        "observe"
    ):  # texts are only for agents that read
        preset_config["env"]["observe"] = [channel for channel in preset_config["env"]["observe"] if channel != "text"]
    for agent in agent_nodes(config["agent"]):
        if preset_config["agent"].get("_target_") == agent.get("_target_"):
            preset_config["agent"] |= {
                name: copy.deepcopy(agent[name])
                for name in _SHAPE_KEYS
                if name in agent and name in preset_config["agent"]
            }
            break
