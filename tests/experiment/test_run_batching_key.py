"""Which runs may share a process: by the shape of what they compute, and not by what they try."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.experiment.experiment import Experiment
from llmrl.experiment.run_batching_key import LEARNING_NUMBERS, Alone, row_gb, row_key, why_alone

ROOM = ("env=escape_room", "principal=ucb", "design.references=0")


@functools.cache
def config(*overrides):
    return Experiment.compose(*overrides).config


def key(*overrides):
    return row_key(config(*ROOM, *overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ("seed=3",),
        ("principal=llm", "llm=scripted"),
        ("principal=random", "seed=1"),
        ("principal=gp",),
        ("name=elsewhere",),
        ("agent.ppo.gamma=0.9", "agent.ppo.learning_rate=1e-4", "agent.ppo.clip=0.1"),
        ("design.steps=3", "design.spending_cost=0.5", "design.objective=minimum"),
        ("checkpoint_seconds=1", "rerun=true", "dry_run=true"),
    ],
)
def test_what_rows_differ_in(overrides):
    assert key(*overrides) == key() is not None


@pytest.mark.parametrize(
    "overrides",
    [
        ("env.n_envs=64",),
        ("env.horizon=6",),
        ("env.max_incentive=4",),
        ("env.show_mechanism=true",),
        ("agent.core_hidden=[32]",),
        ("agent.share_parameters=false",),
        ("agent.ppo.epochs=2",),
        ("agent.ppo.minibatch_size=32",),
        ("agent.ppo.clip=null",),
        ("agent.ppo.final_learning_rate=1e-4",),
        ("design.candidates=2",),
        ("design.replicates=2",),
        ("design.adapt_rounds=7",),
        ("hardware=local",),
        ("private=false",),
        ("loggers=[jsonl]",),
    ],
)
def test_what_shapes_and_processes_differ_in(overrides):
    assert key(*overrides) is not None and key(*overrides) != key()


def test_variables_of_the_process_are_equal():
    same = config(*ROOM)
    assert row_key(same, {"A": "1"}) == row_key(same, {"A": "1"})
    assert len({row_key(same), row_key(same, {"A": "1"}), row_key(same, {"A": "2"})}) == 3


def test_every_learning_number_is_an_option():
    assert set(LEARNING_NUMBERS) <= set(config(*ROOM)["agent"]["ppo"])


NUMBERS = st.dictionaries(st.sampled_from(LEARNING_NUMBERS), st.floats(1e-6, 1.0), max_size=6)


@settings(max_examples=30)
@given(NUMBERS, NUMBERS)
def test_numbers_of_learning_are_equal_to_numbers(one, other):
    """And null to null: which of them are numbers says what is computed, how large they are does not."""
    base = config(*ROOM)

    def of(numbers):
        numbers = {name: max(1, round(x)) if name == "decay_updates" else x for name, x in numbers.items()}
        return {**base, "agent": {**base["agent"], "ppo": {**base["agent"]["ppo"], **numbers}}}

    nulls = [{name for name, x in of(each)["agent"]["ppo"].items() if x is None} for each in (one, other)]
    assert (row_key(of(one)) == row_key(of(other))) == (nulls[0] == nulls[1])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("principal=none", "agent=random"), Alone.LOOP),
        (("principal=none", "agent.ppo.target_kl=0.1", "hardware.threads=2"), Alone.THREADS),
        (("principal=metagrad",), Alone.METAGRAD),
        (("agent=random",), Alone.AGENT),
        (("agent.memory=8",), Alone.MEMORY),
        (("agent.ppo.target_kl=0.1",), Alone.KL),
        (("agent.ppo.scale_rewards=true",), Alone.SCALED),
        (("env=cleanup", "env.engine=meltingpot"), Alone.GAMES),
        (("principal=llm", "llm=local_chat"), Alone.MODEL),
        (("hardware.device=cuda",), Alone.GPU),
        (("hardware.threads=2",), Alone.THREADS),
    ],
)
def test_why_a_run_is_alone(overrides, reason):
    found = config(*ROOM, *overrides)
    assert why_alone(found) is reason and row_key(found) is None


LEARNS, SEARCHES = ("env=escape_room", "agent=ppo"), ("env=mountain_car_continuous", "agent=linear", "principal=random")


@pytest.mark.parametrize(
    ("overrides", "other"),
    [
        (("env=escape_room", "agent.memory=8"), LEARNS),
        (("env=simple_doorkey", "agent.ppo.target_kl=0.1", "seed=3"), LEARNS),
        (("env=cartpole", "agent=linear", "principal=cem"), SEARCHES),
    ],
)
def test_runs_that_play_by_themselves_share_where_that_is_asked_for(overrides, other):
    """Whatever they play: nothing of it is computed as one batch."""
    found = config(*overrides)
    assert why_alone(found) is Alone.OWN and row_gb(found) is None
    assert row_key(found) == row_key(config(*other)) is not None


def test_searches_that_wait_for_a_language_model_wait_at_the_same_time():
    found = config("env=cartpole", "agent=linear", "principal=llm", "llm=scripted")
    assert why_alone(found) is None and row_key(found) is not None


def test_a_gpu_that_is_taken_where_there_is_one(monkeypatch):
    found = config(*ROOM, "hardware=local")
    for visible, reason in (("", None), ("0", Alone.GPU)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert why_alone(found) is reason


def test_seeds_of_a_society_that_learned_before_share():
    """Each seed begins with weights of its own; their shape is the same."""
    society = [config("env=cleanup", "principal=ucb", "design.references=0", f"seed={seed}") for seed in (0, 1)]
    assert society[0]["agent"]["init_from"] != society[1]["agent"]["init_from"]
    assert row_key(society[0]) == row_key(society[1]) is not None
    anew = config("env=cleanup", "principal=ucb", "design.references=0", "agent.init_from=null")
    assert row_key(anew) not in (None, row_key(society[0]))


def test_memory_of_a_row_grows_with_its_games():
    """Three times the rollout, in gigabytes."""
    few, many = (row_gb(config(*ROOM, f"env.n_envs={n}")) for n in (10, 1010))
    channels = 4 * (5 * 5 + 3)
    assert many - few == pytest.approx(3 * 1000 * 5 * 5 * (channels + 32) / 1e9)
