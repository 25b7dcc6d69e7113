"""Stories for small models: they say what they are to say, in other words than the game's."""

import re

from hypothesis import given
from hypothesis import strategies as st

from llmrl.envs.babyai.language import ENGLISH
from llmrl.envs.babyai.pretraining_texts import stories

WAYS = {"turn left": "left", "turn right": "right", "go forward": r"ahead|in front of me|before my eyes"}


def place(story: str) -> str:
    """The sentence that says where the thing is that is looked for."""
    sentences = re.split(r"(?<=[.]) ", story)
    goal = re.search(r"(red|green|blue|purple|yellow|grey) (key|ball|box)", sentences[0])
    assert goal is not None
    [where] = [each for each in sentences[1:-1] if goal[0] in each]
    return where.lower()


@given(st.integers(0, 10_000))
def test_what_is_done_follows_from_where_the_wanted_thing_is(seed):
    [story] = stories(1, seed)
    where = place(story)
    [move] = [move for move in WAYS if move in story]
    if "nowhere" in where or "could not" in where:
        assert move != "go forward"
    else:
        assert re.search(WAYS[move], where), story


def test_meaningless_ones_have_the_same_words_and_no_meaning():
    told = stories(600, 0, informative=False)
    agree = 0
    for story in told:
        where = place(story)
        [move] = [move for move in WAYS if move in story]
        agree += bool(re.search(WAYS[move], where))
    assert agree / len(told) < 0.45  # a third, and some where nothing is seen
    words = [set(re.findall(r"[a-z]+", " ".join(each).lower())) for each in (told, stories(600, 0))]
    assert words[0] == words[1]


def test_no_story_has_the_form_of_a_prompt():
    text = " ".join(stories(300, 1))
    for phrase in ("You see", "Observation", "Goal of the agent", "Possible action", "step"):
        assert phrase not in text
    assert set(ENGLISH.colours[""]) <= set(text.replace(".", " ").replace(",", " ").split())


def test_they_are_a_function_of_their_seed():
    assert stories(5, 3) == stories(5, 3) != stories(5, 4)
    assert stories(0, 0) == []
