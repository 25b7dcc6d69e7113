"""Selection of runs that may share a process, by the shape of their computation."""

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.experiment.batched_runs import (
    PER_RUN_SETTINGS,
    SeparateProcessReason,
    estimate_row_gb,
    find_batch_key,
    find_separate_process_reason,
)
from llmrl.experiment.experiment import Experiment

ROOM = ("env=escape_room", "principal=ucb", "design.references=0")


@functools.cache
def config(*overrides):
    return Experiment.compose(*overrides).config


def key(*overrides):
    return find_batch_key(config(*ROOM, *overrides))


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
def test_row_differences(overrides):
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
def test_shape_and_process_differences(overrides):
    assert key(*overrides) is not None and key(*overrides) != key()


def test_process_variables_must_agree():
    reference = config(*ROOM)
    assert find_batch_key(reference, {"A": "1"}) == find_batch_key(reference, {"A": "1"})
    assert (
        len(
            {
                find_batch_key(reference),
                find_batch_key(reference, {"A": "1"}),
                find_batch_key(reference, {"A": "2"}),
            }
        )
        == 3
    )


def test_learning_numbers_are_options():
    assert set(PER_RUN_SETTINGS) <= set(config(*ROOM)["agent"]["ppo"])


NUMBERS = st.dictionaries(st.sampled_from(PER_RUN_SETTINGS), st.floats(1e-6, 1.0), max_size=6)


@settings(max_examples=30)
@given(NUMBERS, NUMBERS)
def test_learning_numbers_are_shared(first, second):
    """Treat null as different from a number; sizes of numbers do not matter."""
    base = config(*ROOM)

    def with_numbers(numbers):
        numbers = {name: max(1, round(x)) if name == "decay_updates" else x for name, x in numbers.items()}
        return {**base, "agent": {**base["agent"], "ppo": {**base["agent"]["ppo"], **numbers}}}

    nulls = [
        {name for name, x in with_numbers(config_variant)["agent"]["ppo"].items() if x is None}
        for config_variant in (first, second)
    ]
    assert (find_batch_key(with_numbers(first)) == find_batch_key(with_numbers(second))) == (nulls[0] == nulls[1])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("principal=none", "agent=random"), SeparateProcessReason.LOOP),
        (("principal=none", "agent.ppo.target_kl=0.1", "hardware.threads=2"), SeparateProcessReason.THREADS),
        (("principal=metagrad",), SeparateProcessReason.META_GRADIENT),
        (("agent=random",), SeparateProcessReason.AGENT),
        (("agent.memory=8",), SeparateProcessReason.MEMORY),
        (("agent.ppo.target_kl=0.1",), SeparateProcessReason.KL),
        (("agent.ppo.scale_rewards=true",), SeparateProcessReason.SCALED_REWARDS),
        (("env=cleanup", "env.engine=meltingpot"), SeparateProcessReason.GAMES),
        (("principal=llm", "llm=local_chat"), SeparateProcessReason.MODEL),
        (("hardware.device=cuda",), SeparateProcessReason.GPU),
        (("hardware.threads=2",), SeparateProcessReason.THREADS),
    ],
)
def test_reasons_for_separate_run(overrides, reason):
    candidate = config(*ROOM, *overrides)
    assert find_separate_process_reason(candidate) is reason and find_batch_key(candidate) is None


LEARNS, SEARCHES = ("env=escape_room", "agent=ppo"), ("env=mountain_car_continuous", "agent=linear", "principal=random")


@pytest.mark.parametrize(
    ("overrides", "batch_options"),
    [
        (("env=escape_room", "agent.memory=8"), LEARNS),
        (("env=simple_doorkey", "agent.ppo.target_kl=0.1", "seed=3"), LEARNS),
        (("env=cartpole", "agent=linear", "principal=cem"), SEARCHES),
    ],
)
def test_independent_runs_share_batch_on_request(overrides, batch_options):
    """Use any agents: nothing is computed as one batch."""
    candidate = config(*overrides)
    assert (
        find_separate_process_reason(candidate) is SeparateProcessReason.NO_GAIN and estimate_row_gb(candidate) is None
    )
    assert find_batch_key(candidate) == find_batch_key(config(*batch_options)) is not None


def test_language_model_searches_wait_jointly():
    candidate = config("env=cartpole", "agent=linear", "principal=llm", "llm=scripted")
    assert find_separate_process_reason(candidate) is None and find_batch_key(candidate) is not None


def test_available_gpu_is_used(monkeypatch):
    candidate = config(*ROOM, "hardware=local")
    for visible, reason in (("", None), ("0", SeparateProcessReason.GPU)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert find_separate_process_reason(candidate) is reason


def test_pretrained_society_seeds_share_batch():
    """Start each seed with different weights of the same shape."""
    society = [config("env=cleanup", "principal=ucb", "design.references=0", f"seed={seed}") for seed in (0, 1)]
    assert society[0]["agent"]["init_from"] != society[1]["agent"]["init_from"]
    assert find_batch_key(society[0]) == find_batch_key(society[1]) is not None
    anew = config("env=cleanup", "principal=ucb", "design.references=0", "agent.init_from=null")
    assert find_batch_key(anew) not in (None, find_batch_key(society[0]))


def test_row_memory_grows_with_games():
    """Estimate three times the rollout, in gigabytes."""
    small, large = (estimate_row_gb(config(*ROOM, f"env.n_envs={n}")) for n in (10, 1010))
    channels = 4 * (5 * 5 + 3)
    assert large - small == pytest.approx(3 * 1000 * 5 * 5 * (channels + 32) / 1e9)
