"""The presets of conf/experiment: every one composes, builds and is what its name and the documentation say."""

import functools
import re
from pathlib import Path

import pytest

import llmrl.conf
from experiments import compose
from llmrl.config.option_catalog import options
from llmrl.experiment.models import build_llm
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.loops.design import DesignLoop
from llmrl.loops.learn import LearnLoop

ROOT = Path(__file__).parents[1]
FOLDER = Path(llmrl.conf.__file__).parent / "experiment" / "legislative"
PRESETS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
GAMES = ("harvest", "cleanup", "escape_room")
STUDY = ("egreedy", "ucb", "thompson", "gp", "dual_rl", "metagrad", "llm")
# `listed` proposes what it is given: it is no method that presets compare.
PRINCIPALS = sorted(set(options("principal")) - {"none", "listed"})
ARMS = {
    "egreedy": {"harvest": 21**3, "cleanup": 21**3, "escape_room": 6**5},
    "ucb": {"harvest": 11**3, "cleanup": 11**3, "escape_room": 3**5},
    "thompson": {"harvest": 11**3, "cleanup": 11**3, "escape_room": 3**5},
}


def split(preset):
    """`harvest_dual_rl_small` -> harvest, dual_rl, True."""
    game = next(game for game in GAMES if preset.startswith(f"{game}_"))
    rest = preset.removeprefix(f"{game}_")
    return game, rest.removesuffix("_small").removesuffix("small"), rest.endswith("small")


@functools.cache
def base_of(game, small):
    """What a preset under a principal builds on: the same games, agents and schedule."""
    return compose(f"experiment=legislative/{game}_{'small' if small else 'published'}")


def chosen(node):
    """The option of conf/principal that a composed node comes from."""
    return next(name for name, option in options("principal").items() if option["_target_"] == node["_target_"])


@pytest.mark.meltingpot
@pytest.mark.parametrize("preset", PRESETS)
def test_it_composes_and_builds(preset):
    game, part, small = split(preset)
    governed = part in PRINCIPALS or part in STUDY
    base = part in ("published", "independent", "paper", "native") or part == ""
    config = compose(f"experiment=legislative/{preset}", *(["principal=random"] if base else []))
    assert config["env"].get("substrate", "escape_room") == game
    check_values(config)
    assert chosen(config["principal"]) == ("random" if base else part if governed else "none")
    if governed:
        common = base_of(game, small)
        own_schedules = {"metagrad": {"adapt_rounds", "validate_episodes"}, "fixed": {"steps"}, "gp": {"steps"}}
        own_schedule = {**own_schedules, "llm": set() if small else {"steps"}}.get(part, set())
        assert config["env"] == common["env"]
        assert {n for n, x in config["design"].items() if x != common["design"][n]} <= own_schedule
        if part == "metagrad":  # needs agents that go on exploring; published with gradients scaled down apart
            assert config["agent"]["ppo"]["clip_apart"] == (not small)
            own = {name: common["agent"]["ppo"][name] for name in ("learning_rate", "clip_apart")}
            config["agent"]["ppo"].update(own)
        assert config["agent"] == common["agent"]
    parts = build_parts(config, build_llm(config, None, check=False))
    try:
        loop = build_loop(config, parts)
        assert isinstance(loop, LearnLoop if part in ("none", "pretrain") else DesignLoop)
        if part in ARMS and not small:
            assert parts.principal.grid.n_arms == ARMS[part][game]
        if part in ARMS and small and part != "egreedy":
            each = loop.steps / max(len(parts.env.spec.contexts), 1)
            assert parts.principal.grid.n_arms <= 1.1 * each, "the grid is too fine to be gone through"
    finally:
        parts.close()


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.yaml")), ids=lambda path: path.stem)
def test_its_file_says_what_it_is(path):
    first, second, *_ = path.read_text().splitlines()
    assert first == "# @package _global_" and second.startswith("# ")
    if path.parent == FOLDER:
        assert re.search(rf"^#   llmrl-train experiment=legislative/{path.stem}( |$)", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("game", GAMES)
def test_every_principal_has_its_presets(game):
    wanted = {f"{game}_{principal}" for principal in STUDY} | {f"{game}_{principal}_small" for principal in PRINCIPALS}
    assert wanted | {f"{game}_published", f"{game}_small"} <= set(PRESETS)


@pytest.mark.parametrize("game", GAMES)
def test_language_models_are_asked_as_often_as_published_and_within_a_budget(game):
    config = compose(f"experiment=legislative/{game}_llm")
    assert config["design"]["steps"] == 300
    assert 0 < config["llm"]["budget"]["usd"] <= 10


def test_presets_named_in_the_documentation_exist():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *FOLDER.rglob("*.yaml")]
    text = "\n".join(page.read_text() for page in pages)
    named = {name for group in re.findall(r"experiment=(\w+/\w+(?:,\w+/\w+)*)", text) for name in group.split(",")}
    named = {name for name in named if name.startswith("legislative/")}  # others: test_teacher_presets
    others = {name for group in ("env", "agent", "experiment/regimes") for name in options(group)}
    written = set(re.findall(rf"`((?:{'|'.join(GAMES)})_[a-z_]+)`", text))
    named |= {f"legislative/{name}" for name in written - others}
    known = {f"legislative/{preset}" for preset in PRESETS}
    assert named <= known
    assert {f"legislative/{game}_published" for game in GAMES} <= named
