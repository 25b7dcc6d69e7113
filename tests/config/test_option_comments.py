"""Documentation of options: once each, in the comment of the file that introduces them."""

import re
from collections import defaultdict

import pytest

from llmrl.config.builder import Builder
from llmrl.config.option_docs import (
    format_option_path,
    read_description,
    read_documented_config,
    read_documented_keys,
    read_keys,
)
from llmrl.core.option_files import (
    get_root,
    list_files,
    list_option_names,
    list_part_groups,
    list_paths,
    load_option,
    load_options,
    read_file,
    sets_global_keys,
)
from llmrl.experiment.resources import CALL_POLICY_KEYS

COMMANDS = [(get_root() / f"{name}.yaml", ()) for name in ("_run", "train", "finetune")]
FILES = [path for path in list_paths() if path.relative_to(get_root()).parts[0] in (*list_part_groups(), path.name)]
# Groups that the command `train` has none of.
FINETUNING = ("dataset", "method", "transfer")
OPTIONS = [(group, name) for group in list_part_groups() for name in list_option_names(group)]


def find_files(group, name):
    """Return all files that document the keys of an option.

    An option may set keys of the commands, and keys of `llm=` and `principal=` that only some of their options have.
    """
    other_files = [file for kind in ("dataset", "principal", "llm") for file in list_files(kind, COMMON[kind])]
    return [*COMMANDS, *(other_files if group == "method" else []), *list_files(group, name)]


COMMON = {"dataset": "random", "principal": "llm", "llm": "local_chat"}


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), OPTIONS, ids=lambda x: x)
def test_keys_have_descriptions(group, name):
    documented_keys = read_documented_keys(find_files(group, name))
    own_keys = read_documented_keys(list_files(group, name))
    # What a preset holds for other options (test_debug_presets) means what it means where they are.
    debug_prefixes = ("debug.upper_limits.", "debug.replacements.")
    lacking = [
        key
        for key in own_keys
        if documented_keys[key].is_leaf
        and not documented_keys[key].meaning
        and not key.endswith("_target_")
        and not key.startswith(debug_prefixes)
    ]
    assert own_keys and not lacking


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(get_root()).as_posix())
def test_files_have_descriptions(path):
    assert len(read_description(path)) > 8


def test_command_keys_are_documented():
    for primary in ("train", "finetune"):
        lacking = [
            key
            for key, node in read_documented_config(primary, []).items()
            if node.is_leaf and not node.meaning and not key.endswith("_target_")
        ]
        assert not lacking


def test_inherited_key_is_documented_once():
    """Check that comments in derived files give only the reason of a setting.

    Range, choices and the meaning of null stand in the base file.
    """
    for group, name in OPTIONS:
        for key, node in read_documented_keys(find_files(group, name)).items():
            for note, place in node.notes:
                assert not re.search(r"[<>]=? ?\d| \| |null =|, \[0, 1\]", note), f"{place} ({key}): {note}"


def test_no_comment_is_copied():
    """Check that longer sentences occur in one file only."""
    places = defaultdict(set)
    for path in FILES:
        for entry in read_keys(path):
            for sentence in re.split(r"[;.:] ", entry.comment):
                if len(sentence.split()) > 6:
                    places[sentence.strip().lower()].add(format_option_path(path))
    copied = {sentence: files for sentence, files in places.items() if len(files) > 1}
    assert len(places) > 200 and not copied


def test_no_key_is_dead():
    """Check that each key of an option is an argument of its target or a request policy."""
    for group in list_part_groups():
        for name, node in load_options(group).items():
            if group == "transfer":
                continue
            own_keys = {key: value for key, value in node.items() if group != "llm" or key not in CALL_POLICY_KEYS}
            check(own_keys, f"{group}={name}")


def check(node, places):
    """Check a node as `Builder.check` does, with missing values and interpolations allowed."""
    Builder().validate(resolve_node(node), places)


def resolve_node(node):
    if not isinstance(node, dict):
        return node
    return {key: resolve_node(value) for key, value in node.items() if not re.match(r"\?\?\?|\$\{", str(value))}


def test_base_files_are_not_options():
    bases = {path for path in FILES if path.stem.startswith("_")}
    used = {path for group, name in OPTIONS for path, _ in list_files(group, name)}
    assert len(bases) > 15 and bases - {get_root() / "_run.yaml"} <= used
    assert not any(name.startswith("_") for _, name in OPTIONS)


def test_option_merges_base_files():
    assert (
        load_option("agent", "mappo")["critic"] == "central" and load_option("agent", "mappo")["ppo"]["gamma"] == 0.99
    )
    assert load_option("agent", "ppo")["ppo"]["gamma"] == 0.998
    assert load_option("env", "lava_doorkey")["task"]["_target_"].endswith("LavaDoorKey")
    assert load_option("env", "lava_doorkey")["task"]["max_size"] == 10 and "learn" not in load_option(
        "env", "lava_doorkey"
    )
    assert sets_global_keys(get_root() / "regime" / "rooms.yaml") and "learn" in read_file(
        get_root() / "regime" / "rooms.yaml"
    )
    changed = load_option("agent", "ppo")
    changed["ppo"]["gamma"] = 2
    assert load_option("agent", "ppo")["ppo"]["gamma"] == 0.998


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), [(g, n) for g, n in OPTIONS if g not in FINETUNING][::7], ids=lambda x: x)
def test_option_matches_hydra_composition(group, name):
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("llmrl.conf", version_base="1.3"):
        full_config = OmegaConf.to_container(compose("train", [f"{group}={name}"]), resolve=False)
    own_keys = load_option(group, name)
    if group == "llm":
        full_config["llm"] = {key: value for key, value in full_config["llm"].items() if key in own_keys}
        own_keys = {key: value for key, value in own_keys.items() if not isinstance(value, dict)}
        full_config["llm"] = {key: value for key, value in full_config["llm"].items() if key in own_keys}
    option_keys = {
        key: value for key, value in full_config[group].items() if key in own_keys
    }  # parts of other groups apart
    assert option_keys == own_keys
