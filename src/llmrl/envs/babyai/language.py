"""Languages: the words of descriptions, prompts and actions, as plain data.

The English texts equal those of BabyAI-Text (Carta et al. 2023, arXiv 2302.02662) word for word, so that models trained
there read the same texts here. The French texts equal its French ones, except for corrected mistakes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llmrl.core.errors import ConfigError

LanguageName = Literal["en", "fr"]

TYPES = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
"""Names of the contents of a cell, by MiniGrid's codes."""
DOOR = TYPES.index("door")
PORTABLE = ("key", "ball", "box")
N_COLORS, N_STATES = 6, 3
"""Numbers of colors (red, green, blue, purple, yellow, grey) and of door states (open, closed, locked)."""


@dataclass(frozen=True)
class Language:
    """The words of one language.

    Attributes:
        nouns: contents of a cell -> (noun, gender), for all contents that can be described.
        colors, states, articles: gender -> words for the six colors, the three states of a door, and "a".
        name, door: templates of the order of noun, color and (for a door) state.
        sees, wall, carries: templates of sentences about an object, a wall and the carried object.
        ways: words for forward, left and right.
        steps: words for one step and several steps; `joint` joins the steps to a side and those ahead.
        actions: names of each set of actions.
        possible, goal, observation, action: beginnings of the lines of a prompt.
        play, view, mission: descriptions of the game, the view and the mission for language-model players.
        does: descriptions of the actions, in their order; the last one is for all actions beyond the sixth.
        missions: words of missions that occur nowhere else.
        tests: replacement words in tests of generalization, which are part of the vocabulary, too.
    """

    nouns: Mapping[str, tuple[str, str]]
    colors: Mapping[str, tuple[str, ...]]
    states: Mapping[str, tuple[str, ...]]
    articles: Mapping[str, str]
    name: str
    door: str
    sees: str
    wall: str
    carries: str
    ways: tuple[str, str, str]
    steps: tuple[str, str]
    joint: str
    actions: Mapping[str, tuple[str, ...]]
    possible: str
    goal: str
    observation: str
    action: str
    play: str
    view: str
    mission: str
    does: tuple[str, ...]
    missions: str = ""
    tests: str = ""

    def content_text(self, kind: int, color: int, state: int) -> str:
        """Return the words for MiniGrid's codes of a cell: `a red key`, `a open green door`."""
        noun, gender = self.nouns[TYPES[kind]]
        form = self.door if kind == DOOR else self.name
        words = {"noun": noun, "color": self.colors[gender][color], "state": self.states[gender][state]}
        return f"{self.articles[gender]} {form.format(**words)}"

    def n_steps(self, n: int) -> str:
        return f"{n} {self.steps[n > 1]}"

    def place(self, right: int, forward: int) -> str:
        """Return the words for an offset in cells: `2 steps left and 1 step forward`; `right` < 0 means left."""
        parts = []
        if right:
            parts.append(f"{self.n_steps(abs(right))} {self.ways[2 if right > 0 else 1]}")
        if forward or not right:
            parts.append(f"{self.n_steps(forward)} {self.ways[0]}")
        return self.joint.join(parts)


ENGLISH = Language(
    nouns={kind: (kind, "") for kind in ("floor", "door", "key", "ball", "box", "goal", "lava", "agent")},
    colors={"": ("red", "green", "blue", "purple", "yellow", "grey")},
    states={"": ("open", "closed", "locked")},
    # Before "open", too, as in the published texts.
    articles={"": "a"},
    name="{color} {noun}",
    door="{state} {color} {noun}",
    sees="You see {thing} {place}",
    wall="You see a wall {steps} {way}",
    carries="You carry {thing}",
    ways=("forward", "left", "right"),
    steps=("step", "steps"),
    joint=" and ",
    actions={
        "restricted": ("turn left", "turn right", "go forward"),
        "canonical": ("turn left", "turn right", "go forward", "pick up", "drop", "toggle"),
        "augmented": (
            *("turn left", "turn right", "go forward", "pick up", "drop", "toggle"),
            *("sleep", "do nothing", "think"),
        ),
        "synonyms": ("rotate left", "rotate right", "move ahead", "take", "release", "switch"),
        "synonyms_shift": ("shift left", "shift right", "go ahead", "take", "release", "turn"),
    },
    possible="Possible action of the agent: ",
    goal="Goal of the agent: ",
    observation="Observation",
    action="Action",
    play=(
        "You walk through rooms on a grid of cells and have a mission, which is told with every observation, such as "
        "going to an object, picking one up, opening a door or putting one object next to another. You see only a part "
        "of the grid, in front of you; walls and closed doors hide what is behind them. You can carry one object at a "
        "time. To go to an object is to stand in front of it and face it. Fulfilling the mission ends the episode with "
        "a reward, which is the larger the faster; there is no other reward. The episode also ends after {steps} "
        "steps. Going forward into something that is in the way has no effect, and is a step all the same."
    ),
    view="what you see, with distances in steps from you, seen in the direction you face, and what you carry",
    mission="what you are to do",
    does=(
        "turn to the left by 90 degrees, staying in your cell",
        "turn to the right by 90 degrees, staying in your cell",
        "go one cell forward, if nothing is in the way",
        "pick up the object in the cell in front of you",
        "put the object you carry into the cell in front of you, which must be empty",
        "open or close the door in front of you (a locked door needs the key of its color)",
        "change nothing",
    ),
    missions="a the go to pick up open put next then after you and object in front of behind on your left right",
    tests=(
        "chair table car vermilion jade cyan violet golden silver dax xolo afze faze jatu croh vurst gakul sil "
        "I would like the agent to You have to"
    ),
)

FRENCH = Language(
    nouns={
        "floor": ("sol", "m"),
        "door": ("porte", "f"),
        "key": ("clef", "f"),
        "ball": ("balle", "f"),
        "box": ("boîte", "f"),
        "goal": ("but", "m"),
        "lava": ("lave", "f"),
        "agent": ("agent", "m"),
    },
    colors={
        "f": ("rouge", "verte", "bleue", "violette", "jaune", "grise"),
        "m": ("rouge", "vert", "bleu", "violet", "jaune", "gris"),
    },
    states={"f": ("ouverte", "fermée", "fermée à clef"), "m": ("ouvert", "fermé", "fermé à clef")},
    articles={"f": "une", "m": "un"},
    name="{noun} {color}",
    door="{noun} {color} {state}",
    sees="Tu vois {thing} {place}",
    wall="Tu vois un mur à {steps} {way}",
    carries="Tu portes {thing}",
    ways=("devant", "à gauche", "à droite"),
    steps=("pas", "pas"),
    joint=" et ",
    actions={
        "restricted": ("tourner à gauche", "tourner à droite", "aller tout droit"),
        "canonical": ("tourner à gauche", "tourner à droite", "aller tout droit", "attraper", "lâcher", "basculer"),
        "augmented": (
            *("tourner à gauche", "tourner à droite", "aller tout droit", "attraper", "lâcher", "basculer"),
            *("dormir", "ne rien faire", "penser"),
        ),
        "synonyms": ("pivoter à gauche", "pivoter à droite", "avancer", "prendre", "relâcher", "actionner"),
        "synonyms_shift": ("virer à gauche", "virer à droite", "continuer", "prendre", "relâcher", "tourner"),
    },
    possible="Actions possibles pour l'agent: ",
    goal="But de l'agent: ",
    observation="Observation",
    action="Action",
    play=(
        "Tu te déplaces dans des pièces, sur une grille de cases, et tu as une mission, qui est donnée avec chaque "
        "observation: par exemple aller à un objet, en attraper un, ouvrir une porte ou poser un objet à côté d'un "
        "autre. Tu ne vois que la partie de la grille qui est devant toi; les murs et les portes fermées cachent ce "
        "qui est derrière. Tu ne peux porter qu'un objet à la fois. Aller à un objet, c'est se tenir devant lui et lui "
        "faire face. Accomplir la mission termine l'épisode avec une récompense, d'autant plus grande que c'est fait "
        "vite; il n'y en a pas d'autre. L'épisode se termine aussi après {steps} pas. Avancer "
        "vers quelque chose qui bloque le chemin n'a aucun effet, mais compte comme un pas."
    ),
    view="ce que tu vois, avec les distances en pas, dans la direction où tu regardes, et ce que tu portes",
    mission="ce que tu dois faire",
    does=(
        "se tourner de 90 degrés vers la gauche, sans changer de case",
        "se tourner de 90 degrés vers la droite, sans changer de case",
        "avancer d'une case, si rien ne barre le chemin",
        "attraper l'objet qui est dans la case devant soi",
        "poser l'objet porté dans la case devant soi, qui doit être vide",
        "ouvrir ou fermer la porte devant soi (une porte fermée à clef demande la clef de sa couleur)",
        "ne rien changer",
    ),
    missions=(
        "le la l un une objet à au aller de du d côté attraper attrapé ouvrir ouvert poser posé être allé avoir après "
        "puis et devant derrière toi ta gauche droite"
    ),
    tests=(
        "chaise table voiture vermilion jade cyan mauve dorée argent dax xolo afze faze jatu croh vurst gakul sil "
        "Je veux que l'agent fasse Tu dois faire"
    ),
)

LANGUAGES: Mapping[str, Language] = {"en": ENGLISH, "fr": FRENCH}
_WORD = re.compile(r"[a-zà-ÿ]+|[0-9]+")
_NUMBERS = 32
"""Count of numbers in the vocabulary, from 0: numbers of steps, and of a prompt's observations."""


def action_names(language: str, actions: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of a set of actions, or the given names.

    Raises:
        ConfigError: unknown set, no names, an empty name, or a repeated one.
    """
    sets = LANGUAGES[language].actions
    if isinstance(actions, str):
        if actions not in sets:
            raise ConfigError(
                f"env.actions={actions} does not exist; use {', '.join(sets)}, or a list of names in the order of "
                "MiniGrid's actions, such as [turn left,turn right,go forward]"
            )
        return sets[actions]
    names = tuple(str(name) for name in actions)
    if not names or not all(name.strip() for name in names):
        raise ConfigError(f"env.actions={list(names)} must contain at least one name, and no empty one")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"env.actions contains the name {twice[0]!r} twice; each name must be unique")
    return names


def tokens(text: str) -> list[str]:
    """Return the words and numbers of a text, in lower case and in order."""
    return _WORD.findall(text.lower())


@functools.cache
def vocabulary(language: str) -> tuple[str, ...]:
    """Return all words and numbers of prompts of BabyAI's levels and of tests of generalization, in a fixed order."""
    words = LANGUAGES[language]
    texts = [
        *(noun for noun, _ in words.nouns.values()),
        *(word for forms in (*words.colors.values(), *words.states.values()) for word in forms),
        *words.articles.values(),
        *(words.sees, words.wall, words.carries, *words.ways, *words.steps, words.joint),
        *(name for names in words.actions.values() for name in names),
        *(words.possible, words.goal, words.observation, words.action, words.missions, words.tests),
        *(str(n) for n in range(_NUMBERS)),
    ]
    fields = {"thing", "place", "way"}  # placeholders of the sentences
    candidates = (word for text in texts for word in tokens(re.sub(r"\{\w+\}", " ", text)) if word not in fields)
    return tuple(dict.fromkeys(candidates))


_COLORS = ENGLISH.colors[""]
_OBJECT = re.compile(
    rf"(?P<article>a|the) (?:(?P<color>{'|'.join(_COLORS)}) )?(?P<noun>object|door|key|ball|box)"
    r"(?: (?P<where>in front of you|behind you|on your left|on your right))?"
)
_POSITIONS = {
    "in front of you": "devant toi",
    "behind you": "derrière toi",
    "on your left": "à ta gauche",
    "on your right": "à ta droite",
}
# Verb -> infinitive, and perfect infinitive.
_VERBS = {
    "go to": ("aller", "être allé"),
    "pick up": ("attraper", "avoir attrapé"),
    "open": ("ouvrir", "avoir ouvert"),
    "put": ("poser", "avoir posé"),
}


@functools.lru_cache(maxsize=65536)
def in_french(mission: str) -> str:
    """Return a mission of BabyAI in French: `go to the red ball` becomes `aller à la balle rouge`.

    Raises:
        ConfigError: it is not made as BabyAI's missions are.
    """
    start, separator, end = mission.partition(", then ")
    if separator:
        return f"{_translate_clauses(start)}, puis {_translate_clauses(end)}"
    last, after, prior = mission.partition(" after you ")
    if after:
        return f"{_translate_clauses(last)} après {_translate_clauses(prior, done=True)}"
    return _translate_clauses(mission)


def _translate_clauses(clauses: str, done: bool = False) -> str:
    return " et ".join(_clause(clause, done) for clause in clauses.split(" and "))


def _clause(clause: str, done: bool) -> str:
    verb = next((verb for verb in _VERBS if clause.startswith(f"{verb} ")), None)
    if verb is None:
        raise _untranslatable(clause)
    verb_phrase, rest = _VERBS[verb][done], clause[len(verb) + 1 :]
    if verb == "go to":
        return f"{verb_phrase} {_translate_object(rest, 'à')}"
    if verb == "put":
        subject, _, landmark = rest.partition(" next to ")
        return f"{verb_phrase} {_translate_object(subject)} à côté {_translate_object(landmark, 'de')}"
    return f"{verb_phrase} {_translate_object(rest)}"


def _translate_object(text: str, preposition: str = "") -> str:
    """Return a translated object: `la balle rouge`, `à une clef`, `de l'objet bleu à ta gauche`."""
    match = _OBJECT.fullmatch(text)
    if match is None:
        raise _untranslatable(text)
    noun, gender = ("objet", "m") if match["noun"] == "object" else FRENCH.nouns[match["noun"]]
    color = f" {FRENCH.colors[gender][_COLORS.index(match['color'])]}" if match["color"] else ""
    position = f" {_POSITIONS[match['where']]}" if match["where"] else ""
    if match["article"] == "a":
        article = f"{FRENCH.articles[gender]} "
        prefix = {"": "", "à": "à ", "de": "d'"}[preposition]
    else:
        article = "l'" if noun == "objet" else "la " if gender == "f" else "le "
        prefix = f"{preposition} " if preposition else ""
        if article == "le " and preposition:
            article, prefix = {"à": "au ", "de": "du "}[preposition], ""
    return f"{prefix}{article}{noun}{color}{position}"


def _untranslatable(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r} in a mission cannot be translated into French, because it is not made as BabyAI's missions are; use "
        "env.language=en, or a level of BabyAI"
    )
