"""Declaration of an agent's loop by its class."""

import pytest

from experiments import compose
from llmrl.config.builder import Builder
from llmrl.config.loop_sections import get_declared_loop, get_loop_kind
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options

LOOPS = {
    "learn": ("ppo", "llm_ppo", "drrn"),
    "clone": ("bc",),
    "baseline": ("sb3",),
    "search": ("linear", "mlp_policy", "tabular", "projection"),
    "play": ("random", "teacher", "heuristic", "llm_player", "bot"),
}
NEEDS = {"clone": "imitate", "baseline": "fit", "search": "set_parameters"}
"""What a loop asks of an agent that others need not have."""


class Undeclared:
    """An agent that does not declare its loop."""


class Misdeclared:
    loop = "dream"


def test_agents_declare_supported_loop():
    loops = {name: get_declared_loop(option, Builder()) for name, option in load_options("agent").items()}
    assert all(loops[name] == loop for loop, names in LOOPS.items() for name in names)
    for name, option in load_options("agent").items():
        target = Builder().locate(option["_target_"], "agent")
        has = {method for method in NEEDS.values() if hasattr(target, method)}
        assert has == {NEEDS[loops[name]]} if loops[name] in NEEDS else not has


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "principal", "kind"),
    [
        ("ppo", "none", "learn"),
        ("ppo", "ucb", "design"),
        ("random", "none", "play"),
        ("random", "ucb", "design"),
        ("linear", "none", "play"),
        ("linear", "cmaes", "search"),
        ("sb3", "none", "baseline"),
        ("bc", "none", "clone"),
    ],
)
def test_loop_follows_agent_and_principal(agent, principal, kind):
    assert get_loop_kind(compose(f"agent={agent}", f"principal={principal}")) == kind


@pytest.mark.parametrize(("agent", "name"), [("sb3", "SB3Agent"), ("bc", "CloningAgent")])
def test_independent_learner_has_no_principal(agent, name):
    with pytest.raises(ConfigError, match=rf"{name} .*principal=none"):
        get_loop_kind(compose(f"agent={agent}", "principal=ucb"))


@pytest.mark.parametrize(("name", "phrase"), [("Undeclared", "it declares no loop"), ("Misdeclared", "'dream'")])
def test_rejects_undeclared_loop(name, phrase):
    config = {**compose("agent=random"), "trusted_modules": [__name__], "agent": {"_target_": f"{__name__}.{name}"}}
    with pytest.raises(ConfigError) as error:
        get_loop_kind(config)
    message = str(error.value)
    assert phrase in message and "`loop`" in message and "learn, clone, baseline, search, play" in message
    assert name in message
