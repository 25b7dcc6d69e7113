"""The JSON schema of options and experiments for editors."""

import json

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

from llmrl.config import option_schema
from llmrl.config.option_schema import TRAIN_SCHEMA_FILE, build_schema_files
from llmrl.core.option_files import SCHEMA_FOLDER, get_root, list_part_groups, list_paths, read_file, sets_global_keys

FILES = [
    path
    for path in list_paths()
    if path.relative_to(get_root()).parts[0] in (*list_part_groups(), "experiment", "treatment", path.name)
]


@pytest.fixture(scope="module")
def schemas():
    return build_schema_files()


@pytest.fixture(scope="module")
def validators(schemas):
    registry = Registry().with_resources([(name, Resource.from_contents(schema)) for name, schema in schemas.items()])
    return {name: Draft202012Validator(schema, registry=registry) for name, schema in schemas.items()}


def find_schema(path):
    group = path.relative_to(get_root()).parts[0]
    return (
        TRAIN_SCHEMA_FILE
        if sets_global_keys(path) or group in ("experiment", "treatment", path.name)
        else f"{group}.schema.json"
    )


def test_package_files_are_accepted(validators):
    assert len(FILES) > 150
    for path in FILES:
        errors = list(validators[find_schema(path)].iter_errors(read_file(path)))
        assert not errors, f"{path}: {errors[0].json_path}: {errors[0].message}"


@pytest.mark.parametrize(
    ("content", "phrase"),
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
def test_rejects_invalid_files(validators, content, phrase):
    errors = list(validators[TRAIN_SCHEMA_FILE].iter_errors(yaml.safe_load(content)))
    assert errors and phrase in best_match(errors).message


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
def test_valid_files_are_accepted(validators, content):
    assert not list(validators[TRAIN_SCHEMA_FILE].iter_errors(yaml.safe_load(content)))


def test_custom_option_uses_group_schema(validators):
    option = {"defaults": ["ppo", "_self_"], "memory": 64, "ppo": {"epochs": 2}}
    assert validators["agent.schema.json"].is_valid(option)
    assert not validators["agent.schema.json"].is_valid(option | {"memry": 64})
    assert not validators["agent.schema.json"].is_valid(option | {"memory": 0})


def test_editor_comment_names_built_file(capsys, monkeypatch, schemas):
    monkeypatch.setattr("sys.argv", ["option_schema", "agent"])
    monkeypatch.setattr(option_schema, "build_schema_files", lambda: schemas)
    option_schema.main()
    path = get_root() / SCHEMA_FOLDER / "agent.schema.json"
    assert capsys.readouterr().out.strip() == f"# yaml-language-server: $schema={path}"
    assert json.loads(path.read_text(encoding="utf-8"))["anyOf"][0]["$ref"] == f"{TRAIN_SCHEMA_FILE}#/$defs/agent"
    assert (
        json.loads((get_root() / SCHEMA_FOLDER / TRAIN_SCHEMA_FILE).read_text(encoding="utf-8"))
        == schemas[TRAIN_SCHEMA_FILE]
    )


def test_group_without_schema_is_an_error(monkeypatch, schemas):
    monkeypatch.setattr("sys.argv", ["option_schema", "agnt"])
    monkeypatch.setattr(option_schema, "build_schema_files", lambda: schemas)
    with pytest.raises(SystemExit) as exit_info:
        option_schema.main()
    assert "agnt" in str(exit_info.value.code)
    assert "agent" in str(exit_info.value.code)
