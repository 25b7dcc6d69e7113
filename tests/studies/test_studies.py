"""Studies and treatments: every one composes with those it was made for, no other is taken, and what is typed wins."""

import functools
import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

import llmrl.conf
from llmrl.analysis.groups import tasks_of
from llmrl.analysis.runs import RunRecord
from llmrl.config.suggestions import missing_option
from llmrl.config.treatments import check_treatment, studies, treatments
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import PIECES
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import check_values
from llmrl.run.folder import run_label, split_overrides
from llmrl.sweeps.jobs import differing_keys, named_by
from some import some

ROOT = Path(__file__).parents[2]
CONF = Path(llmrl.conf.__file__).parent
PAIRS = [(study, treatment) for treatment, made_for in treatments().items() for study in made_for]
FIRST_PAIRS = list({treatment: (study, treatment) for study, treatment in PAIRS[::-1]}.values())
"""Each treatment with the first of its studies."""
NUMBERS = sorted((CONF / "treatment" / "numbers").glob("*/*.yaml"))
DATA = {"bc": ["agent.data=there", "llm.model=there"], "small_bc": ["agent.data=there"]}
"""What a treatment has no default for."""
SAME = {("teacher/teams", "team"), *((study, "alone") for study in ("teacher/rooms", "first/teacher", "studies/rooms"))}
SAME |= {(study, "cmaes") for study in studies() if "search" in study}
SAME |= {("studies/tax_planners", "tax_random")}
"""Treatments that are what the study is without one."""


class ReadOnce(CachingConfigRepository):
    """Reads each file once for all that is composed."""

    def __deepcopy__(self, memo):
        return self

    def load_config(self, config_path):
        found = super().load_config(config_path)
        return found and replace(found, config=deepcopy(found.config))  # what is composed is changed on the way


@pytest.fixture(scope="module")
def composed():
    """A function from overrides to (plain config, choices); Hydra begins once."""
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        loader.repository = ReadOnce(loader.repository)

        @functools.cache
        def compose(*overrides):
            config = hydra_compose("train", overrides=list(overrides), return_hydra_config=True)
            HydraConfig.instance().set_config(config)
            choices = dict(config.hydra.runtime.choices)
            OmegaConf.set_struct(config, False)
            config.pop("hydra")
            return OmegaConf.to_container(config, resolve=True), choices

        yield compose


@pytest.mark.slow
@pytest.mark.parametrize("study", studies())
def test_every_study_composes(study, composed):
    config, choices = composed(f"experiment={study}")
    check_values(config)
    check_treatment(choices)


@pytest.mark.slow
@pytest.mark.parametrize("pair", some(FIRST_PAIRS, PAIRS), ids=" ".join)
def test_every_treatment_composes_with_its_studies(pair, composed):
    study, treatment = pair
    config, choices = composed(f"experiment={study}", f"treatment={treatment}", *DATA.get(treatment, []))
    check_values(config)
    check_treatment(choices)
    plain, _ = composed(f"experiment={study}")
    whole = study.startswith(("first/", "studies/"))  # which have a folder of their own
    assert config["name"] == (plain["name"] if whole else choices["env"])  # so a sweep over treatments has one folder
    assert config["name"] == plain["name"]
    if (study, treatment) not in SAME:
        assert config != plain, "it changes nothing"


@pytest.mark.slow
@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_numbers_are_those_of_a_treatment_in_an_environment(path, composed):
    """They are optional for Hydra, so a name misspelt would be read by nobody."""
    treatment, env = path.parent.name, path.stem
    study = next(s for s in treatments()[treatment] if s not in ("search/cliff_walking", "search/table"))
    words = [f"experiment={study}", f"treatment={treatment}", f"env={env}", *DATA.get(treatment, [])]
    config, choices = composed(*words)
    assert choices["treatment/numbers"] == f"{treatment}/{env}"
    own = {k: v for k, v in yaml.safe_load(path.read_text()).items() if k != "defaults"}
    assert within(own, config)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((CONF / "experiment" / "numbers").rglob("*.yaml")), ids=lambda path: path.stem)
def test_numbers_of_a_study_are_those_for_a_principal(path, composed):
    study, principal = path.parent.relative_to(CONF / "experiment" / "numbers").as_posix(), path.stem
    config, choices = composed(f"experiment={study}", f"principal={principal}")
    assert choices["experiment/numbers"] == f"{study}/{principal}"
    assert within({k: v for k, v in yaml.safe_load(path.read_text()).items() if k != "defaults"}, config)
    check_values(config)


def within(part, whole):
    """Whether all that a nested mapping holds is in another one."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and within(part[key], whole[key]) for key in part)
    return part == whole


@pytest.mark.parametrize("path", sorted((CONF / "experiment").rglob("*.yaml")), ids=lambda path: path.stem)
def test_a_study_says_what_it_is(path):
    first, *lines = path.read_text().splitlines()
    assert first == "# @package _global_"
    name = path.relative_to(CONF / "experiment").with_suffix("").as_posix()
    if name in studies():
        assert lines[0].startswith("# ") and any(f"experiment={name}" in line for line in lines), "no command"


@pytest.mark.parametrize("treatment", treatments())
def test_a_treatment_says_what_it_is_and_for_which_studies(treatment):
    first, second, third, *_ = (CONF / "treatment" / f"{treatment}.yaml").read_text().splitlines()
    assert first == "# @package _global_" and second.startswith("# @studies ") and third.startswith("# ")
    assert treatments()[treatment], "its studies are misspelt"
    patterns = second.removeprefix("# @studies ").split(",")
    assert all("*" in pattern or pattern in studies() for pattern in patterns)


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"experiment": "legislative/harvest", "treatment": "props"}, r"takes treatment=dual_rl, .* thompson or ucb$"),
        ({"experiment": "legislative/harvest", "treatment": "props"}, "is for experiment=search/.* or "),
        ({"experiment": None, "treatment": "props"}, r"is a way to do a study: add experiment=search/"),
        ({"experiment": "legislative/harvest_small", "treatment": "ucb"}, r"takes no treatment: choose its parts"),
        ({"experiment": "legislative/harvest", "treatment": "ucb", "principal": "llm"}, "which principal=llm has not"),
        ({"experiment": "search/linear", "treatment": "props_plus", "principal": "gp"}, "numbers of principal=llm"),
        ({"experiment": "search/linear", "treatment": "numbers/props/hopper"}, "is a piece of what can be chosen"),
        ({"experiment": "regimes/parts/cleanup", "treatment": None}, "is a piece of what can be chosen"),
    ],
)
def test_what_does_not_fit_is_refused(choices, said):
    with pytest.raises(ConfigError, match=said):
        check_treatment(choices)


def test_a_misspelt_treatment_is_told_which_there_are():
    assert missing_option(["experiment=search/linear", "treatment=prop"]) == (
        "treatment has no option 'prop'. Did you mean props?"
    )
    assert "numbers" not in missing_option(["treatment=xyz"])


def test_ones_own_studies_and_treatments_go_with_any(tmp_path):
    (tmp_path / "treatment").mkdir()
    (tmp_path / "treatment" / "mine.yaml").write_text("# @package _global_\ndesign: {steps: 3}\n")
    check_treatment({"experiment": "legislative/harvest", "treatment": "mine"}, [tmp_path])
    check_treatment({"experiment": "own/study", "treatment": "ucb", "principal": "ucb"}, [tmp_path])
    (tmp_path / "treatment" / "mine.yaml").write_text("# @package _global_\n# @studies search/*\ndesign: {steps: 3}\n")
    with pytest.raises(ConfigError, match="treatment=mine is for experiment=search/"):
        check_treatment({"experiment": "legislative/harvest", "treatment": "mine"}, [tmp_path])


def test_the_command_refuses_before_it_builds(composed):
    config = hydra_compose(
        "train", overrides=["experiment=legislative/harvest", "treatment=props"], return_hydra_config=True
    )
    HydraConfig.instance().set_config(config)
    with pytest.raises(ConfigError, match="treatment=props is for"):
        Experiment.of_hydra(config)


class TestWhatIsTypedWins:
    def test_parts(self, composed):
        config, _ = composed("experiment=search/linear", "principal=gp", "env=hopper")
        assert config["principal"]["_target_"].endswith("GaussianProcessPrincipal") and config["name"] == "hopper"
        config, _ = composed("experiment=search/linear", "treatment=props", "agent=mlp_policy", "llm=claude_haiku")
        assert config["llm"]["_target_"].endswith("LiteLLMChat") and "hidden" in config["agent"]
        config, _ = composed("experiment=teacher/rooms", "treatment=taught", "teacher=oracle", "agent=student_lstm")
        assert config["teacher"]["_target_"].endswith("oracle_teacher") and config["agent"]["memory"] == 256

    def test_numbers(self, composed):
        words = ("experiment=legislative/escape_room", "treatment=ucb", "env=escape_room")
        for key, typed in (("points", 4), ("scale", 2.0)):  # of the treatment in this environment, and of the treatment
            config, _ = composed(f"principal.{key}={typed}", *words)
            assert config["principal"][key] == typed
        config, _ = composed("design.steps=7", *words)  # of the study
        assert config["design"]["steps"] == 7

    def test_an_environment_brings_its_own_numbers(self, composed):
        hopper, maze = (
            composed(f"experiment=search/{study}", f"env={env}", "treatment=props")[0]
            for study, env in (("linear", "hopper"), ("table", "maze"))
        )
        assert hopper["principal"]["optimum"] == 1000.0 and maze["principal"]["optimum"] == 1.0

    def test_no_treatment_is_the_study(self, composed):
        assert composed("experiment=search/linear", "treatment=none")[0] == composed("experiment=search/linear")[0]


def swept(tmp_path, *runs):
    """The labels of the runs of a sweep in a report, and the names of their folders."""
    records = []
    differing = differing_keys(runs)
    for i, overrides in enumerate(runs):
        named = run_label(named_by(overrides, differing), "harvest_pixels")
        folder = tmp_path / "harvest_pixels" / f"{named}-{i:08x}" / "s0"
        record = {"folder": folder, "name": "harvest_pixels", "group": folder.parent.name, "seed": 0}
        records.append(RunRecord(**record, state="finished", overrides=split_overrides(overrides)))
    [task] = tasks_of(records, tmp_path)
    return {group.label for group in task.groups}, [record.group.rpartition("-")[0] for record in records]


def test_a_sweep_over_treatments_reads_by_their_names(tmp_path):
    words = ["experiment=legislative/harvest", "seed=0"]
    labels, folders = swept(
        tmp_path, [*words, "treatment=ucb"], [*words, "treatment=thompson"], [*words, "treatment=llm", "llm=gpt4o_mini"]
    )
    assert labels == {"ucb", "thompson", "llm"}
    assert folders == ["ucb-harvest", "thompson-harvest", "llm-llm_gpt4o_mini-harvest"]


def test_what_else_differs_is_told_too(tmp_path):
    runs = [["treatment=llm", f"llm={llm}"] for llm in ("gpt4o", "claude_haiku")] + [
        ["treatment=ucb"],
        ["treatment=none"],
    ]
    labels, _ = swept(tmp_path, *runs)
    assert labels == {"llm, llm=gpt4o", "llm, llm=claude_haiku", "ucb", "none"}


class TestThePage:
    page = (ROOT / "docs" / "studies.md").read_text()

    def test_it_names_every_study_and_every_treatment(self):
        named = set(re.findall(r"`([a-z0-9_/]+)`", self.page))
        assert {study for study in studies() if not {study, study.partition("/")[2]} & named} == set()
        assert set(treatments()) - named == set()

    @pytest.mark.slow
    def test_everything_named_in_commands_exists(self):
        """In all pages, comments of options, programs and tests."""
        files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *CONF.rglob("*.yaml")]
        folders = [ROOT / name for name in ("benchmarks", "scripts", "examples")]
        files += [file for each in folders for kind in ("*.py", "*.yaml") for file in each.rglob(kind)]
        for file in files:
            text = file.read_text()
            for group, known in (("experiment", studies()), ("treatment", treatments())):
                for found in re.findall(rf"\b{group}=([a-z0-9_/]+(?:,[a-z0-9_/]+)*)", text):
                    for name in found.split(","):
                        unknown = name not in [*known, "none", "mine"] and not name.endswith("/")  # <study> follows
                        assert not (unknown and ("/" in name or group == "treatment")), f"{file}: {group}={name}"


def test_pieces_are_chosen_by_nobody():
    assert not [study for study in studies() if set(study.split("/")) & set(PIECES)]
    assert json.dumps(sorted(treatments())) == json.dumps(list(treatments()))
