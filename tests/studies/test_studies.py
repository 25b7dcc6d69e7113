"""Studies and treatments: valid and invalid combinations, and precedence of overrides."""

import functools
import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from llmrl.config.option_docs import read_description
from llmrl.config.treatments import check_treatment, list_studies, list_studies_by_treatment
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import (
    get_file,
    get_root,
    is_choosable,
    list_paths,
    read_comment,
    read_file,
    sets_global_keys,
)
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.parts import check_values
from llmrl.results.groups import group_into_tasks
from llmrl.results.run_records import RunRecord
from llmrl.run.folder import format_run_label, split_overrides
from llmrl.sweeps.jobs import find_differing_keys, select_label_overrides
from some import mark_long_except, mark_long_except_every

ROOT = Path(__file__).parents[2]
EXPERIMENTS = [path for path in list_paths() if path.is_relative_to(get_root() / "experiment")]


def table(group, name, key):
    """Return a table of an option file; empty without one."""
    return read_file(get_root() / group / f"{name}.yaml").get(key, {})


PAIRS = [(study, treatment) for treatment, names in list_studies_by_treatment().items() for study in names]
FIRST_PAIRS = list({treatment: (study, treatment) for study, treatment in PAIRS[::-1]}.values())
"""Each treatment with the first of its studies."""
ROWS = [
    (name, env, row) for name in list_studies_by_treatment() for env, row in table("treatment", name, "per_env").items()
]
"""Treatment, environment, and what the one sets in the other."""
PRINCIPAL_OPTIONS = [
    (study, principal, row)
    for study in list_studies()
    for principal, row in table("experiment", study, "per_principal").items()
]
"""Study, principal, and what the one sets for the other."""
DATA = {"bc": ["agent.data=there", "llm.model=there"], "small_bc": ["agent.data=there"]}
"""What a treatment has no default for."""
ENVIRONMENT_TREATMENTS = {
    ("teacher/teams", "team"),
    *((study, "alone") for study in ("teacher/rooms", "first/teacher", "studies/rooms")),
}
ENVIRONMENT_TREATMENTS |= {(study, "cmaes") for study in list_studies() if "search" in study}
ENVIRONMENT_TREATMENTS |= {("studies/tax_planners", "tax_random")}
"""Treatments that are what the study is without one."""


class CachingRepository(CachingConfigRepository):
    """Reads each file once for all that is composed."""

    def __deepcopy__(self, memo):
        return self

    def load_config(self, config_path):
        config = super().load_config(config_path)
        return config and replace(config, config=deepcopy(config.config))  # what is composed is changed on the way


@pytest.fixture(scope="module")
def compose_config():
    """Yield a function from overrides to (plain config, choices); Hydra begins once."""
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        loader.repository = CachingRepository(loader.repository)

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
@pytest.mark.parametrize("study", mark_long_except_every(3, list_studies()))
def test_studies_compose(study, compose_config):
    config, choices = compose_config(f"experiment={study}")
    check_values(config)
    check_treatment(choices)


@pytest.mark.slow
@pytest.mark.parametrize("pair", mark_long_except(FIRST_PAIRS[::2], PAIRS), ids=" ".join)
def test_treatments_compose_with_studies(pair, compose_config):
    study, treatment = pair
    config, choices = compose_config(f"experiment={study}", f"treatment={treatment}", *DATA.get(treatment, []))
    check_values(config)
    check_treatment(choices)
    plain, _ = compose_config(f"experiment={study}")
    is_complete = study.startswith(("first/", "studies/"))  # which have a folder of their own
    assert config["name"] == (
        plain["name"] if is_complete else choices["env"]
    )  # so a sweep over treatments has one folder
    assert config["name"] == plain["name"]
    if (study, treatment) not in ENVIRONMENT_TREATMENTS:
        assert config != plain, "it changes nothing"


@pytest.mark.slow
@pytest.mark.parametrize(("treatment", "env", "row"), mark_long_except_every(5, ROWS), ids=str)
def test_treatment_overrides_environment(treatment, env, row, compose_config):
    study = next(s for s in list_studies_by_treatment()[treatment] if s not in ("search/cliff_walking", "search/table"))
    words = [f"experiment={study}", f"treatment={treatment}", f"env={env}", *DATA.get(treatment, [])]
    assert is_subset(row, compose_config(*words)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("study", "principal", "row"), PRINCIPAL_OPTIONS, ids=str)
def test_study_overrides_principal(study, principal, row, compose_config):
    config, _ = compose_config(f"experiment={study}", f"principal={principal}")
    assert is_subset(row, config)
    check_values(config)


def is_subset(part, full):
    """Return whether a nested mapping contains all entries of `part`."""
    if isinstance(part, dict):
        return isinstance(full, dict) and all(key in full and is_subset(part[key], full[key]) for key in part)
    return part == full


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_study_has_description(path):
    assert sets_global_keys(path) and read_description(path)
    name = path.relative_to(get_root() / "experiment").with_suffix("").as_posix()
    if name in list_studies():
        assert any(f"experiment={name}" in line for line in read_comment(path)), "no command"


@pytest.mark.parametrize("treatment", list_studies_by_treatment())
def test_treatment_declares_studies(treatment):
    path = get_root() / "treatment" / f"{treatment}.yaml"
    lines = [*read_comment(path), *read_comment(get_file(path))]
    assert sets_global_keys(path) and read_description(path)
    assert list_studies_by_treatment()[treatment], "its studies are misspelled"
    patterns = next(line for line in lines if line.startswith("# @studies ")).removeprefix("# @studies ").split(",")
    assert all("*" in pattern or pattern in list_studies() for pattern in patterns)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"experiment": "legislative/harvest", "treatment": "props"}, "treatment=dual_rl"),
        ({"experiment": "legislative/harvest", "treatment": "props"}, "treatment=props .*experiment=search/.* or "),
        ({"experiment": None, "treatment": "props"}, "experiment=search/"),
        ({"experiment": "legislative/harvest_small", "treatment": "ucb"}, "no treatment$"),
        ({"experiment": "legislative/harvest", "treatment": "ucb", "principal": "llm"}, "principal=llm"),
        ({"experiment": "search/linear", "treatment": "props_plus", "principal": "gp"}, "principal=llm"),
        ({"experiment": "search/linear", "treatment": "numbers/props/hopper"}, "treatment=numbers/props/hopper"),
        ({"experiment": "legislative/_cleanup_rules", "treatment": None}, "experiment=legislative/_cleanup_rules"),
    ],
)
def test_incompatible_choices_raise(choices, message):
    with pytest.raises(ConfigError, match=message):
        check_treatment(choices)


def test_custom_studies_accept_all_treatments(tmp_path):
    (tmp_path / "treatment").mkdir()
    (tmp_path / "treatment" / "mine.yaml").write_text("# @package _global_\ndesign: {steps: 3}\n")
    check_treatment({"experiment": "legislative/harvest", "treatment": "mine"}, [tmp_path])
    check_treatment({"experiment": "own/study", "treatment": "ucb", "principal": "ucb"}, [tmp_path])
    (tmp_path / "treatment" / "mine.yaml").write_text("# @package _global_\n# @studies search/*\ndesign: {steps: 3}\n")
    with pytest.raises(ConfigError, match=r"treatment=mine.*experiment=search/"):
        check_treatment({"experiment": "legislative/harvest", "treatment": "mine"}, [tmp_path])


def test_command_raises_early(compose_config):
    config = hydra_compose(
        "train", overrides=["experiment=legislative/harvest", "treatment=props"], return_hydra_config=True
    )
    HydraConfig.instance().set_config(config)
    with pytest.raises(ConfigError, match="treatment=props"):
        Experiment.from_hydra(config)


class TestCommandLinePrecedence:
    def test_parts(self, compose_config):
        config, _ = compose_config("experiment=search/linear", "principal=gp", "env=hopper")
        assert config["principal"]["_target_"].endswith("GaussianProcessPrincipal") and config["name"] == "hopper"
        config, _ = compose_config(
            "experiment=search/linear", "treatment=props", "agent=mlp_policy", "llm=claude_haiku"
        )
        assert config["llm"]["_target_"].endswith("LiteLLMChat") and "hidden" in config["agent"]
        config, _ = compose_config(
            "experiment=teacher/rooms", "treatment=taught", "teacher=oracle", "agent=student_lstm"
        )
        assert config["teacher"]["_target_"].endswith("oracle_teacher") and config["agent"]["memory"] == 256

    def test_numbers(self, compose_config):
        words = ("experiment=legislative/escape_room", "treatment=ucb", "env=escape_room")
        for key, number in (
            ("points", 4),
            ("scale", 2.0),
        ):  # of the treatment in this environment, and of the treatment
            config, _ = compose_config(f"principal.{key}={number}", *words)
            assert config["principal"][key] == number
        config, _ = compose_config("design.steps=7", *words)  # of the study
        assert config["design"]["steps"] == 7

    def test_environment_sets_default_numbers(self, compose_config):
        hopper, maze = (
            compose_config(f"experiment=search/{study}", f"env={env}", "treatment=props")[0]
            for study, env in (("linear", "hopper"), ("table", "maze"))
        )
        assert hopper["principal"]["optimum"] == 1000.0 and maze["principal"]["optimum"] == 1.0

    def test_no_treatment_is_the_study(self, compose_config):
        assert (
            compose_config("experiment=search/linear", "treatment=none")[0]
            == compose_config("experiment=search/linear")[0]
        )


def swept(tmp_path, *runs):
    """Return the labels of the runs of a sweep in a report, and the names of their folders."""
    records = []
    differing = find_differing_keys(runs)
    for i, overrides in enumerate(runs):
        label = format_run_label(select_label_overrides(overrides, differing), "harvest_pixels")
        folder = tmp_path / "harvest_pixels" / f"{label}-{i:08x}" / "s0"
        record = {"folder": folder, "name": "harvest_pixels", "group": folder.parent.name, "seed": 0}
        records.append(RunRecord(**record, state="finished", overrides=split_overrides(overrides)))
    [task] = group_into_tasks(records, tmp_path)
    return {group.label for group in task.groups}, [record.group.rpartition("-")[0] for record in records]


def test_treatment_sweep_labels(tmp_path):
    words = ["experiment=legislative/harvest", "seed=0"]
    labels, folders = swept(
        tmp_path, [*words, "treatment=ucb"], [*words, "treatment=thompson"], [*words, "treatment=llm", "llm=gpt4o_mini"]
    )
    assert labels == {"ucb", "thompson", "llm"}
    assert folders == ["ucb-harvest", "thompson-harvest", "llm-llm_gpt4o_mini-harvest"]


def test_treatment_sweep_labels_with_llm(tmp_path):
    runs = [["treatment=llm", f"llm={llm}"] for llm in ("gpt4o", "claude_haiku")] + [
        ["treatment=ucb"],
        ["treatment=none"],
    ]
    labels, _ = swept(tmp_path, *runs)
    assert labels == {"llm, llm=gpt4o", "llm, llm=claude_haiku", "ucb", "none"}


class TestThePage:
    page = (ROOT / "docs" / "studies.md").read_text()

    def test_page_lists_studies(self):
        names = set(re.findall(r"`([a-z0-9_/]+)`", self.page))
        assert {study for study in list_studies() if not {study, study.partition("/")[2]} & names} == set()
        assert set(list_studies_by_treatment()) - names == set()

    @pytest.mark.slow
    def test_command_references_exist(self):
        """In all pages, comments of options, programs and tests."""
        files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *get_root().rglob("*.yaml")]
        folders = [ROOT / name for name in ("benchmarks", "scripts", "examples")]
        files += [file for folder in folders for kind in ("*.py", "*.yaml") for file in folder.rglob(kind)]
        known = {
            "experiment": {*list_studies(), "none", "mine"},
            "treatment": {*list_studies_by_treatment(), "none", "mine"},
        }
        for file in files:
            text = file.read_text()
            for group, names in known.items():
                for match in re.findall(rf"\b{group}=([a-z0-9_/]+(?:,[a-z0-9_/]+)*)", text):
                    for name in match.split(","):
                        unknown = name not in names and not name.endswith("/")  # <study> follows
                        assert not (unknown and ("/" in name or group == "treatment")), f"{file}: {group}={name}"


def test_fragments_are_not_selectable():
    assert all(map(is_choosable, [*list_studies(), *list_studies_by_treatment()]))
    assert json.dumps(sorted(list_studies_by_treatment())) == json.dumps(list(list_studies_by_treatment()))
