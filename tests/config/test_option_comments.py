"""Every option is documented once: in the comment of the file that introduces it."""

import re
from collections import defaultdict

import pytest

from llmrl.config.builder import Builder
from llmrl.config.option_docs import composed, documented, entries, header, shown
from llmrl.config.option_schema import groups
from llmrl.core.option_files import chain, content, is_global, names, option, options, root
from llmrl.experiment.models import POLICIES

COMMANDS = [(root() / f"{name}.yaml", ()) for name in ("_run", "train", "finetune")]
FILES = sorted(path for path in root().rglob("*.yaml") if path.relative_to(root()).parts[0] in (*groups(), path.name))
# Groups that the command `train` has none of.
FINETUNING = ("dataset", "method", "transfer")
OPTIONS = [(group, name) for group in groups() for name in names(group)]


def files_of(group, name):
    """All files that say something about the keys of an option: it may set keys of the commands, and of `llm=` and
    `principal=` some that only some of their options have."""
    others = [file for kind in ("dataset", "principal", "llm") for file in chain(kind, COMMON[kind])]
    return [*COMMANDS, *(others if group == "method" else []), *chain(group, name)]


COMMON = {"dataset": "random", "principal": "llm", "llm": "local_chat"}


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), OPTIONS, ids=lambda x: x)
def test_every_key_has_a_meaning(group, name):
    known = documented(files_of(group, name))
    own = documented(chain(group, name))
    # What a preset holds for other options (test_debug_presets) means what it means where they are.
    theirs = ("debug.at_most.", "debug.instead.")
    lacking = [
        key
        for key in own
        if known[key].leaf and not known[key].meaning and not key.endswith("_target_") and not key.startswith(theirs)
    ]
    assert own and not lacking


@pytest.mark.parametrize("path", FILES, ids=lambda path: shown(path))
def test_every_file_says_what_it_is(path):
    assert len(header(path)) > 8


def test_the_commands_document_their_own_keys():
    for primary in ("train", "finetune"):
        lacking = [
            key
            for key, each in composed(primary, []).items()
            if each.leaf and not each.meaning and not key.endswith("_target_")
        ]
        assert not lacking


def test_a_key_is_documented_in_one_file_of_a_chain():
    """What a later file says of a key is why it is set so: it names no range, no choices and no meaning of null."""
    for group, name in OPTIONS:
        for key, each in documented(files_of(group, name)).items():
            for note, place in each.notes:
                assert not re.search(r"[<>]=? ?\d| \| |null =|, \[0, 1\]", note), f"{place} ({key}): {note}"


def test_no_comment_is_copied():
    """Sentences of more than a few words stand in one file."""
    where = defaultdict(set)
    for path in FILES:
        for entry in entries(path):
            for sentence in re.split(r"[;.:] ", entry.comment):
                if len(sentence.split()) > 6:
                    where[sentence.strip().lower()].add(shown(path))
    copied = {sentence: files for sentence, files in where.items() if len(files) > 1}
    assert len(where) > 200 and not copied


def test_no_key_is_dead():
    """Every key of an option is an argument of what it names, or a policy of asking models."""
    for group in groups():
        for name, node in options(group).items():
            if group == "transfer":
                continue
            own = {key: value for key, value in node.items() if group != "llm" or key not in POLICIES}
            check(own, f"{group}={name}")


def check(node, where):
    """As `Builder.check`, where values may still be missing or point to others."""
    Builder().check(settled(node), where)


def settled(node):
    if not isinstance(node, dict):
        return node
    return {key: settled(value) for key, value in node.items() if not re.match(r"\?\?\?|\$\{", str(value))}


def test_bases_are_composed_from_and_not_chosen():
    bases = {path for path in FILES if path.stem.startswith("_")}
    used = {path for group, name in OPTIONS for path, _ in chain(group, name)}
    assert len(bases) > 15 and bases - {root() / "_run.yaml"} <= used
    assert not any(name.startswith("_") for _, name in OPTIONS)


def test_an_option_holds_what_its_bases_say_and_its_own():
    assert option("agent", "mappo")["critic"] == "central" and option("agent", "mappo")["ppo"]["gamma"] == 0.99
    assert option("agent", "ppo")["ppo"]["gamma"] == 0.998
    assert option("env", "lava_doorkey")["task"]["_target_"].endswith("LavaDoorKey")
    assert option("env", "lava_doorkey")["task"]["max_size"] == 10 and "learn" not in option("env", "lava_doorkey")
    assert is_global(root() / "env" / "_rooms.yaml") and "learn" in content(root() / "env" / "_rooms.yaml")
    changed = option("agent", "ppo")
    changed["ppo"]["gamma"] = 2
    assert option("agent", "ppo")["ppo"]["gamma"] == 0.998


@pytest.mark.slow
@pytest.mark.parametrize(("group", "name"), [(g, n) for g, n in OPTIONS if g not in FINETUNING][::7], ids=lambda x: x)
def test_an_option_is_what_hydra_composes(group, name):
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("llmrl.conf", version_base="1.3"):
        whole = OmegaConf.to_container(compose("train", [f"{group}={name}"]), resolve=False)
    own = option(group, name)
    if group == "llm":
        whole["llm"] = {key: value for key, value in whole["llm"].items() if key in own}
        own = {key: value for key, value in own.items() if not isinstance(value, dict)}
        whole["llm"] = {key: value for key, value in whole["llm"].items() if key in own}
    inside = {key: value for key, value in whole[group].items() if key in own}  # parts of other groups apart
    assert inside == own
