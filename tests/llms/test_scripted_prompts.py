"""Rules of the scripted model for all shipped prompts, and detection of changed prompts."""

import importlib
import itertools
import json
import logging
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from llmrl.agents.llm_player import scripted_player
from llmrl.agents.llm_player.gym_player import make_player
from llmrl.core.errors import LLMError
from llmrl.core.seeding import Seeds
from llmrl.llms import scripted as scripted_chat
from llmrl.llms.by_name import build_model
from llmrl.llms.client import ChatClient
from llmrl.llms.scripted import RULE_MODULES, ScriptedChat, UnreadPromptError
from llmrl.principals import scripted_search
from llmrl.teachers.teacher_factory import find_domain
from models import make_request, make_scripted_client
from particle_games import SCENARIOS, make_domain, observe_sentences, sample_world
from policies import make_policy_outcome, make_searcher
from shipped import build_llm_planner, build_llm_principal
from societies import CLEANUP, ESCAPE_ROOM, HARVEST, TAX_ECONOMY, make_outcome, make_toy_spec
from some import mark_long_except_every

SOCIETIES = {
    "cleanup": CLEANUP,
    "harvest": HARVEST,
    "escape_room": ESCAPE_ROOM,
    "tax_economy": TAX_ECONOMY,
    "generic": make_toy_spec(),
}
ROOMS = {
    "simple_doorkey": "Agent sees <key>, holds <nothing>.",
    "lava_doorkey": "Agent sees <door>, <lava>, holds <key>.",
    "colored_doorkey": "Agent sees <red key>, <blue door>, holds <blue key>.",
    "two_door": "Agent sees <door1>, <door2>, holds <nothing>.",
    "unlock_pickup": "Agent sees <open door>, <box>, holds <key>.",
}
PLAYABLE = {"blackjack": "Blackjack-v1", "cartpole": "CartPole-v1", "mountain_car": "MountainCar-v0"}
PLAYABLE |= {"cliff_walking": "CliffWalking-v1"}


class Recorder(ScriptedChat):
    """Scripted model that records requests and replies."""

    def __init__(self):
        super().__init__(build_model("scripted").settings, Seeds(0))
        self.asked, self.said = [], []

    def complete(self, requests):
        replies = super().complete(requests)
        self.asked += requests
        self.said += [reply.text for reply in replies]
        return replies


def govern(society, model, prompt=None):
    """Run a principal for three steps of three proposals in each context."""
    principal = build_llm_principal(society, model, prompt=prompt)
    for _, context in itertools.product(range(3), range(len(society.contexts)) if society.contexts else [None]):
        principal.tell([make_outcome(society, vector, context) for vector in principal.ask(context, 3)])


def search(prompt, model, **settings):
    """Run a policy search for three iterations of three proposals."""
    principal = make_searcher(llm=model, prompt=prompt, step_size=0.5, optimum=10.0, **settings)
    for _ in range(3):
        principal.tell([make_policy_outcome(vector, float(vector.sum())) for vector in principal.ask(None, 3)])


def play(text, model):
    """Play two short episodes with a lesson from the first one."""
    env = gymnasium.make(PLAYABLE[text], max_episode_steps=4)
    player = make_player(env, text, model, lessons=1)
    for seed in range(2):
        observation, info = env.reset(seed=seed)
        player.reset()
        done = False
        while not done:
            observation, reward, terminated, truncated, info = env.step(player.act(observation, info))
            player.on_step(reward, terminated, truncated)
            done = terminated or truncated


def plan_in_particles(scenario, model, prompt=None):
    """Request plans of all agents in random states."""
    sentences = sorted(set(itertools.chain(*observe_sentences(scenario, sample_world(scenario, 5, 20)))))
    build_llm_planner(make_domain(scenario), model, samples=1, prompt=prompt).plans(sentences)


KINDS = {
    **{f"principal/{name}": (govern, society) for name, society in SOCIETIES.items()},
    "principal/escape_room_explained": (partial(govern, prompt="escape_room_explained"), ESCAPE_ROOM),
    **{f"search/{name}": (search, name) for name in ("numeric", "described")},
    **{
        f"teacher/{name}": (lambda name, llm: build_llm_planner(find_domain(name), llm).plans([ROOMS[name]]), name)
        for name in ROOMS
    },
    **{f"teacher/{make_domain(scenario).name}": (plan_in_particles, scenario) for scenario in SCENARIOS},
    **{
        f"teacher/{name}_rule": (
            lambda scenario, llm: plan_in_particles(scenario, llm, f"{make_domain(scenario).name}_rule"),
            next(scenario for scenario in SCENARIOS if make_domain(scenario).name == name),
        )
        for name in ("simple_spread", "simple_tag")
    },
    "teacher/published": (
        lambda name, llm: build_llm_planner(
            find_domain(name, parity=True), llm, prompt="published", parser="published"
        ).plans([ROOMS[name]]),
        "colored_doorkey",
    ),
    **{f"player/system of {text}": (play, text) for text in PLAYABLE},
}
"""What a prompt is rendered and asked by, and of what."""


@pytest.fixture
def random_draws(monkeypatch):
    """Return the list of questions that were answered randomly."""
    texts, real = [], scripted_chat.draw_reply
    monkeypatch.setattr(scripted_chat, "draw_reply", lambda schema, text: texts.append(text) or real(schema, text))
    return texts


@pytest.mark.parametrize("name", KINDS)
def test_rules_answer_builtin_prompts(name, random_draws, caplog):
    play_or_ask, purpose = KINDS[name]
    model = Recorder()
    play_or_ask(purpose, ChatClient(model))
    names = {request.prompt for request in model.asked}
    assert names == {name.partition(" of ")[0]} | ({"player/lesson"} if name.startswith("player") else set())
    assert not random_draws and all("By rule, not by thought" in text for text in model.said)
    chance = ("none of the rules applies", "any action that is legal", "the center of the ranges")
    assert not [text for text in model.said if any(phrase in text for phrase in chance)]
    assert len([r for r in caplog.records if "llm=scripted" in r.getMessage()]) == 1


def test_builtin_prompts_have_examples():
    """New prompts must be added above; `check` is tested in tests/cli/test_llm_cli.py."""
    families = {"prompts": "", "search_prompts": "search"}
    builtin = set()
    for module in {importlib.import_module(name) for name in RULE_MODULES.values()}:
        for folder, family in families.items():
            files = sorted((Path(module.__file__).parent / folder).glob("[!_]*.j2"))
            family_name = family or {"principals": "principal", "teachers": "teacher"}.get(
                Path(module.__file__).parent.name
            )
            builtin |= {f"{family_name or 'player'}/{file.stem}" for file in files}
    assert builtin == {name.partition(" of ")[0] for name in KINDS} | {"player/lesson"}


def test_rules_live_next_to_prompt_parsers():
    for purpose, name in RULE_MODULES.items():
        module = importlib.import_module(name)
        assert callable(module.reply), purpose
        if purpose not in ("check", "control"):  # whose replies nobody asks for again
            assert list(Path(module.__file__).parent.glob("*prompts/_repair.j2")), purpose


# Rewording


def question(name):
    """Return the last question of a prompt in an experiment."""
    play_or_ask, purpose = KINDS[name if name in KINDS else "player/system of blackjack"]
    model = Recorder()
    play_or_ask(purpose, ChatClient(model))
    return [request for request in model.asked if request.prompt == name][-1]


REPHRASINGS = {
    "principal/cleanup": (
        r"^- (\w+): from ",
        "Proposals made so far:",
        "this is number",
        r"^Generation ",
        " -> payoff ",
    ),
    "principal/escape_room": ("Context of this generation:", "so far in this context:", r"\[context: "),
    "search/numeric": (
        "numbers, called params",
        "Each is a number from",
        "## What was tried, oldest first",
        r"^\[([^\]]*)\] -> ",
        "Tried so far:",
        "this is number",
        "Answer with one JSON object",
    ),
    "teacher/simple_doorkey": (r"^State: ", r"^- ([a-z ]+?)( <object>)?: "),
    "teacher/simple_spread": (r"^State: ", "earest to <landmark"),
    "teacher/simple_tag": ("is hunted|hunter nearest to <",),
    "teacher/simple_reference": ("must go to|says",),
    "player/system": ("# What you can do", r"^- ", "observation"),
    "player/lesson": ("An episode is over.", "How it ended:"),
}
"""What rules look for: each of these, if it is worded otherwise, is missed."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "phrase"),
    mark_long_except_every(3, [(name, phrase) for name, all_ in REPHRASINGS.items() for phrase in all_]),
)
def test_rephrasing_is_detected(name, phrase, random_draws, caplog):
    """The rule names the changed part; the reply is random and labeled as such in its texts and in the log."""
    request = question(name)
    messages = tuple(
        {**message, "content": re.sub(phrase, "(put otherwise)", message["content"], flags=re.MULTILINE)}
        for message in request.messages
    )
    assert messages != request.messages
    rule = importlib.import_module(RULE_MODULES[request.purpose])
    with pytest.raises(UnreadPromptError):
        rule.reply(messages, 0, print)
    random_draws.clear()
    caplog.clear()
    [reply, _] = make_scripted_client().chat([replace(request, messages=messages)] * 2)
    assert len(random_draws) == 2 and "By rule" not in reply.text
    warnings = [r.getMessage() for r in caplog.records if "cannot find a part of" in r.getMessage()]
    assert len(warnings) == 1 and request.prompt in warnings[0] and "random" in warnings[0]


def test_schemaless_rephrasing_raises():
    """Such as a search that requests lines."""
    text = make_searcher(reply="lines").build_prompt(None).text.replace("Tried so far", "Before")
    with pytest.raises(LLMError, match="search/described"):
        make_scripted_client().chat([make_request(text, purpose="search", prompt="search/described")])


def test_game_with_missing_rule_warns_only_at_start(caplog):
    """A game without a rule."""
    env = gymnasium.make("FrozenLake-v1", max_episode_steps=4)
    with caplog.at_level(logging.WARNING):
        player = make_player(env, "frozen_lake", make_scripted_client())
        for seed in range(2):
            player.reset()
            player.act(*env.reset(seed=seed))
    warnings = [r.getMessage() for r in caplog.records if "no rule for this game" in r.getMessage()]
    assert len(warnings) == 1 and "llm=scripted" in warnings[0] and "player/system" in warnings[0]


def test_integers_respect_bounds():
    """Ranges of a player's numbers are parsed, including those of integers."""
    system = "# What you can do\n\nAn action consists of these numbers:\n- gear: (a whole number from 3 to 7)\n# How\n"
    values = set()
    for i in range(30):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": f'{{"observation": {i}}}'}]
        values.add(json.loads(scripted_player.reply(messages))["action"]["gear"])
    assert values <= set(range(3, 8)) and len(values) > 2


def test_hints_change_search():
    """The rule uses the optional parts of a prompt."""

    def first_move(step_size):
        question = make_informed_searcher(step_size).build_prompt(None).text
        return json.loads(scripted_search.reply([{"role": "user", "content": question}]))["params"]

    def make_informed_searcher(step_size):
        principal = make_searcher(step_size=step_size)
        for i in range(10):
            principal.tell([make_policy_outcome(np.full(8, i / 10), float(i))])
        return principal

    best = np.full(8, 0.9)
    assert np.abs(np.array(first_move(0.001)) - best).max() < 0.1 < np.abs(np.array(first_move(2.0)) - best).max()
