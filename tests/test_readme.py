"""Every command of the README and of the page of commands runs, cut to seconds and with placeholders filled in."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fake_openai_server import FakeOpenAIServer
from pages import list_command_lines, run_command
from some import mark_long_except

ROOT = Path(__file__).parents[1]
SMALL = {
    "harvest_native": ["env.horizon=6", "design.validate_episodes=1"],
    "escape_room": ["env.n_envs=2", "design.validate_episodes=2"],
    "cleanup": ["env.n_envs=1", "env.horizon=6", "design.validate_episodes=1", "design.rollout_steps=null"],
    "harvest": ["env.n_envs=1", "env.horizon=6", "design.validate_episodes=1"],
}
SMALL["taxi"] = ["env.n_envs=1", "env.horizon=6"]
SMALL |= {
    env: ["env.n_envs=2", "learn.rollout_steps=4"] for env in ("simple_doorkey", "unlock_pickup", "simple_spread")
}
SMALL |= {env: ["env.n_envs=2", "learn.rollout_steps=4", "env.horizon=8"] for env in ("goto_local", "goto_red_ball")}
TEACHING = {"rooms": "simple_doorkey", "teams": "simple_spread"}
"""The studies of teachers, and the environment of each."""
LITTLE = ["learn.rollout_steps=4", "learn.env_steps=8", "learn.evaluate_episodes=2", "play.episodes=2", "env.n_envs=2"]
FULL_COMMANDS = {
    "studies/harvest_figure": [
        *(*SMALL["harvest"], "agent.init_from=null", "agent.init_from_seed=own", "design.steps=2"),
        *("principal=random,scan", "design.adapt_rounds=1", "design.references=0"),
    ],
    "first/teacher": LITTLE,
    "first/grounding": [*LITTLE, "env.horizon=8"],
    # The chat models take half a minute each to create; tests of llm/learn have smaller ones.
    "first/zero_shot": ["treatment=random_play,rule_play", "env.n_envs=1", "env.horizon=6", "play.episodes=1"],
    "first/search": [
        "search.iterations=2",
        "search.episodes=1",
        "search.evaluate_episodes=2",
        "search.confirm_candidates=0",
    ],
}
"""Studies that are one command, cut to seconds; of each key what is typed last counts."""
BUDGET = ["design.steps=2", "design.candidates=1", "design.adapt_rounds=1"]
BUDGET += [
    "learn.env_steps=6",
    "learn.evaluate_episodes=1",
    "play.episodes=1",
    "design.references=0",
    "design.confirm_steps=0",
    "design.evaluations=0",
]


def environment(word: str) -> str | None:
    """Return the environment that a word of a command line chooses, if that is cut to seconds."""
    if match := re.match(rf"(?:env=|experiment=(?:legislative|grounding)/)({'|'.join(SMALL)})", word):
        return match[1]
    match = re.match(rf"experiment=teacher/({'|'.join(TEACHING)})", word)
    return TEACHING[match[1]] if match else None


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:^|`)make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert targets >= {"install", "demo", "test", "lint", "bench", "docs"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def range_in_page(page: str, label: str) -> tuple[float, float]:
    """Return the range `<low> to <high>` that a page states after a label."""
    low, high = re.search(rf"{label}\D*?(-?\d+) to (-?\d+)", page).groups()
    return float(low), float(high)


@pytest.mark.long
@pytest.mark.slow
def test_demo_reproduces_numbers(tmp_path):
    """About three minutes of a processor. The numbers depend on its type, so the pages state ranges."""
    [line] = re.findall(r"^\t\$\(BIN\)/(llmrl-train .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    command = [sys.executable, "-m", "llmrl.cli.train", *shlex.split(line)[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "outputs" / "demo").glob("*/s0/summary.json")
    summary = json.loads(path.read_text())
    [lines] = summary["references"]["contexts"]
    numbers = {
        "untrained agents": lines["untrained"]["value"],
        "no mechanism": lines["no_mechanism"]["value"],
        "best of the coarse scan": max(row["value"] for row in lines["scan"]),
        "mean of the last proposals": summary["online_performance"],
        "recommendation": summary["recommendation"],
        "highest single measurement": max(row["objective"] for row in summary["history"]),
    }
    tutorial = (ROOT / "docs" / "learn" / "govern_a_village.md").read_text()
    for label, value in numbers.items():
        low, high = range_in_page(tutorial, label)
        assert low <= value <= high, label


def test_readme_range_matches_tutorial():
    readme, tutorial = (ROOT / "README.md").read_text(), (ROOT / "docs" / "learn" / "govern_a_village.md").read_text()
    assert range_in_page(readme, "demo's recommendation") == range_in_page(tutorial, "recommendation")
    assert range_in_page(readme, "against") == range_in_page(tutorial, "no mechanism")


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize("page", mark_long_except(["README.md"], ["README.md", "docs/how_to/commands.md"]))
def test_commands(tmp_path, page):
    ran = []
    server = FakeOpenAIServer(reply=lambda messages: '{"reasoning": "as told", "eat": 1, "clean": 2, "other": 0}')
    with server:
        for line in list_command_lines((ROOT / page).read_text()):
            if line.startswith(("git ", "make ", "podman ")):  # tests/test_containers.py has those of the container
                continue
            if line.startswith("eval "):
                done = run_command(line + " && complete -p llmrl-train", tmp_path)
                assert done.returncode == 0, done.stderr
                ran.append(line)
                continue
            if "<run>" in line:
                name = re.search(r"outputs/(\w+)/", line)[1]
                folder = max((tmp_path / "outputs" / name).glob("*/s0"), key=lambda path: path.stat().st_mtime)
                line = line.replace("<run>", folder.parent.name)
            line = line.replace("http://localhost:8000/v1", f"{server.url}")
            words = [word.rstrip("…") for word in shlex.split(line) if word != "…"]
            if words[0] == "tensorboard":
                assert (tmp_path / words[2]).is_dir()  # what it reads; tests/run looks at the events themselves
                ran.append(line)
                continue
            if (
                study := next((w[11:] for w in words if w.startswith("experiment=") and w[11:] in FULL_COMMANDS), None)
            ) is not None:
                done = run_command([*words, *FULL_COMMANDS[study], "seed=0"], tmp_path)
                assert done.returncode == 0 and "Figure: " in done.stdout, f"{line}\n{done.stdout}\n{done.stderr}"
                ran.append(line)
                continue
            env = next(filter(None, map(environment, words)), None)
            if not any(word.startswith(("env=", "experiment=")) for word in words):
                env = "cleanup"
            if words[0] == "llmrl-train" and env and not {"--cfg", "--help", "-sc"} & set(words):
                first = next(i for i, word in enumerate(words) if "=" in word)
                words[first:first] = SMALL[env] + BUDGET  # what the command says itself has the last word
                if env in ("cleanup", "harvest") and not any("init_from" in word for word in words):
                    words += ["agent.init_from=null"]
                words += [f"env.n_envs={w.partition('=')[2]}" for w in words if w.startswith("design.candidates=")]
            words = ["seed=0,1" if word == "seed=0,1,2" else word for word in words]
            if words[0] == "llmrl-evaluate":
                words += ["suite.episodes=2"] if "suite=babyai_text" in words else ["--video-steps", "3"]
                if "--policy" in words and "--episodes" not in words:
                    words += ["--episodes", "2"]
            done = run_command(words, tmp_path)
            if "llm=gpt4o" in words and "dry_run=true" in words:
                assert done.returncode == 0 and "about $" in done.stdout, f"{line}\n{done.stderr}"
            elif "llm=gpt4o" in words:
                assert done.returncode != 0 and "OPENAI_API_KEY" in done.stderr, line
            elif words[:2] == ["llmrl-sweep", "status"]:
                # Of the runs above, the one that had no key was refused before it had a folder.
                match = re.search(r"(\d+) finished", done.stdout)
                assert done.returncode == 0 and match and int(match[1]) >= 6, f"{line}\n{done.stdout}\n{done.stderr}"
            else:
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            ran.append(line)
    assert len(ran) >= 12
