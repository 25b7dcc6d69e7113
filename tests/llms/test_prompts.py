from pathlib import Path

import jinja2
import pytest

from experiments import compose, find_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.llms.call_log import read_calls
from llmrl.llms.prompts import PromptFamily, compute_folder_digest
from llmrl.principals.llm_mechanism import PROMPT_FAMILY, PROMPTS_DIR


@pytest.fixture
def folders(tmp_path):
    builtin_folder, user_folder = tmp_path / "ours", tmp_path / "own"
    builtin_folder.mkdir()
    (user_folder / "game").mkdir(parents=True)
    (builtin_folder / "_part.j2").write_text("part {{ x }}")
    (builtin_folder / "a.j2").write_text('{% include "_part.j2" %} of a')
    (builtin_folder / "b.j2").write_text("b{# a remark #}")
    return builtin_folder, user_folder


def write(folder: Path, **files):
    for name, text in files.items():
        (folder / "game" / f"{name}.j2").write_text(text)


def test_builtin_prompts(folders):
    prompts = PromptFamily("game", folders[0])
    assert prompts.names == ["a", "b"]
    prompt = prompts.render("a", x=1)
    assert (prompt.text, prompt.name) == ("part 1 of a\n", "game/a") and len(prompt.hash) == 12


def test_user_folder_overrides_builtin_prompts(folders):
    builtin_folder, user_folder = folders
    write(user_folder, b="mine", c='{% extends "ours/a.j2" %}', _part="my part {{ x }}")
    prompts = PromptFamily("game", builtin_folder, user_folder)
    assert prompts.names == ["a", "b", "c"]
    assert prompts.render("b").text == "mine\n"
    assert prompts.render("a", x=1).text == "my part 1 of a\n", "ours is made of the user's parts"
    assert prompts.render("c", x=2).text == "my part 2 of a\n"


def test_hash_covers_all_prompt_files(folders):
    builtin_folder, user_folder = folders
    hashes = {name: PromptFamily("game", builtin_folder).hash(name) for name in "ab"}
    (builtin_folder / "_part.j2").write_text("another part {{ x }}")
    after = {name: PromptFamily("game", builtin_folder).hash(name) for name in "ab"}
    assert hashes["a"] != after["a"] and hashes["b"] == after["b"]
    write(user_folder, b="b")
    assert PromptFamily("game", builtin_folder, user_folder).hash("b") != hashes["b"]


def test_runs_share_compiled_templates(folders, monkeypatch):
    compile_template, names = jinja2.Environment.compile, []

    def record(self, source, name=None, filename=None, *arguments, **options):
        names.append(name)
        return compile_template(self, source, name, filename, *arguments, **options)

    monkeypatch.setattr(jinja2.Environment, "compile", record)
    first, second = (PromptFamily("game", folders[0]).render("a", x=1) for _ in range(2))
    assert first == second and sorted(names) == ["_part.j2", "a.j2"]
    (folders[0] / "_part.j2").write_text("another part {{ x }}")
    assert PromptFamily("game", folders[0]).render("a", x=1).text == "another part 1 of a\n"
    assert sorted(names) == ["_part.j2", "_part.j2", "a.j2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ y }}", "'y'"),
        ("{% if %}", "line 1"),
        ('{% include "z.j2" %}', "game/bad.j2.*_part, a, b, bad"),
        ("{{ x.__class__.__mro__ }}", "game/bad .*__class__"),
        ("{{ x.append(1) }}", "game/bad .*append"),
        ('{% include "../secret.j2" %}', r"game/bad\.j2 .*\.\./secret\.j2"),
        ("{% block world required %}{% endblock %}", r"game/bad \(.*bad.j2\): .*'world'"),
        ('{% if false %}{% include "z.j2" %}{% endif %}', "z.j2"),
    ],
)
def test_bad_templates_raise(folders, text, message):
    builtin_folder, user_folder = folders
    (user_folder.parent / "secret.j2").write_text("secret")
    write(user_folder, bad=text)
    with pytest.raises(ConfigError, match=message):
        PromptFamily("game", builtin_folder, user_folder).render("bad", x=[1])


def test_missing_parent_template_is_reported(folders):
    builtin_folder, user_folder = folders
    write(user_folder, c='{% extends "_mine.j2" %}', _mine='{% extends "ours/_pert.j2" %}')
    with pytest.raises(ConfigError, match=r"game/c.j2 .*ours/_pert.j2.*_mine, _part, a,"):
        PromptFamily("game", builtin_folder, user_folder).render("c")


def test_missing_folder(folders):
    with pytest.raises(ConfigError, match="not a folder"):
        PromptFamily("game", folders[0], folders[1] / "nowhere")


def test_folder_digest(folders):
    _, user_folder = folders
    write(user_folder, b="1")
    digest = compute_folder_digest(user_folder)
    write(user_folder, b="2")
    two = compute_folder_digest(user_folder)
    write(user_folder, b="1")
    assert digest != two and compute_folder_digest(user_folder) == digest


def test_values_are_not_rendered_as_templates(folders):
    assert PromptFamily("game", folders[0]).render("a", x="{{ 7 * 7 }}").text == "part {{ 7 * 7 }} of a\n"


def test_command_line_text(tmp_path):
    """Texts of the command line reach the model and the call log and are part of the hash of the run."""
    folder = tmp_path / "words"
    (folder / PROMPT_FAMILY).mkdir(parents=True)
    words = folder / PROMPT_FAMILY / "escape_room.j2"
    words.write_text('{% extends "ours/escape_room.j2" %}\n{% block game %}\nMy own words.\n{% endblock %}\n')
    overrides = (
        "env=escape_room",
        "env.n_envs=2",
        "principal=llm",
        "design.evaluations=1",
        "design.steps=1",
        "design.adapt_rounds=0",
        "design.validate_episodes=2",
        f"prompts={folder}",
        f"output_root={tmp_path}/outputs",
    )
    run(*overrides)
    first = find_run_folder(tmp_path / "outputs")
    [call] = read_calls(first / "llm_calls.jsonl")
    assert "My own words." in call["messages"][0]["content"]
    assert call["prompt"] == "principal/escape_room"
    assert call["prompt_hash"] == PromptFamily(PROMPT_FAMILY, PROMPTS_DIR, folder).hash("escape_room")
    words.write_text(words.read_text().replace("own", "other"))
    run(*overrides)
    assert len(list((tmp_path / "outputs" / "escape_room").iterdir())) == 2
    assert compose(*overrides)["prompts"] == str(folder)
