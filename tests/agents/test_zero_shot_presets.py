"""The studies of conf/experiment/zero_shot: each composes, builds, and matches its name and page."""

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

from experiments import compose, find_run_folder, run
from llmrl.agents.llm_player.agent import LLMPlayer
from llmrl.config.treatments import list_studies
from llmrl.experiment.models import build_used_model
from llmrl.experiment.parts import build_loop, build_parts, check_values
from llmrl.experiment.resources import RunResources
from llmrl.llms.call_log import read_calls
from llmrl.loops.play import PlayLoop
from some import mark_long_except_every

ROOT = Path(__file__).parents[2]
GAMES = (
    "taxi",
    "acrobot",
    "babyai",
    "blackjack",
    "cartpole",
    "cliff_walking",
    "frozen_lake",
    "lunar_lander",
    "minigrid",
    "mountain_car",
)
"""Environments of zero_shot/games."""
STUDIES = [*GAMES, *(study.removeprefix("zero_shot/") for study in list_studies() if study.startswith("zero_shot/"))]
STUDIES.remove("games")


def read_words(study):
    return ("experiment=zero_shot/games", f"env={study}") if study in GAMES else (f"experiment=zero_shot/{study}",)


PUBLISHED_SETTINGS = {"blackjack": (None, 10, 5), "lunar_lander": (80, 5, 5), "taxi": (50, 1, 25)}
"""Steps, episodes and exchanges of the published runs."""


@pytest.mark.slow
@pytest.mark.meltingpot
@pytest.mark.parametrize(
    ("study", "treatment"),
    mark_long_except_every(
        3,
        [
            ("taxi", "lessons"),
            *((study, "none") for study in STUDIES),
            *((study, "observation_only") for study in PUBLISHED_SETTINGS),
        ],
    ),
)
def test_preset_builds(study, treatment):
    config = compose(*read_words(study), f"treatment={treatment}")
    check_values(config)
    parts = build_parts(config, RunResources(config, build_used_model).model)
    try:
        loop, [agent] = build_loop(config, parts), parts.agents
        assert isinstance(loop, PlayLoop) and isinstance(agent, LLMPlayer)
        assert parts.env.spec.name == study
        assert (agent.policy.settings.lessons > 0) == (treatment == "lessons")
        if treatment == "observation_only":
            assert (parts.env.spec.horizon, loop.n_episodes, agent.policy.settings.history) == PUBLISHED_SETTINGS[study]
            assert (config["llm"]["temperature"], config["llm"]["max_tokens"]) == (0.0, 256)
            assert agent.policy.structured_query.repair_turns == 0 and not agent.policy.requires_reflection
            system = agent.policy.prompts.render_system(0, ()).text
            assert "legal" not in system and '"reward" is' not in system and "\n- 0: " in system
    finally:
        parts.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "llm"),
    mark_long_except_every(4, itertools.product(sorted(PUBLISHED_SETTINGS), ["scripted", "claude_haiku", "ollama"])),
)
def test_presets_accept_any_model(study, llm):
    """Keep the temperature and the maximum reply length that were typed."""
    config = compose(*read_words(study), "treatment=observation_only", f"llm={llm}")
    check_values(config)
    assert (config["llm"]["temperature"], config["llm"]["max_tokens"]) == (0.0, 256)


def test_preset_runs_offline(tmp_path):
    words = (*read_words("blackjack"), "treatment=observation_only", "llm=scripted", "play.videos=0")
    run(*words, f"output_root={tmp_path}")
    replies = [call["reply"] for call in read_calls(find_run_folder(tmp_path) / "llm_calls.jsonl")]
    assert len(replies) >= 10 and all(json.loads(reply)["action"] in (0, 1) for reply in replies)


def test_page_lists_all_presets():
    page = (ROOT / "docs" / "zero_shot.md").read_text()
    assert not [study for study in STUDIES if f"`{study}`" not in page]


def blocks(language):
    page = (ROOT / "docs" / "zero_shot.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def test_page_program_runs(capsys):
    [program] = blocks("python")
    exec(compile(program, "zero_shot.md", "exec"), {})
    output = capsys.readouterr().out
    assert output.count("->") == 100 and "'player/lessons': 1.0" in output


def test_page_text_matches_game(tmp_path):
    from llmrl.envs.gym.env_factory import EnvFactory
    from llmrl.envs.gym.episode_scores import SuccessCriterion
    from llmrl.envs.texts import build_describer

    [text] = blocks("yaml")
    (tmp_path / "pendulum.yaml").write_text(text)
    words = build_describer(
        str(tmp_path / "pendulum.yaml"), EnvFactory("Pendulum-v1"), SuccessCriterion("return", -300.0)
    )
    assert words.game.goal.endswith("An episode is a success if it costs less than 300.")
    weaker = build_describer(
        str(tmp_path / "pendulum.yaml"), EnvFactory("Pendulum-v1", {"g": 5}), SuccessCriterion("return", -500.0)
    )
    assert "upright. Gravity is 5, not 10. Each" in weaker.game.goal and weaker.game.goal.endswith(
        "rewards is -500 or more."
    )


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for block in blocks("bash") for line in block.splitlines()])
def test_page_commands_compose(line):
    words = shlex.split(line.split("  #")[0])
    if words[0] == "llmrl-train":
        # Of what is swept, the first of each.
        selected_words = [w if "[" in w or "," not in w else w.split(",")[0] for w in words[1:] if w != "--multirun"]
        check_values(compose(*selected_words))
