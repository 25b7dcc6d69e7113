"""`llmrl-evaluate --mechanism none,best`: the same episodes under several mechanisms, after adapting to each."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments import compose, only_run_folder, run
from llmrl.analysis.intervals import describe_difference
from llmrl.analysis.mechanism_comparison import cells, differences, labels, reference, sentences
from llmrl.cli.evaluate import evaluate, main, parser
from llmrl.core.errors import ConfigError
from llmrl.core.frames import fitted
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.core.welfare_measures import OBJECTIVES
from llmrl.evaluation.evaluated_mechanisms import (
    AdaptationPlan,
    adapt_societies,
    mechanisms_asked_for,
    parse_mechanisms,
    plan_adaptation,
)
from llmrl.evaluation.society_pictures import LEVELS
from llmrl.evaluation.videos import SoFar, film, save_side_by_side
from llmrl.experiment.parts import build_parts
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_summaries import episode_welfare
from llmrl.run.artifacts import read_config, saved_state

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
    return only_run_folder(root)


@pytest.fixture(scope="module")
def escape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("escape")
    run(*ESCAPE, f"output_root={root}")
    return only_run_folder(root)


def evaluated(folder: Path, *words: str) -> dict:
    return evaluate(parser().parse_args([str(folder), *words]))


def same(one: dict, two: dict) -> bool:
    """Whether two agents have the same weights."""
    return all(torch.equal(x, two["policy"][name]) for name, x in one["policy"].items())


# What is asked for


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (["last"], ["last"]),
        (["none,best"], ["none", "best"]),
        (["none", "best", "0, 2.50,0"], ["none", "best", "0,2.5,0"]),
        (["1", "0.123456789"], ["1", "0.123456789"]),
    ],
)
def test_words_and_numbers(given, asked):
    assert parse_mechanisms(given) == asked


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["none,1,2"], "give words"),
        (["most"], r"mechanism most: give words \(none, last, best"),
        (["0,,1"], "give words"),
        (["none", "best,none"], "none is there twice"),
        (["1,2", "1.0,2"], "1,2 is there twice"),
    ],
)
def test_what_is_no_mechanism_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        parse_mechanisms(given)


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 5)), min_size=1, max_size=4))
def test_the_neutral_vector_is_in_bounds_and_as_near_to_nothing_as_they_allow(bounds):
    entries = (Parameter(f"p{i}", low, low + width, "", "") for i, (low, width) in enumerate(bounds))
    space = ParameterSpace("tax", tuple(entries))
    neutral = space.neutral
    assert not space.outside(neutral).any()
    for x, p in zip(neutral, space.parameters, strict=True):
        assert x == min(max(0.0, p.low), p.high)


def test_vectors_in_words():
    space = ParameterSpace("incentives", tuple(Parameter(name, 0, 3, "", "") for name in ("eat", "clean")))
    told = [space.in_words(np.array(vector)) for vector in ([0, 0], [0, 2.5], [1, 1 / 3])]
    assert told == ["no incentives", "clean: 2.5", "eat: 1, clean: 0.333"]


def test_best_is_that_of_the_context_which_is_that_of_the_best(escape):
    state, parts = (
        saved_state(escape)[1],
        build_parts(read_config(escape, []), None, play_only=True),
    )
    spec, history = parts.env.spec, state["history"]
    [none, best], context = mechanisms_asked_for(["none", "best"], None, state, spec)
    assert spec.contexts[context] == state["recommended"][0]["context"]
    assert best.vector.tolist() == list(state["recommended"][0]["mechanism"].values()) and not none.vector.any()
    for row in state["recommended"]:
        place = spec.contexts.index(row["context"])
        [own], context = mechanisms_asked_for(["best"], place, state, spec)
        assert context == place and own.vector.tolist() == list(row["mechanism"].values())
    [other] = [i for i, name in enumerate(spec.contexts) if name not in [row["context"] for row in history]][:1]
    [neutral], _ = mechanisms_asked_for(["best"], other, state, spec)
    assert not neutral.vector.any(), "nothing was proposed there"
    with pytest.raises(ConfigError, match="there is 0 = "):
        mechanisms_asked_for(["best"], 9, state, spec)
    with pytest.raises(ConfigError, match="nobody has proposed anything"):
        mechanisms_asked_for(["none", "best"], None, {"history": []}, spec)
    with pytest.raises(ConfigError, match="is outside"):
        mechanisms_asked_for(["9,0,0,0,0"], None, state, spec)


# Adapting


def test_societies_adapt_as_in_a_principals_step(cleanup):
    """With the seeds of the run's step, the societies are those that the step made; with others they are others."""
    config = read_config(cleanup, [])
    vectors = [np.array([0.0, 2, 0]), np.array([1.0, 0, 0])]
    made = saved_state(cleanup)[1]["agents"]
    plan = plan_adaptation(None, True, ["student"], config)
    assert plan == AdaptationPlan(rounds=config["design"]["adapt_rounds"], games=2, initial=True)
    seeds = Seeds(config["seed"]).child("loop").child("step").child(0)
    found = adapt_societies(plan, config, None, vectors, None, seeds, {})
    assert [same(a, b) for a, b in zip(made, found, strict=True)] == [True, True] and not same(*found)
    other = adapt_societies(plan, config, None, vectors, None, Seeds(1).child("other"), {})
    assert not same(other[0], made[0])


def test_a_society_adapts_alike_whatever_it_is_compared_with(cleanup):
    config = read_config(cleanup, [])
    plan, one, other = AdaptationPlan(1, 2, True), np.array([0.0, 2, 0]), np.array([3.0, 0, 1])
    alone = adapt_societies(plan, config, None, [one], None, Seeds(3), {})[0]
    beside = adapt_societies(plan, config, None, [other, one], None, Seeds(3), {})[1]
    for name, x in alone["policy"].items():
        assert torch.allclose(x, beside["policy"][name], atol=1e-5), name


def test_what_societies_begin_with(tmp_path):
    run(
        *ESCAPE,
        "design.reset_agents=false",
        "design.confirm_steps=0",
        "design.evaluations=0",
        f"output_root={tmp_path}",
    )
    folder = only_run_folder(tmp_path)
    config, saved = read_config(folder, []), saved_state(folder)[1]["agents"][0]
    assert plan_adaptation(True, False, ["student"], config).initial is False
    vectors = [np.zeros(5)] * 2
    as_saved = adapt_societies(AdaptationPlan(0, 4, False), config, None, vectors, 0, Seeds(0), saved)
    as_built = adapt_societies(AdaptationPlan(0, 4, True), config, None, vectors, 0, Seeds(0), saved)
    [agent] = build_parts(config, None, play_only=True).agents
    assert all(same(x, saved) for x in as_saved)
    assert all(same(x, agent.state_dict()) for x in as_built) and not same(as_built[0], saved)


def test_when_societies_adapt():
    has_principal, alone = compose(*ESCAPE), compose("env=escape_room")
    assert plan_adaptation(None, False, ["student"], has_principal) is None
    assert plan_adaptation(False, True, ["student"], has_principal) is None
    assert (
        plan_adaptation(None, True, ["random"], has_principal) is None
        and plan_adaptation(None, True, ["student"], alone) is None
    )
    assert plan_adaptation(True, False, ["student"], has_principal) == AdaptationPlan(1, 4, True)
    with pytest.raises(ConfigError, match="this run has no principal"):
        plan_adaptation(True, True, ["student"], alone)
    with pytest.raises(ConfigError, match="not policy=random"):
        plan_adaptation(True, True, ["random"], has_principal)


# Evaluating


def test_all_mechanisms_are_in_what_is_written(cleanup, capsys):
    main([str(cleanup), "--mechanism", "none,best", "--mechanism", "0,3,0", "--episodes", "8", "--seed", "5"])
    [out] = cleanup.glob("evaluation_mechanism_none-best-0-3-0-*")
    results = json.loads((out / "results.json").read_text())
    best = json.loads((cleanup / "summary.json").read_text())["recommendations"][0]["mechanism"]
    imposed_values = [list(each["mechanism"].values()) for each in results["mechanisms"]]
    assert imposed_values == [[0, 0, 0], list(best.values()), [0, 3, 0]]
    assert (results["paired"], results["episodes"], results["society"]) == (True, 8, None)
    assert results["adapted"] == {"rounds": 2, "games": 2, "initial": True}
    column = results["objective"]["column"]
    x, y = (np.array(results["mechanisms"][i]["per_episode"][column]) for i in (1, 0))
    first, second = results["differences"]
    assert (first["name"], first["reference"], second["name"]) == ("best", "none", "0,3,0")
    assert first["table"][column] == describe_difference(x, y, True)
    with (out / "episodes.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["mechanism"], row["episode"]) for row in rows[::8]] == [("none", "0"), ("best", "0"), ("0,3,0", "0")]
    assert [float(row[column]) for row in rows[8:16]] == pytest.approx(x.tolist(), rel=1e-5)
    for each in results["mechanisms"]:
        accumulator = EventAccumulator(str(out / each["name"]))
        accumulator.Reload()
        [point] = accumulator.Scalars("evaluation/objective")
        assert point.value == pytest.approx(each["table"][column]["mean"])
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == results["sentences"][1].strip() and "no incentives" in said
    assert "2 rounds of 2 games from the weights that the run began with" in said and "Film" not in said


def test_a_comparison_is_a_function_of_its_seed(cleanup, tmp_path):
    words = ("--mechanism", "none,best", "--episodes", "4")
    one, again, other = (
        evaluated(cleanup, *words, "--seed", seed, "--out", str(tmp_path / name))
        for name, seed in zip("abc", "778", strict=True)
    )
    # As text, in which NaN, where a metric says nothing of an episode, is equal to itself.
    alike, unlike = (repr(each["mechanisms"]) == repr(one["mechanisms"]) for each in (again, other))
    assert alike and not unlike and repr(one["differences"]) == repr(again["differences"])


def test_without_adapting_it_is_what_single_evaluations_find(escape, tmp_path):
    shared = ("--episodes", "8", "--context", "1")
    single = evaluated(escape, *shared, "--out", str(tmp_path / "single"))
    several = evaluated(escape, "--mechanism", "last,none", "--no-adapt", *shared, "--out", str(tmp_path / "several"))
    assert several["adapted"] is None and several["society"] == single["society"]
    last, none = several["mechanisms"]
    assert last["per_episode"] == single["per_episode"] and last["mechanism"] == single["mechanism"]
    alone = evaluated(escape, "--mechanism", "none", *shared, "--out", str(tmp_path / "none"))
    assert none["per_episode"] == alone["per_episode"] and not any(alone["mechanism"].values())
    adapted_to = evaluated(escape, "--adapt", *shared, "--out", str(tmp_path / "adapted"))
    assert adapted_to["adapted"] == {"rounds": 1, "games": 4, "initial": True}
    assert adapted_to["per_episode"] != single["per_episode"] and "mechanisms" not in adapted_to


def test_what_cannot_be_compared_is_refused(escape, tmp_path):
    for words in (("--mode", "both"), ("--policy", "student,random")):
        with pytest.raises(ConfigError, match="by one policy in one mode"):
            evaluated(escape, "--mechanism", "none,best", *words)
    run("env=escape_room", "env.mechanism=false", "learn.env_steps=40", f"output_root={tmp_path}")
    with pytest.raises(ConfigError, match="has no mechanism to compare"):
        evaluated(only_run_folder(tmp_path), "--mechanism", "none", "--mechanism", "1,1,1,1,1")


def test_agents_without_a_principal_are_compared_as_they_are(tmp_path):
    run("env=escape_room", "env.n_envs=4", "learn.env_steps=40", "learn.evaluate_episodes=4", f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    found = evaluated(folder, "--mechanism", "none", "--mechanism", "5,0,0,0,0", "--episodes", "4")
    paid = [each["table"]["incentives_paid"]["mean"] for each in found["mechanisms"]]
    assert found["adapted"] is None and paid[0] == 0 < paid[1]


# Videos


def frames_of(file: Path) -> np.ndarray:
    return iio.imread(file).astype(int)


@pytest.mark.slow
def test_films_side_by_side_have_both_worlds(cleanup, tmp_path):
    mechanisms = ("--mechanism", "none", "--mechanism", "0,3,0")
    found = evaluated(cleanup, *mechanisms, "--episodes=4", "--video", "--video-steps=9", f"--out={tmp_path}")
    videos = tmp_path / "videos"
    assert {Path(file).name for file in found["videos"]} == {
        "side_by_side.mp4", "side_by_side.gif", "side_by_side.webp", "side_by_side_middle.png", "side_by_side_last.png",
    }  # fmt: skip
    own = {name: frames_of(videos / name / "world.mp4") for name in ("none", "0,3,0")}
    both = frames_of(videos / "side_by_side.mp4")
    assert [len(x) for x in (*own.values(), both)] == [10, 10, 10]
    middle, n_frames = both.shape[2] // 2, len(frames_of(videos / "side_by_side.gif"))
    assert n_frames == 10 and not list(videos.glob("*/agent_*"))
    small = videos / "side_by_side.webp"
    with Image.open(small) as film_of_it:
        assert film_of_it.n_frames == 10 and small.stat().st_size < 1.5e6
    halves = {"none": both[:, :, : middle - 2], "0,3,0": both[:, :, middle + 2 :]}
    top = 0
    for name, half in halves.items():
        shown = np.stack([fitted(frame.astype(np.uint8), half.shape[2]).astype(int) for frame in own[name]])
        height = shown.shape[1]
        misses = [np.abs(half[0, y : y + height] - shown[0]).mean() for y in range(half.shape[1] - height)]
        top = int(np.argmin(misses))
        assert np.abs(half[:, top : top + height] - shown).mean() < 6, "video compression aside it is the same world"
        assert (half[:, :top] < 128).any((1, 2, 3)).all(), "words above it"
        assert (half[:, top + height :] < 128).any((1, 2, 3)).all(), "and below it what became of the agents"
    assert np.abs(own["none"][0] - own["0,3,0"][0]).mean() < 1, "the same game begins"
    assert (np.abs(own["none"][-1] - own["0,3,0"][-1]).max(-1) > 100).any(), "and becomes another"
    for name, i in (("middle", 5), ("last", 9)):
        assert np.abs(frames_of(videos / f"side_by_side_{name}.png") - both[i]).mean() < 4
    for name in ("none", "0,3,0"):
        accumulator = EventAccumulator(str(tmp_path / name))
        accumulator.Reload()
        assert "evaluation/episode" in accumulator.Tags()["images"]


def test_a_shorter_film_stands_still_at_its_end(tmp_path):
    parts = build_parts(compose(*CLEANUP), None, play_only=True)
    made = [
        film(parts, parts.agents[0].policy, Seeds(0), steps, False, OBJECTIVES["mean"], 0.0, compared=True)
        for steps in (2, 6)
    ]
    assert [len(each) for each in made] == [3, 7]
    last = made[0].recorder.frames["world"][-1].copy()
    for each in made:
        each.hold(7)
    assert [len(each.moments) for each in made] == [7, 7] and made[0].moments[2:] == [made[0].moments[2]] * 5
    assert all((frame == last).all() for frame in made[0].recorder.frames["world"][2:])
    assert [moment.step for moment in made[0].moments] == [0, 1, 2, 2, 2, 2, 2]
    assert next(iter(made[0].moments[2].counts)) == "apples eaten" and set(made[0].moments[2].levels) == set(LEVELS)
    sentences = ["short", "a sentence that is long enough to need more than one row of words" * 2]
    files = save_side_by_side(made, ["one", "two"], sentences, tmp_path, 10)
    assert len(frames_of(files[0])) == 7


def test_what_is_told_of_the_last_step_is_the_episode():
    parts = build_parts(compose(*CLEANUP, "env.mechanism.clean_reward=-0.5"), None, play_only=True)
    objective = OBJECTIVES["sustainability"]
    collector, sums = Collector(parts.env, parts.agents[0].policy, "cpu"), SoFar(parts.env.spec, objective, 0.5)
    parts.env.set_mechanism(np.array([1.0, 2, 1]))
    collector.reset(0)
    ended = []
    while not ended:
        rollout = collector.collect(1, Seeds(0).torch("a"), learn=False, restart=False)
        sums.add(rollout)
        ended = [episode for episode in rollout.episodes if episode.game == 0]
    told = sums.told()
    assert told.step == 12 and told.objective == pytest.approx(episode_welfare(ended, objective, 0.5)[0])
    assert told.payoffs == pytest.approx(ended[0].base_returns)
    paid = ended[0].summaries["incentives_paid"]
    assert told.counts["incentives paid"] == pytest.approx(paid) and paid > 10


# What is said


def entry(name: str, objective: list[float], **columns: list[float]) -> dict:
    from llmrl.evaluation.result_files import table

    measured = {"objective (mean)": objective, "length": [5.0] * len(objective), **columns}
    arrays = {key: np.array(values, dtype=float) for key, values in measured.items()}
    return {"name": name, "words": name, "table": table(arrays, True), "per_episode": measured}


def compared(*entries: dict, paired: bool = True, independent: bool = True) -> tuple[list[dict], list[str]]:
    found = differences(entries, paired, independent)
    return found, sentences(entries, found, "objective (mean)")


def test_a_difference_is_said_with_its_interval():
    none, best = entry("none", [1.0, 2, 3, 2, 2]), entry("best", [81.0, 90, 83, 86, 85])
    _, [said] = compared(none, best)
    assert said.startswith("With the best mechanism the objective is 85.0, without 2.0: a difference of 83.0 ± ")
    assert said.endswith(").") and "(95 % 78.9 … 87.1" in said
    _, [turned] = compared(best, none)
    assert turned == said, "none is what others are compared with, wherever it stands"
    _, [other] = compared(best, entry("0,3,0", [1.0, 2, 3, 2, 2]))
    assert other.startswith("With 0,3,0 the objective is 2.0, with the best mechanism 85.0: a difference of -83.0")


def test_chance_is_called_chance():
    _, [said] = compared(entry("none", [1.0, 2, 3, 4, 2.5]), entry("best", [2.0, 1, 4, 3, 2.5]))
    assert "without 2.50: no difference beyond chance (0.00 ± " in said
    _, [said] = compared(entry("none", [1.0]), entry("best", [4.0]))
    assert said.endswith("a difference of 3.00; these episodes cannot tell how far to trust it.")
    _, [said] = compared(entry("none", [1.0, 1]), entry("best", [4.0, 5]), independent=False)
    assert said.endswith("cannot tell how far to trust it.")


def test_pairs_tell_what_means_do_not():
    rng = np.random.default_rng(0)
    luck = rng.normal(0, 10, 30)
    none, best = entry("none", luck.tolist()), entry("best", (luck + 1 + rng.normal(0, 0.1, 30)).tolist())
    assert "a difference of 1.0" in compared(none, best)[1][0]
    assert "no difference beyond chance" in compared(none, best, paired=False)[1][0]


def test_episodes_of_which_a_metric_says_nothing_are_left_out():
    nan = float("nan")
    none = entry("none", [1.0, 2, 3], eaten=[nan, 1, 2], never=[nan] * 3)
    best = entry("best", [2.0, 3, 4], eaten=[5, nan, 4], never=[1.0, 2, 3])
    paired, unpaired = compared(none, best)[0][0]["table"], compared(none, best, paired=False)[0][0]["table"]
    assert paired["eaten"]["mean"] == 2 and unpaired["eaten"]["mean"] == 3
    assert "never" not in paired
    shown = cells([none, best], compared(none, best)[0], {"never": "never"})
    assert shown == [["never", "-", "2.00", "-"]]


def test_rows_of_the_table_are_those_of_the_game(cleanup):
    spec = build_parts(compose(*CLEANUP), None, play_only=True).env.spec
    known = {name: [1.0, 2, 1, 2, 1] for name in ("apples_eaten", "incentives_paid", "welfare/spending")}
    entries = [
        entry("none", [1.0, 2, 1, 2, 1], **known | {"welfare/gini": [0.0, 1, 0, 1, 0], "dirt": [3.0, 4, 3, 4, 3.5]}),
        entry("best", [2.0, 3, 2, 3, 2], **known | {"welfare/gini": [0.0, 1, 0, 1, 0], "dirt": [4.0, 7, 4, 7, 5.5]}),
    ]
    named = labels(entries, spec)
    assert named["apples_eaten"] == "apples eaten" and "incentives_paid" in named
    assert named["dirt"] == "dirt, at the end"
    assert "welfare/spending" not in named, "what the mechanism pays is there already"
    assert "length" not in named and "welfare/gini" not in named and "cells_cleaned" not in named
    rows = cells(entries, differences(entries, True, True), named)
    [dirt] = [row for row in rows if row[0] == "dirt, at the end"]
    assert dirt[:3] == ["dirt, at the end", "3.50", "5.50"] and dirt[3].startswith("+2.00  (")
    assert next(iter(named)) == "objective (mean)" and reference(["best", "none"]) == "none"
