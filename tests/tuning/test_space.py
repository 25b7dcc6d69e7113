"""The search space: from Hydra's grammar, to Optuna, and back to overrides that Hydra reads."""

import pytest
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from hydra_plugins.llmrl_optuna._grammar import parse_search_request
from llmrl.core.errors import ConfigError
from llmrl.core.hydra_composition import patch_option_listing
from llmrl.tuning.space import format_overrides, format_value


@pytest.fixture(scope="module")
def loader():
    patch_option_listing()  # as every command does
    with initialize_config_module("llmrl.conf", version_base="1.3"):
        yield GlobalHydra.instance().config_loader()


@pytest.mark.parametrize(
    ("sweep", "dimension"),
    [
        ("interval(0,1)", FloatDistribution(0, 1)),
        ("tag(log,interval(1e-5,1e-2))", FloatDistribution(1e-5, 1e-2, log=True)),
        ("int(interval(1,8))", IntDistribution(1, 8)),
        ("range(1,8)", IntDistribution(1, 7, step=1)),
        ("range(8,1,-2)", IntDistribution(2, 8, step=2)),
        ("shuffle(range(1,8))", IntDistribution(1, 7, step=1)),
        ("tag(log,range(1,100))", IntDistribution(1, 99, log=True)),
        ("range(0,1,0.25)", FloatDistribution(0, 0.75, step=0.25)),
        ("none,core", CategoricalDistribution(("none", "core"))),
        ("64,null,true", CategoricalDistribution(("64", "null", "True"))),
        ("shuffle(c,a,b,a)", CategoricalDistribution(("c", "a", "b"))),
        ("[64],[64,64],[]", CategoricalDistribution(("[64]", "[64,64]", "[]"))),
        ("'a b','x=1,y',\"it's\"", CategoricalDistribution(("'a b'", "'x=1,y'", '"it\'s"'))),
    ],
)
def test_sweep_types_become_dimensions(loader, sweep, dimension):
    sought = parse_search_request([f"agent.x={sweep}", "env=escape_room"], loader)
    assert sought.space == {"agent.x": dimension}
    assert (sought.fixed, sought.seeds) == (["env=escape_room"], None)
    assert format_overrides(
        sought.space,
        {"agent.x": dimension.choices[0] if isinstance(dimension, CategoricalDistribution) else 1},
    )


def test_seeds_are_excluded_from_space(loader):
    arguments = [
        "prompts='a b/c=d'",
        "env=escape_room",
        "+env.x=[1,2]",
        "~design",
        "principal=glob(*ing)",
        "seed=2,0,2",
    ]
    sought = parse_search_request([*arguments, "principal=ucb,egreedy"], loader)
    assert sought.seeds == ["2", "0"]
    assert sought.fixed == arguments[:4]
    assert sought.space == {"principal": CategoricalDistribution(("ucb", "egreedy"))}  # the last of several counts
    assert parse_search_request(["seed=range(0,3)", "agent.x=1,2"], loader).seeds == ["0", "1", "2"]
    assert parse_search_request(["principal=glob(*)", "seed=4"], loader).space["principal"].choices[:2] == (
        "cem",
        "cmaes",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env=escape_room", "seed=0,1"], "than seed"),
        (["seed=interval(0,9)", "agent.x=1,2"], "seed=0,1,2"),
        (["principal=interval(0,1)"], "principal=cem,cmaes"),
        (["agent.x=tag(log,interval(0,1))"], "agent.x .*`low > 0`"),
        (["agent.x=tag(log,range(1,100,10))"], "agent.x .*`log`"),
        (["agent.x=tag(log,choice(1,2))"], "agent.x .*log$"),
        (["agent.x=tag(lin,interval(1,2))"], "agent.x .* lin; .*log$"),
        (["agent.x=interval(2,1)"], "2 to 1: `low <= high`"),
        (["agent.x=interval(0,inf)"], "agent.x .* inf;"),
        (["agent.x=range(3,3)"], r"agent.x=range\(3,3,1\)"),
        (["agent.x=range(1,3,0)"], r"agent.x=range\(1,3,0\)"),
    ],
)
def test_unsupported_sweeps_raise(loader, arguments, message):
    with pytest.raises(ConfigError, match=message):
        parse_search_request(arguments, loader)


finite = st.floats(allow_nan=False, allow_infinity=False, width=64)


@given(bounds=st.tuples(finite, finite), share=st.floats(0, 1))
def test_bounds_survive_hydra_parsing(bounds, share):
    low, high = min(bounds), max(bounds)
    value = min(max(low * (1 - share) + high * share, low), high)
    text = format_value(FloatDistribution(low, high), value)
    parsed = OverridesParser.create().parse_override(f"agent.x={text}").value()
    assert isinstance(parsed, int | float) and low <= parsed <= high
    assert parsed == pytest.approx(value, rel=1e-5)


text = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]))
plain = st.none() | st.booleans() | st.integers() | finite | text


def to_override(value):
    """Return a value as a careful user types it, with texts in quotes."""
    if isinstance(value, list):
        return f"[{','.join(to_override(item) for item in value)}]"
    if isinstance(value, str):
        return QuotedString(value, Quote.single).with_quotes()
    return "null" if value is None else str(value)


@given(values=st.lists(plain | st.lists(plain, max_size=3), min_size=2, max_size=4))
def test_choices_round_trip(values):
    space = parse_search_request([f"agent.x={','.join(to_override(value) for value in values)}"], None).space
    options = space["agent.x"].choices
    jobs = [format_overrides(space, {"agent.x": option}) for option in options]
    parsed = [OverridesParser.create().parse_override(override) for (override,) in jobs]
    assert [repr(override.value()) for override in parsed] == list(dict.fromkeys(repr(value) for value in values))
    assert not any(override.is_sweep_override() for override in parsed)
