"""Contents that the explorer reads from run folders, and the files that it writes."""

import json
import stat
from pathlib import Path

import pytest
from PIL import Image

from explored import HOSTILE, build_call_records, write_calls, write_player_run, write_principal_run
from llmrl.analysis.explorer.conversations import group_conversations
from llmrl.analysis.explorer.episodes import read_episode_rows, read_episodes
from llmrl.analysis.explorer.timeline import iterate_conversation_chunks, read_timeline
from llmrl.analysis.explorer.write import SCRIPT_FUNCTION, VENDORED_FILES, write_explorer
from llmrl.core.errors import RunFolderError
from llmrl.llms.call_log import read_calls
from run_folders import write_run


def explore(path: Path) -> tuple[str, dict]:
    """Return the contents of a data script."""
    text = path.read_text("ascii")
    assert text.startswith(f"{SCRIPT_FUNCTION}(...") and text.endswith(");\n")
    key, content = json.loads(text.removeprefix(f"{SCRIPT_FUNCTION}(...").removesuffix(");\n"))
    return key, content


def test_steps_have_prompt_reply_and_action(tmp_path):
    folder = write_player_run(tmp_path, episodes=3, recorded=2)
    assert [row["recorded"] for row in read_episode_rows(folder)] == [True, True, False]
    _, episode = read_episodes(folder)
    texts, [line] = episode["texts"], episode["steps"][2]
    assert texts[line["observation"]] == "cell: 2\nmap:\n  ..\n  #."
    assert (line["action"], line["reward"], line["reflection"]) == ("go 2", 1.0, f"because 2 {HOSTILE}")
    bad, repair = line["calls"]
    assert (bad["valid"], bad["parse_error"], bad["reply"]) == (False, "no action in it", "mumble")
    assert (repair["valid"], repair["thought"], repair["parsed_reply"]) == (True, "thought 2", {"action": 2})
    assert [(role, texts[i]) for role, i in repair["messages"]][1:] == [
        ("user", "prompt of step 2 for 0"),
        ("assistant", "mumble"),
        ("user", "say an action"),
    ]


def test_society_players_have_separate_conversations(tmp_path):
    [episode] = read_episodes(write_player_run(tmp_path, episodes=1, recorded=1, players=3))
    assert episode["players"] == 3
    lines = episode["steps"][1]
    prompts = [episode["texts"][line["calls"][0]["messages"][-1][1]] for line in lines]
    assert prompts == [f"prompt of step 1 for {agent}" for agent in range(3)]
    assert [line["reward"] for line in lines] == [1.0, 2.0, 3.0]


def test_running_episode_has_no_metrics(tmp_path):
    folder = write_player_run(tmp_path, episodes=2)
    lines = (folder / "episodes.jsonl").read_text().splitlines(keepends=True)
    (folder / "episodes.jsonl").write_text(lines[0])
    assert [row.get("return") for row in read_episode_rows(folder)] == [0.0, None]


def test_repeated_question_appears_once(tmp_path):
    folder = write_player_run(tmp_path, episodes=1, recorded=1)
    repeated_call = build_call_records(
        "episode 0, player 0, 1", [("system", "x"), ("user", "prompt of step 1 for 0")], f"reply 1 {HOSTILE}"
    )
    write_calls(folder, repeated_call)
    [episode] = read_episodes(folder)
    assert len(episode["steps"][1][0]["calls"]) == 1


def test_proposals_have_conversations(tmp_path):
    proposals, talks = read_timeline(write_principal_run(tmp_path))
    assert [row["talk"] for row in proposals["proposals"]] == [0, 1, 2, 3, 4, 5]
    assert [row["fallback"] for row in proposals["proposals"]] == [i == 3 for i in range(6)]
    assert [len(talk) for talk in talks] == [1, 1, 1, 2, 1, 1]
    assert proposals["proposals"][4]["reasoning"] == "reason 4"
    assert proposals["proposals"][4]["low"] == pytest.approx(4 - 1.96 * 0.5, abs=1e-3)
    assert proposals["welfare"]["mean"][2] == [3, pytest.approx(0.2)]
    assert proposals["behavior"]["apples"][5] == [6, 5]
    [chunk] = iterate_conversation_chunks(talks)
    first, repair = chunk["talks"][3]
    assert first["parse_error"] == "there is no number" and len(repair["messages"]) == 3


def test_proposals_need_no_conversation(tmp_path):
    folder = write_principal_run(tmp_path)
    (folder / "llm_calls.jsonl").unlink()
    proposals, talks = read_timeline(folder)
    assert not talks
    assert {row["talk"] for row in proposals["proposals"]} == {None}


def test_valid_question_is_not_repair(tmp_path):
    folder = write_run(tmp_path, "game", [], 0)
    first, second = [("user", "a")], [("user", "a"), ("assistant", "yes"), ("user", "b")]
    write_calls(folder, [*build_call_records("", first, "yes"), *build_call_records("", second, "no")])
    assert len(group_conversations(read_calls(folder / "llm_calls.jsonl"))) == 2


def test_folder_is_self_contained(tmp_path):
    write_player_run(tmp_path, episodes=2, video=True)
    write_principal_run(tmp_path)
    page = write_explorer(tmp_path)
    assert page == tmp_path / "explorer" / "index.html"
    assert {*VENDORED_FILES, "app.js", "app.css", "data"} <= {path.name for path in page.parent.iterdir()}
    key, index = explore(page.parent / "data" / "index.js")
    assert key == "index"
    corridor, town = index["runs"]
    assert (corridor["env"], corridor["agent"], corridor["episodes"]) == ("corridor", "llm_player", 2)
    assert (town["principal"], town["proposals"], town["state"]) == ("llm", 6, "finished")
    _, episode = explore(page.parent / "data" / corridor["key"] / "e1.js")
    frames = episode["frames"]
    assert (frames["width"], frames["height"], frames["count"]) == (48, 32, 5)
    with Image.open(page.parent / "data" / corridor["key"] / frames["sheets"][0]) as sheet:
        assert sheet.size == (5 * 48, 32)


def test_scripts_escape_terminators(tmp_path):
    folder = write_player_run(tmp_path, episodes=1, recorded=1)
    write_explorer(tmp_path)
    text = (tmp_path / "explorer" / "data" / "r0" / "e0.js").read_text("ascii")
    assert "<" not in text
    assert text.count("\n") == 1
    assert HOSTILE in explore(tmp_path / "explorer" / "data" / "r0" / "e0.js")[1]["steps"][0][0]["reflection"]
    assert folder.is_dir()


def test_redacts_secrets(tmp_path, monkeypatch):
    write_player_run(tmp_path, episodes=1, recorded=1)
    monkeypatch.setenv("SOME_API_KEY", "prompt of step 1")
    write_explorer(tmp_path)
    files = (tmp_path / "explorer" / "data").rglob("*.js")
    assert not [path for path in files if "prompt of step 1" in path.read_text()]


def test_reports_unreadable_files(tmp_path):
    folder = write_player_run(tmp_path, episodes=2)
    (folder / "episodes" / "0" / "replies.jsonl").write_text("{broken\n")
    write_principal_run(tmp_path)
    write_explorer(tmp_path)
    _, index = explore(tmp_path / "explorer" / "data" / "index.js")
    assert "its episodes" in index["runs"][0]["problems"][0]
    assert index["runs"][1]["proposals"] == 6


def test_rejects_empty_folders_and_links(tmp_path):
    with pytest.raises(RunFolderError, match="no run"):
        write_explorer(tmp_path)
    write_principal_run(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "explorer").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match="symbolic link"):
        write_explorer(tmp_path)


def test_command_prints_location(tmp_path, capsys):
    from llmrl.cli.sweep_report import main

    write_principal_run(tmp_path)
    main([str(tmp_path), "--explore"])
    output = capsys.readouterr().out.replace("\n", "")
    assert (tmp_path / "explorer" / "index.html").as_uri() in output
    mode = (tmp_path / "explorer" / "index.html").stat().st_mode
    assert not mode & (stat.S_IWGRP | stat.S_IWOTH)
