"""The JSON schema of options and experiments, as editors use it."""

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

from llmrl.config import option_page, option_schema
from llmrl.config.option_schema import FILE, groups
from llmrl.core.option_files import is_global, root

FOLDER = root() / option_schema.FOLDER
FILES = sorted(
    path
    for path in root().rglob("*.yaml")
    if path.relative_to(root()).parts[0] in (*groups(), "experiment", "treatment", path.name)
)


@pytest.fixture(scope="module")
def validators():
    contents = {path.name: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    registry = Registry().with_resources([(name, Resource.from_contents(each)) for name, each in contents.items()])
    return {name: Draft202012Validator(each, registry=registry) for name, each in contents.items()}


def schema_of(path):
    group = path.relative_to(root()).parts[0]
    return FILE if is_global(path) or group in ("experiment", "treatment", path.name) else f"{group}.schema.json"


@pytest.mark.slow
def test_what_is_shipped_is_what_is_generated():
    """If this fails: python scripts/options.py"""
    generated = option_schema.generated()
    assert {path.name for path in FOLDER.glob("*")} == set(generated)
    for name, text in generated.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"{name}: run python scripts/options.py"


def test_the_page_of_options_is_current():
    """If this fails: python scripts/options.py"""
    assert (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8") == option_page.page()


def test_every_shipped_file_is_accepted(validators):
    assert len(FILES) > 150
    for path in FILES:
        found = list(validators[schema_of(path)].iter_errors(yaml.safe_load(path.read_text()) or {}))
        assert not found, f"{path}: {found[0].json_path}: {found[0].message}"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("design: {stepz: 3}", "stepz"),
        ("design: {steps: 0}", "minimum"),
        ("nane: x", "nane"),
        ("agent: {ppo: {learning_rate: -1}}", "minimum"),
        ("agent: {ppo: {learning_rat: 1}}", "learning_rat"),
        ("env: {n_envs: 0}", "minimum"),
        ("llm: {budget: {usd: -1}}", "minimum"),
        ("llm: {cahce: x}", "cahce"),
        ("seed: -1", "minimum"),
        ("search: {iterations: many}", "many"),
        ("agent: {_target_: llmrl.agents.drrn_agent.DRRNAgent, memory: 3}", "memory"),
        ("learn: {mechanism: nothing}", "nothing"),
    ],
)
def test_what_no_run_could_read_is_rejected(validators, content, named):
    found = list(validators[FILE].iter_errors(yaml.safe_load(content)))
    assert found and named in best_match(found).message


@pytest.mark.parametrize(
    "content",
    [
        "design: {steps: '${search.iterations}', objective: sum}",
        "design: {objective: {_target_: my_package.welfare, power: 2}}",
        "agent: {_target_: my_package.Agent, anything: 3}",
        "teacher: {schedule: {_target_: llmrl.teachers.schedules.Constant, weight: 0.5}}",
        "env: {kwargs: {whatever: 1}}",
        "learn: {mechanism: [0, 1.5, 0]}",
        "hydra: {sweeper: {params: {seed: '0,1'}}}",
        "agent: {init_from: 'preset:regimes/cleanup_pretrain', ppo: {clip: null}}",
    ],
)
def test_what_a_run_reads_is_accepted(validators, content):
    assert not list(validators[FILE].iter_errors(yaml.safe_load(content)))


def test_an_option_of_ones_own_is_checked_by_its_group(validators):
    option = {"defaults": ["ppo", "_self_"], "memory": 64, "ppo": {"epochs": 2}}
    assert validators["agent.schema.json"].is_valid(option)
    assert not validators["agent.schema.json"].is_valid(option | {"memry": 64})
    assert not validators["agent.schema.json"].is_valid(option | {"memory": 0})


def test_the_line_for_editors_names_a_file_that_is_there(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["option_schema", "agent"])
    option_schema.main()
    said = capsys.readouterr().out.strip()
    assert (
        said == f"# yaml-language-server: $schema={FOLDER / 'agent.schema.json'}"
        and (FOLDER / "agent.schema.json").is_file()
    )
