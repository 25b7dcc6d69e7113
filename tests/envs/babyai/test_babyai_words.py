"""Languages: missions in French, names of actions, and the closed vocabulary."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import gymnasium
import numpy as np
import pytest

import llmrl.envs.babyai.levels  # noqa: F401
from environments import make_env
from llmrl.core.errors import ConfigError
from llmrl.envs.babyai.language import LANGUAGES, list_action_names, list_vocabulary, split_words, translate_to_french


@pytest.mark.parametrize(
    ("english", "french"),
    [
        ("go to the red ball", "aller à la balle rouge"),
        ("go to a grey box", "aller à une boîte grise"),
        ("go to the purple object", "aller à l'objet violet"),
        ("pick up a key", "attraper une clef"),
        ("open the green door", "ouvrir la porte verte"),
        ("open the door on your left", "ouvrir la porte à ta gauche"),
        ("put the blue key next to a box", "poser la clef bleue à côté d'une boîte"),
        ("put a ball next to the object", "poser une balle à côté de l'objet"),
        ("put a ball next to the yellow door", "poser une balle à côté de la porte jaune"),
        ("pick up a red box, then go to the key", "attraper une boîte rouge, puis aller à la clef"),
        (
            "go to the red ball after you pick up a red box",
            "aller à la balle rouge après avoir attrapé une boîte rouge",
        ),
        (
            "open a door and pick up a key behind you after you go to a ball in front of you and put the box next to a "
            "key",
            "ouvrir une porte et attraper une clef derrière toi après être allé à une balle devant toi et avoir posé "
            "la boîte à côté d'une clef",
        ),
    ],
)
def test_missions_are_translated_to_french(english: str, french: str) -> None:
    assert translate_to_french(english) == french


LEVELS = [name for name in gymnasium.registry if name.startswith("BabyAI-")]


def test_all_level_missions_have_french_words() -> None:
    vocabulary_words = {language: set(list_vocabulary(language)) for language in LANGUAGES}
    for level in LEVELS:
        game = gymnasium.make(level, disable_env_checker=True).unwrapped
        game.gen_obs = dict
        for seed in range(4):
            with redirect_stdout(io.StringIO()):
                game.reset(seed=seed)
            french = translate_to_french(game.mission)
            assert {
                "en": set(split_words(game.mission)) - vocabulary_words["en"],
                "fr": set(split_words(french)) - vocabulary_words["fr"],
            } == {
                "en": set(),
                "fr": set(),
            }, level
            # As many things, and of the same colors, as it says in English.
            for noun, (word, _) in LANGUAGES["fr"].nouns.items():
                assert split_words(french).count(word) == split_words(game.mission).count(noun)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS[::4])
def test_missions_use_closed_vocabulary(level: str) -> None:
    for language in LANGUAGES:
        env = make_env("babyai_text", level=level, language=language, actions="augmented", n_envs=3)
        env.provide(["prompt", "mission"])
        vocabulary_words = set(list_vocabulary(language))
        observation = env.reset(seed=4)
        for _ in range(3):
            assert not [
                word
                for prompt in observation["prompt"].ravel()
                for word in split_words(prompt)
                if word not in vocabulary_words
            ]
            assert not (observation["mission"] == 1).any()
            observation = env.step(np.full((3, 1), 2)).observation


def test_foreign_missions_have_no_french() -> None:
    with pytest.raises(ConfigError, match=r"'get to the green goal square'.*env\.language=en"):
        make_env("babyai_text", level="MiniGrid-Empty-5x5-v0", language="fr", n_envs=1)


@pytest.mark.parametrize("language", LANGUAGES)
def test_action_sets_have_unique_names(language: str) -> None:
    sizes = {"restricted": 3, "canonical": 6, "augmented": 9, "synonyms": 6, "synonyms_shift": 6}
    assert {name: len(list_action_names(language, name)) for name in sizes} == sizes
    canonical = list_action_names(language, "canonical")
    assert list_action_names(language, "restricted") == canonical[:3] == list_action_names(language, "augmented")[:3]
    assert all(len(set(list_action_names(language, name))) == n for name, n in sizes.items())
    assert len(list_vocabulary(language)) == len(set(list_vocabulary(language)))


def test_glam_action_names() -> None:
    assert list_action_names("en", "augmented")[3:] == ("pick up", "drop", "toggle", "sleep", "do nothing", "think")
    assert list_action_names("en", "synonyms")[2] == "move ahead"
    assert list_action_names("fr", "canonical")[2:] == ("aller tout droit", "attraper", "lâcher", "basculer")
    assert list_action_names("en", ["hop", "skip"]) == ("hop", "skip")


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ("all", "env.actions=all.*restricted, canonical"),
        ([], r"env\.actions=\[\]"),
        (["go", " "], r"env\.actions=\['go', ' '\]"),
        (["go", "turn", "go"], "'go'"),
    ],
)
def test_rejects_ambiguous_actions(actions: str | list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        list_action_names("en", actions)


def test_words_are_extracted() -> None:
    assert split_words("Possible action of the agent: turn left \n Action 2: ") == [
        *("possible", "action", "of", "the", "agent", "turn", "left", "action", "2"),
    ]
    assert split_words("Tu vois une clef à 12 pas, l'objet FERMÉ") == [
        *("tu", "vois", "une", "clef", "à", "12", "pas", "l", "objet", "fermé"),
    ]
