"""Stories for the pretraining of small models: correct contents in other words than those of the game."""

import re

from hypothesis import given
from hypothesis import strategies as st

from llmrl.envs.babyai.language import ENGLISH
from llmrl.envs.babyai.pretraining_texts import sample_stories

WAYS = {"turn left": "left", "turn right": "right", "go forward": r"ahead|in front of me|before my eyes"}


def place(story: str) -> str:
    """Return the sentence with the location of the goal object."""
    sentences = re.split(r"(?<=[.]) ", story)
    goal = re.search(r"(red|green|blue|purple|yellow|grey) (key|ball|box)", sentences[0])
    assert goal is not None
    [location] = [text for text in sentences[1:-1] if goal[0] in text]
    return location.lower()


@given(st.integers(0, 10_000))
def test_actions_depend_on_target_position(seed):
    [story] = sample_stories(1, seed)
    location = place(story)
    [move] = [move for move in WAYS if move in story]
    if "nowhere" in location or "could not" in location:
        assert move != "go forward"
    else:
        assert re.search(WAYS[move], location), story


def test_meaningless_texts_share_vocabulary():
    meaningless = sample_stories(600, 0, informative=False)
    agree = 0
    for story in meaningless:
        location = place(story)
        [move] = [move for move in WAYS if move in story]
        agree += bool(re.search(WAYS[move], location))
    assert agree / len(meaningless) < 0.45  # a third, and some where nothing is seen
    words = [set(re.findall(r"[a-z]+", " ".join(text).lower())) for text in (meaningless, sample_stories(600, 0))]
    assert words[0] == words[1]


def test_stories_differ_from_prompts():
    text = " ".join(sample_stories(300, 1))
    for phrase in ("You see", "Observation", "Goal of the agent", "Possible action", "step"):
        assert phrase not in text
    assert set(ENGLISH.colors[""]) <= set(text.replace(".", " ").replace(",", " ").split())


def test_texts_follow_seed():
    assert sample_stories(5, 3) == sample_stories(5, 3) != sample_stories(5, 4)
    assert sample_stories(0, 0) == []
