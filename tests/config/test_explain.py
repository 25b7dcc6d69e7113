"""`--explain`: documentation of options, as plain lines if the output is not a terminal."""

import subprocess
import sys

import pytest

from llmrl.cli.help import explain_options
from llmrl.config.option_docs import format_option_type, format_value, read_documented_config, read_keys
from llmrl.core.errors import ConfigError


def rows(capsys, *arguments, primary="train"):
    explain_options(primary, arguments)
    return {line.split("\t")[0]: line.split("\t")[1:] for line in capsys.readouterr().out.splitlines()}


def test_option_is_explained_per_key(capsys):
    explained = rows(capsys, "env=cleanup", "env.n_agents=3")
    assert all(key.startswith("env.") for key in explained) and "env.mechanism.eat_reward" in explained
    value, kind, meaning, place = explained["env.n_agents"]
    assert (value, kind) == ("3", "integer > 0") and meaning.startswith("Number of players per game")
    assert place.startswith("conf/env/_substrate.yaml:")
    value, kind = explained["env.engine"][:2]
    assert value == "native" and set(kind.split(" | ")) == {"native", "meltingpot"}
    assert (
        "in this config: two games per society" in explained["env.n_envs"][2]
        and "conf/env/_substrate.yaml:" in explained["env.n_envs"][3]
    )


def test_single_key_is_explained(capsys):
    explained = rows(capsys, "design.candidates")
    assert list(explained) == ["design.candidates"] and explained["design.candidates"][0] == "8"
    # Set by what env=cleanup brings along.
    assert explained["design.candidates"][3].startswith("conf/train.yaml:")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("regime=none",),
        ("experiment=first/teacher",),
        ("experiment=studies/rooms", "treatment=none"),
    ],
)
def test_all_keys_are_explained_without_keys_of_one_group(capsys, arguments):
    explained = rows(capsys, *arguments)
    assert {"design.candidates", "seed", "env.horizon"} <= explained.keys()


def test_subgroups_are_explained(capsys):
    assert list(rows(capsys, "hardware/backend=local")) == ["hardware.backend._target_"]


def test_explains_key_with_name_of_folder(capsys, tmp_path, monkeypatch):
    (tmp_path / "seed").mkdir()
    monkeypatch.chdir(tmp_path)
    assert list(rows(capsys, "seed")) == ["seed"]


def test_nested_parts_and_second_command(capsys):
    assert rows(capsys, "agent=bc", "agent.student.ppo.gamma")["agent.student.ppo.gamma"][1] == "number >= 0 and <= 1"
    explained = rows(capsys, "method=sft", primary="finetune")
    assert explained["method.optimizer.steps"][1] == "integer > 0" and "method.texts" in explained


def test_custom_options_are_explained(capsys, tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.yaml").write_text("# Mine.\ndefaults:\n  - cartpole\n  - _self_\n\nhorizon: 9  # short\n")
    explained = rows(capsys, "--config-dir", str(tmp_path), "env=mine", "env.horizon")
    assert explained["env.horizon"][0] == "9" and "in this config: short" in explained["env.horizon"][2]
    assert str(tmp_path) in explained["env.horizon"][3]


def test_explains_class_of_config_dir(capsys, tmp_path, monkeypatch):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "market.yaml").write_text("_target_: own_market.Market\nhorizon: 9  # length\n")
    (tmp_path / "own_market.py").write_text("class Market:\n    def __init__(self, horizon: int) -> None: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert rows(capsys, "--config-dir", str(tmp_path), "env=market")["env.horizon"][:3] == ["9", "integer", "length"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["candidates"], "design.candidates.*search.candidates"),
        (["env=cleanpu"], " mean cleanup"),
        (["env=cleanup", "env.n_agent=3"], "n_agent"),
    ],
)
def test_reports_missing_keys(arguments, message):
    with pytest.raises(ConfigError, match=message):
        explain_options("train", arguments)


def test_nearly_all_keys_have_types():
    documents = read_documented_config("train", ["env=cleanup", "principal=llm", "llm=gpt4o", "teacher=none"])
    targets = {
        key.removesuffix("._target_"): str(document.value) for key, document in documents.items() if "_target_" in key
    }
    leaves = [key for key, document in documents.items() if document.is_leaf and not key.endswith("_target_")]
    untold = {key for key in leaves if not format_option_type(key, targets)}
    assert len(leaves) > 100 and untold <= {
        "prompts",
        "loggers",
        "loggers.jsonl",
        "llm.variants",
        "design.objective",
        "principal._target_",
        "teacher._target_",
    }


def test_comments_may_surround_key(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(
        "# The file.\n"
        "a: '# no comment'  # behind\n"
        "                   # and below\n"
        "# above\n"
        "b: [1,\n    2]  # behind the last line\n"
        "# of a part\n"
        "c:\n"
        "  d: 1\n"
        "  # of e\n"
        "  e: {f: 1} # and behind\n"
    )
    assert {".".join(e.key): e.comment for e in read_keys(file)} == {
        "a": "behind and below",
        "b": "above behind the last line",
        "c": "of a part",
        "c.d": "",
        "c.e": "of e and behind",
        "c.e.f": "",
    }


def test_values_preserve_notation():
    assert format_value({"a": [None, True, 1.5, "x"]}) == "{a: [null, true, 1.5, x]}"


def test_command_needs_no_torch(tmp_path):
    code = (
        "import sys; sys.argv = ['llmrl-train', '--explain', 'env=cleanup', 'agent=llm_ppo', 'design.steps']\n"
        "from llmrl.cli.train import main; main()\n"
        "assert not {'torch', 'gymnasium', 'numba'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("design.steps\t") and not list(tmp_path.iterdir())
