"""`llmrl-evaluate --mechanism none,best`: equal episodes under several mechanisms, after adaptation to each."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import compose, find_run_folder, run
from llmrl.cli.evaluate import build_parser, evaluate, main
from llmrl.core.errors import ConfigError
from llmrl.core.frames import scale_to_width
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.core.welfare_measures import OBJECTIVES
from llmrl.evaluation.evaluated_mechanisms import (
    AdaptationPlan,
    adapt_societies,
    parse_mechanisms,
    plan_adaptation,
    select_mechanisms,
)
from llmrl.evaluation.society_pictures import LEVEL_STYLES
from llmrl.evaluation.videos import RunningEpisode, record_video, save_side_by_side_video
from llmrl.experiment.parts import build_parts
from llmrl.results.mechanism_comparison import (
    build_table_rows,
    choose_reference,
    compare_with_reference,
    describe_differences,
    select_table_columns,
)
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_summaries import compute_objective
from llmrl.run.artifacts import load_saved_state, read_config
from llmrl.statistics.intervals import describe_difference

pytestmark = pytest.mark.slow

CLEANUP = (
    "env=cleanup", "agent.init_from=null", "agent.head_hidden=[]", "env.n_envs=4", "env.n_agents=3",
    "env.horizon=12", "design.rollout_steps=6", "design.steps=1", "design.candidates=2",
    "design.confirm_steps=0", "design.evaluations=0",
    "agent.ppo.learning_rate=0.03", "principal=listed", "principal.vectors=[[0,2,0],[1,0,0]]",
)  # fmt: skip
ESCAPE = (
    "env=escape_room", "principal=random", "env.n_envs=4", "design.steps=2", "design.adapt_rounds=1",
    "design.validate_episodes=4",
)  # fmt: skip


@pytest.fixture(scope="module")
def cleanup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cleanup")
    run(*CLEANUP, f"output_root={root}")
    return find_run_folder(root)


@pytest.fixture(scope="module")
def escape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("escape")
    run(*ESCAPE, f"output_root={root}")
    return find_run_folder(root)


def run_evaluation(folder: Path, *arguments: str) -> dict:
    return evaluate(build_parser().parse_args([str(folder), *arguments]))


def adaptation_equal(first: dict, second: dict) -> bool:
    """Return whether two agents have the same weights."""
    return all(torch.equal(x, second["policy"][name]) for name, x in first["policy"].items())


# What is asked for


@pytest.mark.parametrize(
    ("vectors_text", "requested"),
    [
        (["last"], ["last"]),
        (["none,best"], ["none", "best"]),
        (["none", "best", "0, 2.50,0"], ["none", "best", "0,2.5,0"]),
        (["1", "0.123456789"], ["1", "0.123456789"]),
    ],
)
def test_text_and_numbers(vectors_text, requested):
    assert parse_mechanisms(vectors_text) == requested


@pytest.mark.parametrize(
    ("vectors_text", "message"),
    [
        (["none,1,2"], "mechanism none,1,2"),
        (["most"], r"mechanism most .*\(none, last, best"),
        (["0,,1"], "mechanism 0,,1"),
        (["none", "best,none"], "mechanism: none "),
        (["1,2", "1.0,2"], "mechanism: 1,2 "),
    ],
)
def test_rejects_invalid_mechanisms(vectors_text, message):
    with pytest.raises(ConfigError, match=message):
        parse_mechanisms(vectors_text)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 5)), min_size=1, max_size=4))
def test_neutral_vector_is_in_bounds(bounds):
    entries = (Parameter(f"p{i}", low, low + width, "", "") for i, (low, width) in enumerate(bounds))
    space = ParameterSpace("tax", tuple(entries))
    neutral = space.neutral
    assert not space.is_out_of_bounds(neutral).any()
    for x, p in zip(neutral, space.parameters, strict=True):
        assert x == min(max(0.0, p.low), p.high)


def test_vectors_in_words():
    space = ParameterSpace("incentives", tuple(Parameter(name, 0, 3, "", "") for name in ("eat", "clean")))
    descriptions = [space.format_vector(np.array(vector)) for vector in ([0, 0], [0, 2.5], [1, 1 / 3])]
    assert descriptions == ["no incentives", "clean: 2.5", "eat: 1, clean: 0.333"]


def test_best_uses_best_context(escape):
    state, parts = (
        load_saved_state(escape)[1],
        build_parts(read_config(escape, []), None, play_only=True),
    )
    spec, history = parts.env.spec, state["history"]
    [none, best], context = select_mechanisms(["none", "best"], None, state, spec)
    assert spec.contexts[context] == state["recommended"][0]["context"]
    assert best.vector.tolist() == list(state["recommended"][0]["mechanism"].values()) and not none.vector.any()
    for row in state["recommended"]:
        place = spec.contexts.index(row["context"])
        [best_vector], context = select_mechanisms(["best"], place, state, spec)
        assert context == place and best_vector.vector.tolist() == list(row["mechanism"].values())
    [other_context] = [i for i, name in enumerate(spec.contexts) if name not in [row["context"] for row in history]][:1]
    [neutral], _ = select_mechanisms(["best"], other_context, state, spec)
    assert not neutral.vector.any(), "nothing was proposed there"
    with pytest.raises(ConfigError, match=r"9.* 0 = "):
        select_mechanisms(["best"], 9, state, spec)
    with pytest.raises(ConfigError, match="proposals"):
        select_mechanisms(["none", "best"], None, {"history": []}, spec)
    with pytest.raises(ConfigError, match="is outside"):
        select_mechanisms(["9,0,0,0,0"], None, state, spec)


# Adapting


def test_societies_adapt_like_design_step(cleanup):
    """Compare with the societies of the run's step, with equal and with different seeds."""
    config = read_config(cleanup, [])
    vectors = [np.array([0.0, 2, 0]), np.array([1.0, 0, 0])]
    initial_agents = load_saved_state(cleanup)[1]["agents"]
    plan = plan_adaptation(None, True, ["student"], config)
    assert plan == AdaptationPlan(rounds=config["design"]["adapt_rounds"], games=2, initial=True)
    seeds = Seeds(config["seed"]).child("loop").child("step").child(0)
    adapted = adapt_societies(plan, config, None, vectors, None, seeds, {})
    assert [adaptation_equal(x, y) for x, y in zip(initial_agents, adapted, strict=True)] == [
        True,
        True,
    ] and not adaptation_equal(*adapted)
    different_seed = adapt_societies(plan, config, None, vectors, None, Seeds(1).child("other"), {})
    assert not adaptation_equal(different_seed[0], initial_agents[0])


def test_comparison_keeps_adaptation(cleanup):
    config = read_config(cleanup, [])
    plan, first, second = AdaptationPlan(1, 2, True), np.array([0.0, 2, 0]), np.array([3.0, 0, 1])
    single_society = adapt_societies(plan, config, None, [first], None, Seeds(3), {})[0]
    second_of_two = adapt_societies(plan, config, None, [second, first], None, Seeds(3), {})[1]
    for name, x in single_society["policy"].items():
        assert torch.allclose(x, second_of_two["policy"][name], atol=1e-5), name


def test_initial_societies(tmp_path):
    run(
        *ESCAPE,
        "design.reset_agents=false",
        "design.confirm_steps=0",
        "design.evaluations=0",
        f"output_root={tmp_path}",
    )
    folder = find_run_folder(tmp_path)
    config, saved = read_config(folder, []), load_saved_state(folder)[1]["agents"][0]
    assert plan_adaptation(True, False, ["student"], config).initial is False
    vectors = [np.zeros(5)] * 2
    as_saved = adapt_societies(AdaptationPlan(0, 4, False), config, None, vectors, 0, Seeds(0), saved)
    unadapted = adapt_societies(AdaptationPlan(0, 4, True), config, None, vectors, 0, Seeds(0), saved)
    [agent] = build_parts(config, None, play_only=True).agents
    assert all(adaptation_equal(x, saved) for x in as_saved)
    assert all(adaptation_equal(x, agent.state_dict()) for x in unadapted) and not adaptation_equal(unadapted[0], saved)


def test_when_societies_adapt():
    has_principal, alone = compose(*ESCAPE), compose("env=escape_room")
    assert plan_adaptation(None, False, ["student"], has_principal) is None
    assert plan_adaptation(False, True, ["student"], has_principal) is None
    assert (
        plan_adaptation(None, True, ["random"], has_principal) is None
        and plan_adaptation(None, True, ["student"], alone) is None
    )
    assert plan_adaptation(True, False, ["student"], has_principal) == AdaptationPlan(1, 4, True)
    with pytest.raises(ConfigError, match="principal"):
        plan_adaptation(True, True, ["student"], alone)
    with pytest.raises(ConfigError, match="not random"):
        plan_adaptation(True, True, ["random"], has_principal)


# Evaluating


def test_output_contains_all_mechanisms(cleanup, capsys):
    main([str(cleanup), "--mechanism", "none,best", "--mechanism", "0,3,0", "--episodes", "8", "--seed", "5"])
    [out] = cleanup.glob("evaluation_mechanism_none-best-0-3-0-*")
    results = json.loads((out / "results.json").read_text())
    best = json.loads((cleanup / "summary.json").read_text())["recommendations"][0]["mechanism"]
    mechanism_values = [list(mechanism_result["mechanism"].values()) for mechanism_result in results["mechanisms"]]
    assert mechanism_values == [[0, 0, 0], list(best.values()), [0, 3, 0]]
    assert (results["paired"], results["episodes"], results["society"]) == (True, 8, None)
    assert results["adapted"] == {"rounds": 2, "games": 2, "initial": True}
    column = results["objective"]["column"]
    left, right = (np.array(results["mechanisms"][i]["per_episode"][column]) for i in (1, 0))
    first, second = results["differences"]
    assert (first["name"], first["reference"], second["name"]) == ("best", "none", "0,3,0")
    assert first["table"][column] == describe_difference(left, right, True)
    with (out / "episodes.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["mechanism"], row["episode"]) for row in rows[::8]] == [("none", "0"), ("best", "0"), ("0,3,0", "0")]
    assert [float(row[column]) for row in rows[8:16]] == pytest.approx(left.tolist(), rel=1e-5)
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == results["sentences"][1].strip() and "no incentives" in output
    assert "2 rounds of 2 games " in output and "Video" not in output


def test_comparison_follows_seed(cleanup, tmp_path):
    words = ("--mechanism", "none,best", "--episodes", "4")
    first, second_evaluation, second = (
        run_evaluation(cleanup, *words, "--seed", seed, "--out", str(tmp_path / name))
        for name, seed in zip("abc", "778", strict=True)
    )
    # As text, in which NaN, where a metric says nothing of an episode, is equal to itself.
    is_equal, is_different = (
        repr(evaluation["mechanisms"]) == repr(first["mechanisms"]) for evaluation in (second_evaluation, second)
    )
    assert is_equal and not is_different and repr(first["differences"]) == repr(second_evaluation["differences"])


def test_comparison_matches_single_evaluations(escape, tmp_path):
    shared = ("--episodes", "8", "--context", "1")
    single = run_evaluation(escape, *shared, "--out", str(tmp_path / "single"))
    joint_results = run_evaluation(
        escape, "--mechanism", "last,none", "--no-adapt", *shared, "--out", str(tmp_path / "several")
    )
    assert joint_results["adapted"] is None and joint_results["society"] == single["society"]
    last, none = joint_results["mechanisms"]
    assert last["per_episode"] == single["per_episode"] and last["mechanism"] == single["mechanism"]
    alone = run_evaluation(escape, "--mechanism", "none", *shared, "--out", str(tmp_path / "none"))
    assert none["per_episode"] == alone["per_episode"] and not any(alone["mechanism"].values())
    adapted_results = run_evaluation(escape, "--adapt", *shared, "--out", str(tmp_path / "adapted"))
    assert adapted_results["adapted"] == {"rounds": 1, "games": 4, "initial": True}
    assert adapted_results["per_episode"] != single["per_episode"] and "mechanisms" not in adapted_results


def test_rejects_unsupported_comparisons(escape, tmp_path):
    for words in (("--mode", "both"), ("--policy", "student,random")):
        with pytest.raises(ConfigError, match="a single mode"):
            run_evaluation(escape, "--mechanism", "none,best", *words)
    run("env=escape_room", "env.mechanism=false", "learn.env_steps=40", f"output_root={tmp_path}")
    with pytest.raises(ConfigError, match="mechanism"):
        run_evaluation(find_run_folder(tmp_path), "--mechanism", "none", "--mechanism", "1,1,1,1,1")


def test_compares_agents_with_no_principal(tmp_path):
    run("env=escape_room", "env.n_envs=4", "learn.env_steps=40", "learn.evaluate_episodes=4", f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    evaluation = run_evaluation(folder, "--mechanism", "none", "--mechanism", "5,0,0,0,0", "--episodes", "4")
    payments = [mechanism_result["table"]["incentives_paid"]["mean"] for mechanism_result in evaluation["mechanisms"]]
    assert evaluation["adapted"] is None and payments[0] == 0 < payments[1]


# Videos


def read_frames(file: Path) -> np.ndarray:
    return iio.imread(file).astype(int)


@pytest.mark.slow
def test_joint_videos_show_worlds(cleanup, tmp_path):
    mechanisms = ("--mechanism", "none", "--mechanism", "0,3,0")
    evaluation = run_evaluation(cleanup, *mechanisms, "--episodes=4", "--video", "--video-steps=9", f"--out={tmp_path}")
    videos = tmp_path / "videos"
    assert {Path(file).name for file in evaluation["videos"]} == {"side_by_side.mp4", "side_by_side.gif"}
    single_frames = {name: read_frames(videos / name / "world.mp4") for name in ("none", "0,3,0")}
    joint_frames = read_frames(videos / "side_by_side.mp4")
    assert [len(x) for x in (*single_frames.values(), joint_frames)] == [10, 10, 10]
    middle, n_frames = joint_frames.shape[2] // 2, len(read_frames(videos / "side_by_side.gif"))
    assert n_frames == 10 and not list(videos.glob("*/agent_*"))
    halves = {"none": joint_frames[:, :, : middle - 2], "0,3,0": joint_frames[:, :, middle + 2 :]}
    top = 0
    for name, half in halves.items():
        frames_displayed = np.stack(
            [scale_to_width(frame.astype(np.uint8), half.shape[2]).astype(int) for frame in single_frames[name]]
        )
        height = frames_displayed.shape[1]
        misses = [np.abs(half[0, y : y + height] - frames_displayed[0]).mean() for y in range(half.shape[1] - height)]
        top = int(np.argmin(misses))
        assert np.abs(half[:, top : top + height] - frames_displayed).mean() < 6, (
            "video compression aside it is the same world"
        )
        assert (half[:, :top] < 128).any((1, 2, 3)).all(), "words above it"
        assert (half[:, top + height :] < 128).any((1, 2, 3)).all(), "and below it what became of the agents"
    assert np.abs(single_frames["none"][0] - single_frames["0,3,0"][0]).mean() < 1, "the same game begins"
    assert (np.abs(single_frames["none"][-1] - single_frames["0,3,0"][-1]).max(-1) > 100).any(), "and becomes another"


def test_video_needs_frames(escape, monkeypatch):
    monkeypatch.delattr("llmrl.envs.escape_room.EscapeRoom.render")
    with pytest.raises(ConfigError, match=r"escape_room .*`render`.*--video"):
        run_evaluation(escape, "--video")


def test_shorter_video_freezes_at_end(tmp_path):
    parts = build_parts(compose(*CLEANUP), None, play_only=True)
    videos = [record_video(parts, parts.agents[0].policy, Seeds(0), steps, False, is_compared=True) for steps in (2, 6)]
    assert [len(video) for video in videos] == [3, 7]
    last = videos[0].recorder.frames["world"][-1].copy()
    for video in videos:
        video.pad_to(7)
    assert [len(video.moments) for video in videos] == [7, 7] and videos[0].moments[2:] == [videos[0].moments[2]] * 5
    assert all((frame == last).all() for frame in videos[0].recorder.frames["world"][2:])
    assert [moment.step for moment in videos[0].moments] == [0, 1, 2, 2, 2, 2, 2]
    assert next(iter(videos[0].moments[2].counts)) == "apples eaten" and set(videos[0].moments[2].levels) == set(
        LEVEL_STYLES
    )
    sentences = ["short", "a sentence that is long enough to need more than one row of words" * 2]
    societies = [video.to_society(*text) for video, *text in zip(videos, ["one", "two"], sentences, strict=True)]
    files = save_side_by_side_video(societies, videos[0].setting, tmp_path, 10)
    assert len(read_frames(files[0])) == 7


def test_last_step_caption_describes_episode():
    parts = build_parts(compose(*CLEANUP, "env.mechanism.clean_reward=-0.5"), None, play_only=True)
    objective = OBJECTIVES["sustainability"]
    collector, sums = (
        Collector(parts.env, parts.agents[0].policy, "cpu"),
        RunningEpisode(parts.env.spec, objective, 0.5),
    )
    parts.env.set_mechanism(np.array([1.0, 2, 1]))
    collector.reset(0)
    final_episodes = []
    while not final_episodes:
        rollout = collector.collect(1, Seeds(0).torch("a"), learn=False, restart=False)
        sums.add_rollout(rollout)
        final_episodes = [episode for episode in rollout.episodes if episode.game == 0]
    descriptions = sums.to_moment()
    assert descriptions.step == 12 and descriptions.objective == pytest.approx(
        compute_objective(final_episodes, objective, 0.5)[0]
    )
    assert descriptions.payoffs == pytest.approx(final_episodes[0].base_returns)
    payments = final_episodes[0].summaries["incentives_paid"]
    assert descriptions.counts["incentives paid"] == pytest.approx(payments) and payments > 10


# What is said


def entry(name: str, objective: list[float], **columns: list[float]) -> dict:
    from llmrl.rollout.episode_summaries import describe_measurements

    metrics = {"objective (mean)": objective, "length": [5.0] * len(objective), **columns}
    arrays = {key: np.array(values, dtype=float) for key, values in metrics.items()}
    return {"name": name, "words": name, "table": describe_measurements(arrays, True), "per_episode": metrics}


def compare(*entries: dict, paired_table: bool = True, independent: bool = True) -> tuple[list[dict], list[str]]:
    table_rows = compare_with_reference(entries, paired_table, independent)
    return table_rows, describe_differences(entries, table_rows, "objective (mean)")


def test_difference_has_interval():
    none, best = entry("none", [1.0, 2, 3, 2, 2]), entry("best", [81.0, 90, 83, 86, 85])
    _, [line_text] = compare(none, best)
    assert re.search(r" best .* 85\.0, .* 2\.0: .* 83\.0 ± .*\(95 % 78\.9 … 87\.1.*\)\.$", line_text)
    _, [reversed_line] = compare(best, none)
    assert reversed_line == line_text, "none is what others are compared with, wherever it stands"
    _, [line] = compare(best, entry("0,3,0", [1.0, 2, 3, 2, 2]))
    assert re.search(r" 0,3,0 .* 2\.0, .* best .* 85\.0: .* -83\.0", line)


def test_chance_is_called_chance():
    _, [output] = compare(entry("none", [1.0, 2, 3, 4, 2.5]), entry("best", [2.0, 1, 4, 3, 2.5]))
    assert re.search(r" 2\.50: no significant .*\(0\.00 ± ", output)
    _, [output] = compare(entry("none", [1.0]), entry("best", [4.0]))
    assert re.search(r" 3\.00; .*unknown\.$", output)
    _, [output] = compare(entry("none", [1.0, 1]), entry("best", [4.0, 5]), independent=False)
    assert output.endswith(" unknown.")


def test_pairs_reduce_variance():
    rng = np.random.default_rng(0)
    luck = rng.normal(0, 10, 30)
    none, best = entry("none", luck.tolist()), entry("best", (luck + 1 + rng.normal(0, 0.1, 30)).tolist())
    assert "a difference of 1.0" in compare(none, best)[1][0]
    assert "no significant" in compare(none, best, paired_table=False)[1][0]


def test_skips_episodes_missing_metric():
    nan = float("nan")
    none = entry("none", [1.0, 2, 3], eaten=[nan, 1, 2], never=[nan] * 3)
    best = entry("best", [2.0, 3, 4], eaten=[5, nan, 4], never=[1.0, 2, 3])
    paired_table, unpaired_table = (
        compare(none, best)[0][0]["table"],
        compare(none, best, paired_table=False)[0][0]["table"],
    )
    assert paired_table["eaten"]["mean"] == 2 and unpaired_table["eaten"]["mean"] == 3
    assert "never" not in paired_table
    table_cells = build_table_rows([none, best], compare(none, best)[0], {"never": "never"})
    assert table_cells == [["never", "-", "2.00", "-"]]


def test_table_rows_match_game_metrics(cleanup):
    spec = build_parts(compose(*CLEANUP), None, play_only=True).env.spec
    metric_values = {name: [1.0, 2, 1, 2, 1] for name in ("apples_eaten", "incentives_paid", "welfare/spending")}
    entries = [
        entry(
            "none",
            [1.0, 2, 1, 2, 1],
            **metric_values | {"welfare/gini": [0.0, 1, 0, 1, 0], "dirt": [3.0, 4, 3, 4, 3.5]},
        ),
        entry(
            "best",
            [2.0, 3, 2, 3, 2],
            **metric_values | {"welfare/gini": [0.0, 1, 0, 1, 0], "dirt": [4.0, 7, 4, 7, 5.5]},
        ),
    ]
    mechanism_labels = select_table_columns(entries, spec)
    assert mechanism_labels["apples_eaten"] == "apples eaten" and "incentives_paid" in mechanism_labels
    assert mechanism_labels["dirt"] == "dirt, at the end"
    assert "welfare/spending" not in mechanism_labels, "what the mechanism pays is there already"
    assert (
        "length" not in mechanism_labels
        and "welfare/gini" not in mechanism_labels
        and "cells_cleaned" not in mechanism_labels
    )
    rows = build_table_rows(entries, compare_with_reference(entries, True, True), mechanism_labels)
    [dirt] = [row for row in rows if row[0] == "dirt, at the end"]
    assert dirt[:3] == ["dirt, at the end", "3.50", "5.50"] and dirt[3].startswith("+2.00  (")
    assert next(iter(mechanism_labels)) == "objective (mean)" and choose_reference(["best", "none"]) == "none"
