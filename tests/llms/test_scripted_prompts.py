"""Every shipped prompt is answered by a rule; a prompt that is reworded is noticed and never answered by chance."""

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

from llmrl.agents.llm_player import make_player, scripted_player
from llmrl.core.errors import LLMError
from llmrl.core.seeding import Seeds
from llmrl.llms import schema_draw
from llmrl.llms.client import ChatClient
from llmrl.llms.scripted import RULES, ScriptedChat, UnreadPromptError
from llmrl.principals import scripted_search
from llmrl.principals.llm_factory import llm_principal
from llmrl.teachers.domain_registry import find_domain
from llmrl.teachers.llm_planner import LLMPlanner
from models import ask, scripted
from particle_games import SCENARIOS, domain_of, random_world, told
from policies import returned, searcher
from societies import CLEANUP, ESCAPE_ROOM, HARVEST, TAX_ECONOMY, outcome, toy

SOCIETIES = {
    "cleanup": CLEANUP,
    "harvest": HARVEST,
    "escape_room": ESCAPE_ROOM,
    "tax_economy": TAX_ECONOMY,
    "generic": toy(),
}
ROOMS = {
    "simple_doorkey": "Agent sees <key>, holds <nothing>.",
    "lava_doorkey": "Agent sees <door>, <lava>, holds <key>.",
    "colored_doorkey": "Agent sees <red key>, <blue door>, holds <blue key>.",
    "two_door": "Agent sees <door1>, <door2>, holds <nothing>.",
    "unlock_pickup": "Agent sees <open door>, <box>, holds <key>.",
}
PLAYED = {"blackjack": "Blackjack-v1", "cartpole": "CartPole-v1", "mountain_car": "MountainCar-v0"}
PLAYED |= {"cliff_walking": "CliffWalking-v1"}


class Recorder(ScriptedChat):
    """The scripted model; keeps what it is asked, and what it says."""

    def __init__(self):
        super().__init__(Seeds(0))
        self.asked, self.said = [], []

    def complete(self, requests):
        replies = super().complete(requests)
        self.asked += requests
        self.said += [reply.text for reply in replies]
        return replies


def govern(society, model, prompt=None):
    """Three generations of three proposals, in each context."""
    principal = llm_principal(society, model, prompt=prompt)
    for _, context in itertools.product(range(3), range(len(society.contexts)) if society.contexts else [None]):
        principal.tell([outcome(society, vector, context) for vector in principal.ask(context, 3)])


def search(prompt, model, **settings):
    """Three iterations of three proposals."""
    principal = searcher(llm=model, prompt=prompt, step_size=0.5, optimum=10.0, **settings)
    for _ in range(3):
        principal.tell([returned(vector, float(vector.sum())) for vector in principal.ask(None, 3)])


def play(text, model):
    """Two short episodes, with a lesson from the first."""
    env = gymnasium.make(PLAYED[text], max_episode_steps=4)
    player = make_player(env, text, model, lessons=1)
    for seed in range(2):
        observation, info = env.reset(seed=seed)
        player.reset()
        over = False
        while not over:
            observation, reward, terminated, truncated, info = env.step(player.act(observation, info))
            player.on_step(reward, terminated, truncated)
            over = terminated or truncated


def plan_in_particles(scenario, model, prompt=None):
    """What all agents would do in some states."""
    sentences = sorted(set(itertools.chain(*told(scenario, random_world(scenario, 5, 20)))))
    LLMPlanner(domain_of(scenario), model, samples=1, prompt=prompt).plans(sentences)


KINDS = {
    **{f"principal/{name}": (govern, society) for name, society in SOCIETIES.items()},
    "principal/escape_room_explained": (partial(govern, prompt="escape_room_explained"), ESCAPE_ROOM),
    **{f"search/{name}": (search, name) for name in ("numeric", "described")},
    **{
        f"teacher/{name}": (lambda name, llm: LLMPlanner(find_domain(name), llm).plans([ROOMS[name]]), name)
        for name in ROOMS
    },
    **{f"teacher/{domain_of(scenario).name}": (plan_in_particles, scenario) for scenario in SCENARIOS},
    **{
        f"teacher/{name}_rule": (
            lambda scenario, llm: plan_in_particles(scenario, llm, f"{domain_of(scenario).name}_rule"),
            next(scenario for scenario in SCENARIOS if domain_of(scenario).name == name),
        )
        for name in ("simple_spread", "simple_tag")
    },
    "teacher/published": (
        lambda name, llm: LLMPlanner(
            find_domain(name, parity=True), llm, prompt="published", reading="published"
        ).plans([ROOMS[name]]),
        "colored_doorkey",
    ),
    **{f"player/system of {text}": (play, text) for text in PLAYED},
}
"""What a prompt is rendered and asked by, and of what."""


@pytest.fixture
def drawn(monkeypatch):
    """Texts of questions that were answered by a draw."""
    texts, real = [], schema_draw.reply
    monkeypatch.setattr(schema_draw, "reply", lambda schema, text: texts.append(text) or real(schema, text))
    return texts


@pytest.mark.parametrize("name", KINDS)
def test_a_rule_answers_every_shipped_prompt(name, drawn, caplog):
    play_or_ask, about = KINDS[name]
    model = Recorder()
    play_or_ask(about, ChatClient(model))
    names = {request.prompt for request in model.asked}
    assert names == {name.partition(" of ")[0]} | ({"player/lesson"} if name.startswith("player") else set())
    assert not drawn and all("By rule, not by thought" in text for text in model.said)
    chance = ("none of the rules applies", "any action that is legal", "the centre of the ranges")
    assert not [text for text in model.said if any(phrase in text for phrase in chance)]
    assert [r.getMessage() for r in caplog.records if "scripted" in r.getMessage()] == [
        "llm=scripted replies by fixed rules: it is not a language model, and neither are its results"
    ]


def test_every_shipped_prompt_is_tried():
    """Whoever adds a prompt beside the rules adds it above; `check` is tried by tests/cli/test_llm_cli.py and
    `control` by tests/experiment/test_model_trial.py."""
    families = {"prompts": "", "search_prompts": "search"}
    shipped = set()
    for module in {importlib.import_module(name) for purpose, name in RULES.items() if purpose != "control"}:
        for folder, family in families.items():
            files = sorted((Path(module.__file__).parent / folder).glob("[!_]*.j2"))
            named = family or {"principals": "principal", "teachers": "teacher"}.get(Path(module.__file__).parent.name)
            shipped |= {f"{named or 'player'}/{file.stem}" for file in files}
    assert shipped == {name.partition(" of ")[0] for name in KINDS} | {"player/lesson"}


def test_rules_stand_beside_the_prompts_that_they_read():
    for purpose, name in RULES.items():
        module = importlib.import_module(name)
        assert callable(module.reply), purpose
        if purpose not in ("check", "control"):  # whose replies nobody asks for again
            assert list(Path(module.__file__).parent.glob("*prompts/_repair.j2")), purpose


# Rewording


def question(name):
    """The last question of a prompt, asked as an experiment asks it."""
    play_or_ask, about = KINDS[name if name in KINDS else "player/system of blackjack"]
    model = Recorder()
    play_or_ask(about, ChatClient(model))
    return [request for request in model.asked if request.prompt == name][-1]


REWORDED = {
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
@pytest.mark.parametrize(("name", "phrase"), [(name, phrase) for name, all_ in REWORDED.items() for phrase in all_])
def test_a_reworded_phrase_is_noticed(name, phrase, drawn, caplog):
    """The rule names the part; the reply is a draw, which its texts and the log call so."""
    request = question(name)
    messages = tuple(
        {**each, "content": re.sub(phrase, "(put otherwise)", each["content"], flags=re.MULTILINE)}
        for each in request.messages
    )
    assert messages != request.messages
    rule = importlib.import_module(RULES[request.purpose])
    with pytest.raises(UnreadPromptError):
        rule.reply(messages, 0, print)
    drawn.clear()
    caplog.clear()
    [reply, _] = scripted().chat([replace(request, messages=messages)] * 2)
    assert len(drawn) == 2 and "By rule" not in reply.text
    said = [r.getMessage() for r in caplog.records if "does not find in" in r.getMessage()]
    assert len(said) == 1 and request.prompt in said[0] and "drawn at random" in said[0]


def test_without_a_schema_a_reworded_prompt_is_refused():
    """As a search that asks for lines is."""
    text = searcher(reply="lines").question(None).text.replace("Tried so far", "Before")
    with pytest.raises(LLMError, match=r"search/described what its rules read there: how many lists of numbers were"):
        scripted().chat([ask(text, purpose="search", prompt="search/described")])


def test_a_game_without_a_rule_is_told_of_once(caplog):
    """A game without a rule."""
    env = gymnasium.make("FrozenLake-v1", max_episode_steps=4)
    with caplog.at_level(logging.WARNING):
        player = make_player(env, "frozen_lake", scripted())
        for seed in range(2):
            player.reset()
            player.act(*env.reset(seed=seed))
    said = [r.getMessage() for r in caplog.records if "no rule for this game" in r.getMessage()]
    assert said == [
        "llm=scripted, the prompt player/system: there is no rule for this game, and the player takes any legal action"
    ]


def test_whole_numbers_keep_to_their_bounds():
    """A player's numbers are read with their ranges, whole ones too."""
    system = "# What you can do\n\nAn action consists of these numbers:\n- gear: (a whole number from 3 to 7)\n# How\n"
    values = set()
    for i in range(30):
        told_now = [{"role": "system", "content": system}, {"role": "user", "content": f'{{"observation": {i}}}'}]
        values.add(json.loads(scripted_player.reply(told_now))["action"]["gear"])
    assert values <= set(range(3, 8)) and len(values) > 2


def test_hints_change_what_is_searched():
    """Of the parts that nobody misses where they are not, the one that matters is read."""

    def first_move(step_size):
        question = told_searcher(step_size).question(None).text
        return json.loads(scripted_search.reply([{"role": "user", "content": question}]))["params"]

    def told_searcher(step_size):
        principal = searcher(step_size=step_size)
        for i in range(10):
            principal.tell([returned(np.full(8, i / 10), float(i))])
        return principal

    best = np.full(8, 0.9)
    assert np.abs(np.array(first_move(0.001)) - best).max() < 0.1 < np.abs(np.array(first_move(2.0)) - best).max()
