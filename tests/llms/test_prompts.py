from pathlib import Path

import pytest

from experiments import compose, only_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.llms.call_log import read_calls
from llmrl.llms.prompts import PromptFamily, folder_digest
from llmrl.principals.llm_mechanism import FAMILY, FOLDER


@pytest.fixture
def folders(tmp_path):
    ours, own = tmp_path / "ours", tmp_path / "own"
    ours.mkdir()
    (own / "game").mkdir(parents=True)
    (ours / "_part.j2").write_text("part {{ x }}")
    (ours / "a.j2").write_text('{% include "_part.j2" %} of a')
    (ours / "b.j2").write_text("b{# a remark #}")
    return ours, own


def write(folder: Path, **files):
    for name, text in files.items():
        (folder / "game" / f"{name}.j2").write_text(text)


def test_ours(folders):
    prompts = PromptFamily("game", folders[0])
    assert prompts.names == ["a", "b"]
    prompt = prompts.render("a", x=1)
    assert (prompt.text, prompt.name) == ("part 1 of a\n", "game/a") and len(prompt.hash) == 12


def test_a_user_s_folder_comes_first_and_may_build_on_ours(folders):
    ours, own = folders
    write(own, b="mine", c='{% extends "ours/a.j2" %}', _part="my part {{ x }}")
    prompts = PromptFamily("game", ours, own)
    assert prompts.names == ["a", "b", "c"]
    assert prompts.render("b").text == "mine\n"
    assert prompts.render("a", x=1).text == "my part 1 of a\n", "ours is made of the user's parts"
    assert prompts.render("c", x=2).text == "my part 2 of a\n"


def test_the_hash_covers_every_file_a_prompt_is_made_of(folders):
    ours, own = folders
    before = {name: PromptFamily("game", ours).hash(name) for name in "ab"}
    (ours / "_part.j2").write_text("another part {{ x }}")
    after = {name: PromptFamily("game", ours).hash(name) for name in "ab"}
    assert before["a"] != after["a"] and before["b"] == after["b"]
    write(own, b="b")
    assert PromptFamily("game", ours, own).hash("b") != before["b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ y }}", "'y' is undefined; it is given x"),
        ("{% if %}", "line 1"),
        ('{% include "z.j2" %}', r"game/bad.j2 .* game/z.j2 does not exist; there are _part, a, b, bad"),
        ("{{ x.__class__.__mro__ }}", "does what prompts may not"),
        ("{{ x.append(1) }}", "does what prompts may not"),
        ('{% include "../secret.j2" %}', "does not exist"),
        ("{% block world required %}{% endblock %}", r"game/bad \(.*bad.j2\): Required block 'world' not found"),
        ('{% if false %}{% include "z.j2" %}{% endif %}', "extends or includes z.j2"),
    ],
)
def test_bad_templates_are_named(folders, text, message):
    ours, own = folders
    (own.parent / "secret.j2").write_text("secret")
    write(own, bad=text)
    with pytest.raises(ConfigError, match=message):
        PromptFamily("game", ours, own).render("bad", x=[1])


def test_the_file_that_extends_a_missing_one_is_named(folders):
    ours, own = folders
    write(own, c='{% extends "_mine.j2" %}', _mine='{% extends "ours/_pert.j2" %}')
    with pytest.raises(
        ConfigError, match=r"game/_mine.j2 extends or includes ours/_pert.j2, .*there are _mine, _part, a,"
    ):
        PromptFamily("game", ours, own).render("c")


def test_no_such_folder(folders):
    with pytest.raises(ConfigError, match="is no folder; put your own prompts into"):
        PromptFamily("game", folders[0], folders[1] / "nowhere")


def test_digest_of_a_folder(folders):
    _, own = folders
    write(own, b="1")
    one = folder_digest(own)
    write(own, b="2")
    two = folder_digest(own)
    write(own, b="1")
    assert one != two and folder_digest(own) == one


def test_values_are_never_templates(folders):
    assert PromptFamily("game", folders[0]).render("a", x="{{ 7 * 7 }}").text == "part {{ 7 * 7 }} of a\n"


def test_own_words_on_the_command_line(tmp_path):
    """They reach the model and the call log, and other words are another run."""
    own = tmp_path / "words"
    (own / FAMILY).mkdir(parents=True)
    words = own / FAMILY / "escape_room.j2"
    words.write_text('{% extends "ours/escape_room.j2" %}\n{% block game %}\nMy own words.\n{% endblock %}\n')
    overrides = (
        "env=escape_room",
        "env.n_envs=2",
        "principal=llm",
        "design.steps=1",
        "design.adapt_rounds=0",
        f"prompts={own}",
        f"output_root={tmp_path}/outputs",
    )
    run(*overrides)
    first = only_run_folder(tmp_path / "outputs")
    [call] = read_calls(first / "llm_calls.jsonl")
    assert "My own words." in call["messages"][0]["content"]
    assert call["prompt"] == "principal/escape_room"
    assert call["prompt_hash"] == PromptFamily(FAMILY, FOLDER, own).hash("escape_room")
    words.write_text(words.read_text().replace("own", "other"))
    run(*overrides)
    assert len(list((tmp_path / "outputs" / "escape_room").iterdir())) == 2
    assert compose(*overrides)["prompts"] == str(own)
