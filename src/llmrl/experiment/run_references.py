"""References to runs in a config: `run:<hash>`, `latest:<name>`, `preset:<study>`, or a folder.

When a run is composed, `resolve_references` finds the run that each reference names, replaces the reference by its
folder, and records its identity (`resolved_runs`). The hash covers the identity, not the reference as typed. A run that
starts from other weights therefore has another hash, and a repeated command resolves `latest:` to the same run.
"""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.config import input_digests
from llmrl.config.builder import Config
from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible, RunFolderError
from llmrl.experiment.config_completion import has_text_reader, iterate_agent_nodes, without_unread_sections
from llmrl.experiment.prerequisites import PrerequisiteRun
from llmrl.experiment.run_lookup import (
    RunReference,
    find_experiment_runs,
    find_newest_run,
    format_runs,
    is_finished,
    parse_reference,
    select_run,
)
from llmrl.run.artifacts import ADAPTER_FOLDER, CONFIG_NAME, read_config
from llmrl.run.config_hash import RESOLVED_RUNS_KEY, config_hash
from llmrl.run.folder import format_seed_folder, parse_config_hash, parse_seed, sanitize_path

log = logging.getLogger(__name__)

_PINNED_REFERENCES_FOLDER = ".references"
"""Subfolder of `<output_root>/<name>` with records of the runs to which `latest:` references were resolved."""
_OWN_SEED, _SHARED_SEED = "own", "shared"
"""Values of `<key>_seed`: each run's own seed, or seed 0 for all runs."""
_PRESET_SEED_KEY = "agent.init_from"
"""Key whose `<key>_seed` determines the seed of a preset reference without a seed, at every key of a config."""
_INHERITED_KEYS = ("output_root", "hardware", "trusted_modules", "checkpoint_seconds", "private")
"""Keys of the config that the run of a preset takes from the run that refers to it; they do not change results."""

_PRESET_ENV_KEYS = ("n_envs", "render", "engine")
"""Options of the environment that keep their values in the preset; they do not change the rules of the games."""

_WEIGHT_SHAPE_KEYS = (
    *("share_parameters", "observation_channels", "features", "core", "encoding", "map_channels", "planes"),
    *("core_hidden", "head_hidden", "memory", "memory_layers", "critic", "film"),
)
"""Options of an agent that determine the shapes of its weights."""


@dataclass(frozen=True)
class ReferenceKey:
    """A key of a config whose value can be a reference to a run.

    Attributes:
        key: key of the config.
        subpath: file or folder inside the run folder to use; empty: the run folder itself.
        is_list: whether the value is a list, each entry of which may name all runs of an experiment.
        accepts_preset: whether the value may be `preset:<study>`.
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
    ReferenceKey("llm.adapter", ADAPTER_FOLDER),
    ReferenceKey("dataset.runs", is_list=True),
)
"""All keys whose values can be references to runs."""


def resolve_references(config: Config) -> dict[str, Any]:
    """Replace the references in a resolved config by folders of runs, whose identities are added as `resolved_runs`.

    A config without references, or with `resolved_runs`, is returned unchanged.

    Raises:
        ConfigError: an invalid reference, a preset that cannot be used, or a preset for a key that accepts none.
        RunFolderError: no run or several runs match a reference; the message lists them.
    """
    if RESOLVED_RUNS_KEY in config:
        return dict(config)
    resolved_runs: dict[str, dict[str, Any]] = {}
    resolved_config: dict[str, Any] = dict(config)
    for reference_key in REFERENCE_KEYS:
        group, _, key = reference_key.key.partition(".")
        setting = (config.get(group) or {}).get(key)
        values = list(setting or []) if reference_key.is_list else [setting]
        texts = [text for text in values if isinstance(text, str)]
        resolved = [run for text in texts if (run := _resolve_reference(reference_key, text, config)) is not None]
        if len(resolved) < len(texts) or not resolved:
            if resolved:
                raise ConfigError(f"{reference_key.key} must name all runs by reference, or all by their folders")
            continue
        paths = [str(run.folder / reference_key.subpath) for run in resolved]
        resolved_config[group] = {**resolved_config[group], key: paths if reference_key.is_list else paths[0]}
        references = [run.pinned_text for run in resolved] if reference_key.is_list else resolved[0].pinned_text
        resolved_runs[reference_key.key] = {"run": ",".join(run.identity for run in resolved), "as": references}
    return {**resolved_config, RESOLVED_RUNS_KEY: resolved_runs} if resolved_runs else resolved_config


def with_digests(config: Config) -> dict[str, Any]:
    """Return a config with the identities of the runs and the digests of the files that affect its results.

    Raises:
        ConfigError: a file is missing or has changed since the run was submitted, or see `resolve_references`.
        RunFolderError: see `resolve_references`.
    """
    return input_digests.with_digests(resolve_references(config))


def without_digests(config: Config) -> dict[str, Any]:
    """Return a config without digests, with references instead of folders of runs; `latest:` has become `run:`."""
    original = {key: value for key, value in input_digests.without_digests(config).items() if key != RESOLVED_RUNS_KEY}
    for path, resolution in (config.get(RESOLVED_RUNS_KEY) or {}).items():
        group, _, key = path.partition(".")
        original[group] = {**original[group], key: resolution["as"]}
    return original


def list_referenced_runs(config: Config) -> list[PrerequisiteRun]:
    """Return the runs that a config refers to; they must be finished before its own run starts.

    Args:
        config: resolved config, before or after `resolve_references`.

    Raises:
        ConfigError: a preset has changed since the config was resolved; or see `resolve_references`.
    """
    config = resolve_references(config)
    runs = []
    for key, resolution in (config.get(RESOLVED_RUNS_KEY) or {}).items():
        for text, identity in zip(_to_list(resolution["as"]), resolution["run"].split(","), strict=True):
            reference = parse_reference(text)
            if reference is None:
                continue
            if reference.kind == "preset":
                run = _make_preset_run(key, reference, config)
                if config_hash(run.config) != identity.partition("/")[0]:
                    raise ConfigError(
                        f"the preset of {key}={reference} has changed since this run was submitted; repeat its "
                        "command, which starts a new run"
                    )
                runs.append(run)
            else:
                runs += [
                    PrerequisiteRun.from_folder(_run_purpose(key), str(reference), folder, config["trusted_modules"])
                    for folder in _find_referenced_runs(key, config)
                ]
    return runs


@dataclass(frozen=True)
class _ResolvedReference:
    """A resolved reference.

    Attributes:
        folder: folder of the run; folder of the experiment if the reference names the runs of all its seeds.
        identity: `<hash>/<seed>` of the run, part of the hash of the config that refers to it.
        pinned_text: reference that replaces the typed one and always resolves to the same run.
    """

    folder: Path
    identity: str
    pinned_text: str


def _resolve_reference(reference_key: ReferenceKey, text: str, config: Config) -> _ResolvedReference | None:
    """Return the run that the value `text` of `reference_key` refers to; None if `text` is not a reference."""
    reference = parse_reference(text)
    if reference is None:
        return _resolve_folder(reference_key, text, config) if reference_key.accepts_folder else None
    try:
        if reference.kind == "preset":
            if not reference_key.accepts_preset:
                raise ConfigError("a preset cannot be used here; use run:<hash>, latest:<name>, or the run's folder")
            run = _make_preset_run(reference_key.key, reference, config)
            seed_text = _resolve_seed(reference.seed, _PRESET_SEED_KEY, config)[1]
            return _ResolvedReference(run.folder, f"{config_hash(run.config)}/{seed_text}", text)
        if reference.kind == "latest":
            reference = _pin_reference(reference_key, reference, config)
        runs = find_experiment_runs(reference, Path(config["output_root"]))
        if reference_key.is_list:
            matches = runs if reference.seed is None else [select_run(reference, runs)]
            folder = matches[0].parent if reference.seed is None else matches[0]
            return _ResolvedReference(
                folder,
                f"{parse_config_hash(runs[0])}/{'all' if reference.seed is None else folder.name}",
                f"run:{parse_config_hash(runs[0])}",
            )
        return _resolve_among_runs(reference_key, reference, runs, config)
    except (ConfigError, RunFolderError) as error:
        if not str(error).startswith("seed="):
            error.args = (f"{reference_key.key}={text}: {error}",)
        raise


def _resolve_folder(reference_key: ReferenceKey, text: str, config: Config) -> _ResolvedReference | None:
    """Return the run in the folder `text` or in one of its subfolders.

    None if the folder is missing or contains no run; the part that reads the folder then raises the error.
    """
    from llmrl.results.run_records import find_runs

    folder = Path(text).expanduser()
    runs = [folder] if (folder / CONFIG_NAME).is_file() else find_runs(folder) if folder.is_dir() else []
    if not runs:
        return None
    if len({run.parent for run in runs}) > 1:
        raise RunFolderError(
            f"{reference_key.key}={text} contains runs of several experiments; name one: {format_runs(runs)}"
        )
    run = _resolve_among_runs(reference_key, None, runs, config)
    if is_finished(run.folder):
        return _ResolvedReference(run.folder, run.identity, text)
    # The identity includes the newest checkpoint, because results depend on the checkpoint that a run starts from.
    checkpoints = (run.folder / "checkpoints").glob("checkpoint_*.pt")
    iteration = max((path.stem.rpartition("_")[2] for path in checkpoints), default="0")
    return _ResolvedReference(run.folder, f"{run.identity}@{iteration}", text)


def _resolve_among_runs(
    reference_key: ReferenceKey, reference: RunReference | None, runs: Sequence[Path], config: Config
) -> _ResolvedReference:
    """Select the run of a reference among the `runs` of one experiment.

    It is the only run, the run with the reference's seed, or the run with the seed that `<key>_seed` determines (by
    default the seed of the config).
    """
    explicit_seed = None if reference is None else reference.seed
    # A renamed folder may have no hash in its name.
    digest = parse_config_hash(runs[0]) or config_hash(read_config(runs[0], ()))
    if len(runs) == 1 and explicit_seed is None:
        single_run = runs[0]
        return _ResolvedReference(single_run, f"{digest}/{single_run.name}", f"run:{digest}/{single_run.name}")
    key = reference_key.key
    seed, seed_text = _resolve_seed(explicit_seed, key, config)
    for run in runs:
        if parse_seed(run) == seed:
            suffix = "" if seed_text == _OWN_SEED else f"/{seed_text}"
            return _ResolvedReference(run, f"{digest}/{seed_text}", f"run:{digest}{suffix}")
    rule_note = "" if explicit_seed is not None else f" ({key}_seed={_get_seed_rule(key, config)})"
    raise RunFolderError(f"there is no seed {seed}{rule_note} among {format_runs(runs)}")


def _pin_reference(reference_key: ReferenceKey, reference: RunReference, config: Config) -> RunReference:
    """Return the reference `run:` that replaces `latest:` in `config`, recorded when the config was first composed."""
    root = Path(config["output_root"]).expanduser()
    folder = root / sanitize_path(str(config["name"])) / _PINNED_REFERENCES_FOLDER
    path = folder / f"{config_hash({**config, 'key': reference_key.key})}.json"
    record = _read_pinned_reference(path)
    if record is None:
        record = {
            "key": reference_key.key,
            "reference": str(reference),
            "run": parse_config_hash(find_newest_run(reference.target, root)),
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


def _read_pinned_reference(path: Path) -> dict[str, Any] | None:
    """Return the record in the JSON file `path`; None if the file does not exist."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {key: str(record[key]) for key in ("key", "reference", "run", "time")}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read ({error!r}); delete it to resolve `latest:` again") from error


def _make_preset_run(key: str, reference: RunReference, config: Config) -> PrerequisiteRun:
    """Return the run of the preset that `config` refers to at `key`.

    Its environment is that of `config`, and its weights have the shapes of the agent in `config`.

    Args:
        key: key of the config that contains the reference.
        reference: reference to the preset `<study>` or `<study>+<treatment>`.
        config: resolved config that refers to the preset, in plain containers.

    Raises:
        ConfigError: the preset is unknown, is for another environment, has a principal, or starts from another preset.
    """
    from llmrl.experiment.composition import compose_plain

    seed, _ = _resolve_seed(reference.seed, _PRESET_SEED_KEY, config)
    study, _, treatment = reference.target.partition("+")
    overrides = [f"experiment={study}", *([f"treatment={treatment}"] if treatment else [])]
    preset_config = copy.deepcopy(compose_plain("train", *overrides))
    preset_config |= {**{key: config[key] for key in _INHERITED_KEYS}, "seed": seed}
    init_from = preset_config["agent"].get("init_from")
    if preset_config["principal"].get("_target_") is not None or str(init_from).startswith("preset:"):
        raise ConfigError(
            f"{key}=preset:{reference.target}: this preset has a principal, or starts from another preset; use one "
            "that trains agents without a principal from new weights"
        )
    _inherit_env_and_shapes(preset_config, config)
    return PrerequisiteRun(
        _run_purpose(key),
        f"{reference}, seed {seed}",
        with_digests(without_unread_sections(preset_config)),
        [*overrides, f"seed={seed}"],
        preset_config["learn"]["env_steps"],
    )


def _run_purpose(key: str) -> str:
    """Return the purpose of the run that the value of `key` refers to, for messages."""
    return "pre-training" if key == "agent.init_from" else f"the run of {key}"


def _resolve_seed(explicit_seed: int | None, key: str, config: Config) -> tuple[int, str]:
    """Return the seed of a referenced run, and the text of this seed in the run's identity.

    The text is `own` if each run refers to the run with its own seed, so that all these runs have the same hash.

    Args:
        explicit_seed: seed in the reference; None: `<key>_seed` of the config determines the seed.
        key: key of the config that contains the reference.
        config: config that contains the reference.

    Raises:
        ConfigError: the value of `<key>_seed` or `seed` is invalid.
    """
    rule = _get_seed_rule(key, config) if explicit_seed is None else explicit_seed
    seed = config["seed"] if rule == _OWN_SEED else 0 if rule == _SHARED_SEED else rule
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed={seed!r} must be a whole number >= 0")
    return seed, _OWN_SEED if rule == _OWN_SEED else format_seed_folder(seed)


def _get_seed_rule(key: str, config: Config) -> str | int:
    """Return `<key>_seed` of the config: `own`, `shared` or a seed; `own` if the config has no such key."""
    group, _, name = key.partition(".")
    rule = (config.get(group) or {}).get(f"{name}_seed", _OWN_SEED)
    if rule in (_OWN_SEED, _SHARED_SEED) or (isinstance(rule, int) and not isinstance(rule, bool) and rule >= 0):
        return rule
    raise ConfigError(f"{key}_seed={rule!r} must be own, shared, or a seed (a whole number >= 0)")


def _find_referenced_runs(key: str, config: Config) -> list[Path]:
    """Return the folders of all runs that the value of `key` in a resolved config refers to."""
    from llmrl.results.run_records import find_runs

    [reference_key] = [reference_key for reference_key in REFERENCE_KEYS if reference_key.key == key]
    group, _, name = key.partition(".")
    folders = [Path(path) for path in _to_list(config[group][name])]
    return [run for folder in folders for run in find_runs(folder.parent if reference_key.subpath else folder)]


def _to_list(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _inherit_env_and_shapes(preset_config: dict[str, Any], config: Config) -> None:
    """Copy the environment, and options that determine the shapes of weights, from `config` to `preset_config`."""
    env = config["env"]
    for name in ("_target_", "substrate"):
        if preset_config["env"].get(name) != env.get(name):
            raise Incompatible(
                IncompatibilityReason.WRONG_GAME,
                f"this preset is for another environment: env.{name} is {preset_config['env'].get(name)} in the preset "
                f"and {env.get(name)} in this run. Start with untrained agents by agent.init_from=null, or by a "
                "regime= without pre-training",
            )
    preset_config["env"] = {
        **copy.deepcopy(dict(env)),
        **{name: preset_config["env"][name] for name in _PRESET_ENV_KEYS if name in preset_config["env"]},
    }
    channels = preset_config["env"].get("observe")
    if channels and not has_text_reader(preset_config):
        preset_config["env"]["observe"] = [channel for channel in channels if channel != "text"]
    for agent in iterate_agent_nodes(config["agent"]):
        if preset_config["agent"].get("_target_") == agent.get("_target_"):
            preset_config["agent"] |= {
                name: copy.deepcopy(agent[name])
                for name in _WEIGHT_SHAPE_KEYS
                if name in agent and name in preset_config["agent"]
            }
            break
