"""`--explain`: what options mean, in a table of plain lines when nobody looks."""

import subprocess
import sys

import pytest

from llmrl.cli.explain import explain
from llmrl.config.option_docs import composed, entries, written
from llmrl.config.option_schema import arguments, kind_of, shipped
from llmrl.core.errors import ConfigError


def rows(capsys, *arguments, primary="train"):
    explain(primary, arguments)
    return {line.split("\t")[0]: line.split("\t")[1:] for line in capsys.readouterr().out.splitlines()}


def test_a_choice_is_explained_key_by_key(capsys):
    found = rows(capsys, "env=cleanup", "env.n_agents=3")
    assert all(key.startswith("env.") for key in found) and "env.mechanism.eat_reward" in found
    value, kind, meaning, place = found["env.n_agents"]
    assert (value, kind) == ("3", "integer > 0") and meaning.startswith("Players in a game")
    assert place.startswith("conf/env/_substrate.yaml:")
    assert found["env.engine"][:2] == ["native", "meltingpot | native"]
    assert "here: two for each society" in found["env.n_envs"][2] and "conf/env/cleanup.yaml:" in found["env.n_envs"][3]


def test_one_key_is_explained(capsys):
    found = rows(capsys, "design.candidates")
    assert list(found) == ["design.candidates"] and found["design.candidates"][0] == "8"
    # Set by what env=cleanup brings along.
    assert found["design.candidates"][3].startswith("conf/train.yaml:")


def test_parts_of_parts_and_the_other_command(capsys):
    assert rows(capsys, "agent=bc", "agent.student.ppo.gamma")["agent.student.ppo.gamma"][1] == "number >= 0 and <= 1"
    found = rows(capsys, "method=sft", primary="finetune")
    assert found["method.optimiser.steps"][1] == "integer > 0" and "method.texts" in found


def test_options_of_ones_own_are_explained(capsys, tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.yaml").write_text("# Mine.\ndefaults:\n  - cartpole\n  - _self_\n\nhorizon: 9  # short\n")
    found = rows(capsys, "--config-dir", str(tmp_path), "env=mine", "env.horizon")
    assert found["env.horizon"][0] == "9" and "here: short" in found["env.horizon"][2]
    assert str(tmp_path) in found["env.horizon"][3]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["candidates"], "design.candidates or search.candidates"),
        (["env=cleanpu"], "Did you mean cleanup"),
        (["env=cleanup", "env.n_agent=3"], "n_agent"),
    ],
)
def test_what_is_not_there_is_told(arguments, said):
    with pytest.raises(ConfigError, match=said):
        explain("train", arguments)


def test_every_type_that_is_told_is_that_of_the_schema():
    """Nearly all keys have a type; the rest may be anything."""
    documents = composed("train", ["env=cleanup", "principal=llm", "llm=gpt4o", "teacher=none"])
    targets = {key.removesuffix("._target_"): str(each.value) for key, each in documents.items() if "_target_" in key}
    leaves = [key for key, each in documents.items() if each.leaf and not key.endswith("_target_")]
    known = arguments(shipped())
    untold = {key for key in leaves if not kind_of(key, shipped(), known, targets)}
    assert len(leaves) > 100 and untold <= {
        "prompts",
        "loggers",
        "loggers.jsonl",
        "design.objective",
        "principal._target_",
        "teacher._target_",
    }


def test_a_comment_may_stand_above_behind_and_go_on_below(tmp_path):
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
    assert {".".join(e.key): e.comment for e in entries(file)} == {
        "a": "behind and below",
        "b": "above behind the last line",
        "c": "of a part",
        "c.d": "",
        "c.e": "of e and behind",
    }


def test_values_are_written_as_typed():
    assert written({"a": [None, True, 1.5, "x"]}) == "{a: [null, true, 1.5, x]}"


def test_the_command_answers_without_torch(tmp_path):
    code = (
        "import sys; sys.argv = ['llmrl-train', '--explain', 'env=cleanup', 'agent=llm_ppo', 'design.steps']\n"
        "from llmrl.cli.train import main; main()\n"
        "assert not {'torch', 'gymnasium', 'numba'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("design.steps\t") and not list(tmp_path.iterdir())
