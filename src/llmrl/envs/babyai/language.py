"""English and French words for prompts, actions and views, descriptions of views, and translations of missions.

Views become sentences by the rules of BabyAI-Text (Carta et al. 2023, arXiv 2302.02662). English texts equal those of
BabyAI-Text word for word, so that models trained there read the same texts here. French texts equal its French ones,
except for corrected mistakes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llmrl.core.errors import ConfigError

LanguageName = Literal["en", "fr"]

CELL_TYPES = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
"""Name of each content of a cell; the index is MiniGrid's code."""
DOOR_CODE = CELL_TYPES.index("door")
PORTABLE_TYPES = ("key", "ball", "box")
_EMPTY_CODE, _WALL_CODE = CELL_TYPES.index("empty"), CELL_TYPES.index("wall")
_IS_PORTABLE = np.isin(np.arange(len(CELL_TYPES)), [CELL_TYPES.index(kind) for kind in PORTABLE_TYPES])
N_COLORS, N_DOOR_STATES = 6, 3
"""Number of colors (red, green, blue, purple, yellow, grey) and of door states (open, closed, locked)."""


@dataclass(frozen=True)
class Language:
    """The words of one language.

    Attributes:
        nouns: name in `CELL_TYPES` -> (noun, gender), for all contents of cells that texts mention.
        colors, states, articles: gender -> words for the six colors, for the three door states, and for "a".
        object_template, door_template: noun phrases with placeholders for noun, color and (for a door) state.
        object_sentence, wall_sentence, carried_sentence: templates of sentences about an object, a wall and the carried
            object.
        directions: words for forward, left and right.
        step_nouns: nouns for one step and for several steps.
        conjunction: text between the number of steps to a side and the number of steps forward.
        action_sets: name of an action set -> names of its actions, in MiniGrid's order.
        possible_actions_prefix, goal_prefix, observation_label, action_label: first words of the lines of a prompt.
        game_description, view_description, mission_description: texts for language-model players.
        action_descriptions: descriptions of the first six actions, then one for all further actions.
        extra_mission_words: words of missions that no other attribute contains.
        test_words: replacement words in tests of generalization, which are also part of the vocabulary.
    """

    nouns: Mapping[str, tuple[str, str]]
    colors: Mapping[str, tuple[str, ...]]
    states: Mapping[str, tuple[str, ...]]
    articles: Mapping[str, str]
    object_template: str
    door_template: str
    object_sentence: str
    wall_sentence: str
    carried_sentence: str
    directions: tuple[str, str, str]
    step_nouns: tuple[str, str]
    conjunction: str
    action_sets: Mapping[str, tuple[str, ...]]
    possible_actions_prefix: str
    goal_prefix: str
    observation_label: str
    action_label: str
    game_description: str
    view_description: str
    mission_description: str
    action_descriptions: tuple[str, ...]
    extra_mission_words: str = ""
    test_words: str = ""

    def describe_cell(self, type_code: int, color_code: int, state_code: int) -> str:
        """Return the noun phrase for MiniGrid's codes of a cell: `a red key`, `a open green door`."""
        noun, gender = self.nouns[CELL_TYPES[type_code]]
        template = self.door_template if type_code == DOOR_CODE else self.object_template
        color, state = self.colors[gender][color_code], self.states[gender][state_code]
        return f"{self.articles[gender]} {template.format(noun=noun, color=color, state=state)}"

    def format_steps(self, n: int) -> str:
        return f"{n} {self.step_nouns[n > 1]}"

    def describe_offset(self, right: int, forward: int) -> str:
        """Return the phrase for an offset in cells: `2 steps left and 1 step forward`; `right` < 0: to the left."""
        side_steps = [f"{self.format_steps(abs(right))} {self.directions[2 if right > 0 else 1]}"] if right else []
        forward_steps = [f"{self.format_steps(forward)} {self.directions[0]}"] if forward or not right else []
        return self.conjunction.join(side_steps + forward_steps)


_ENGLISH_ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
_FRENCH_ACTIONS = ("tourner à gauche", "tourner à droite", "aller tout droit", "attraper", "lâcher", "basculer")

ENGLISH = Language(
    nouns={kind: (kind, "") for kind in ("floor", "door", "key", "ball", "box", "goal", "lava", "agent")},
    colors={"": ("red", "green", "blue", "purple", "yellow", "grey")},
    states={"": ("open", "closed", "locked")},
    articles={"": "a"},  # also before "open", as in BabyAI-Text
    object_template="{color} {noun}",
    door_template="{state} {color} {noun}",
    object_sentence="You see {object} {offset}",
    wall_sentence="You see a wall {steps} {direction}",
    carried_sentence="You carry {object}",
    directions=("forward", "left", "right"),
    step_nouns=("step", "steps"),
    conjunction=" and ",
    action_sets={
        "restricted": _ENGLISH_ACTIONS[:3],
        "canonical": _ENGLISH_ACTIONS,
        "augmented": (*_ENGLISH_ACTIONS, "sleep", "do nothing", "think"),
        "synonyms": ("rotate left", "rotate right", "move ahead", "take", "release", "switch"),
        "synonyms_shift": ("shift left", "shift right", "go ahead", "take", "release", "turn"),
    },
    possible_actions_prefix="Possible action of the agent: ",
    goal_prefix="Goal of the agent: ",
    observation_label="Observation",
    action_label="Action",
    game_description=(
        "You walk through rooms on a grid of cells and have a mission, which is told with every observation, such as "
        "going to an object, picking one up, opening a door or putting one object next to another. You see only a part "
        "of the grid, in front of you; walls and closed doors hide what is behind them. You can carry one object at a "
        "time. To go to an object is to stand in front of it and face it. Fulfilling the mission ends the episode with "
        "a reward, which is the larger the faster; there is no other reward. The episode also ends after {steps} "
        "steps. Going forward into something that is in the way has no effect, and is a step all the same."
    ),
    view_description=(
        "what you see, with distances in steps from you, seen in the direction you face, and what you carry"
    ),
    mission_description="what you are to do",
    action_descriptions=(
        "turn to the left by 90 degrees, staying in your cell",
        "turn to the right by 90 degrees, staying in your cell",
        "go one cell forward, if nothing is in the way",
        "pick up the object in the cell in front of you",
        "put the object you carry into the cell in front of you, which must be empty",
        "open or close the door in front of you (a locked door needs the key of its color)",
        "change nothing",
    ),
    extra_mission_words=(
        "a the go to pick up open put next then after you and object in front of behind on your left right"
    ),
    test_words=(
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
    object_template="{noun} {color}",
    door_template="{noun} {color} {state}",
    object_sentence="Tu vois {object} {offset}",
    wall_sentence="Tu vois un mur à {steps} {direction}",
    carried_sentence="Tu portes {object}",
    directions=("devant", "à gauche", "à droite"),
    step_nouns=("pas", "pas"),
    conjunction=" et ",
    action_sets={
        "restricted": _FRENCH_ACTIONS[:3],
        "canonical": _FRENCH_ACTIONS,
        "augmented": (*_FRENCH_ACTIONS, "dormir", "ne rien faire", "penser"),
        "synonyms": ("pivoter à gauche", "pivoter à droite", "avancer", "prendre", "relâcher", "actionner"),
        "synonyms_shift": ("virer à gauche", "virer à droite", "continuer", "prendre", "relâcher", "tourner"),
    },
    possible_actions_prefix="Actions possibles pour l'agent: ",
    goal_prefix="But de l'agent: ",
    observation_label="Observation",
    action_label="Action",
    game_description=(
        "Tu te déplaces dans des pièces, sur une grille de cases, et tu as une mission, qui est donnée avec chaque "
        "observation: par exemple aller à un objet, en attraper un, ouvrir une porte ou poser un objet à côté d'un "
        "autre. Tu ne vois que la partie de la grille qui est devant toi; les murs et les portes fermées cachent ce "
        "qui est derrière. Tu ne peux porter qu'un objet à la fois. Aller à un objet, c'est se tenir devant lui et lui "
        "faire face. Accomplir la mission termine l'épisode avec une récompense, d'autant plus grande que c'est fait "
        "vite; il n'y en a pas d'autre. L'épisode se termine aussi après {steps} pas. Avancer "
        "vers quelque chose qui bloque le chemin n'a aucun effet, mais compte comme un pas."
    ),
    view_description="ce que tu vois, avec les distances en pas, dans la direction où tu regardes, et ce que tu portes",
    mission_description="ce que tu dois faire",
    action_descriptions=(
        "se tourner de 90 degrés vers la gauche, sans changer de case",
        "se tourner de 90 degrés vers la droite, sans changer de case",
        "avancer d'une case, si rien ne barre le chemin",
        "attraper l'objet qui est dans la case devant soi",
        "poser l'objet porté dans la case devant soi, qui doit être vide",
        "ouvrir ou fermer la porte devant soi (une porte fermée à clef demande la clef de sa couleur)",
        "ne rien changer",
    ),
    extra_mission_words=(
        "le la l un une objet à au aller de du d côté attraper attrapé ouvrir ouvert poser posé être allé avoir après "
        "puis et devant derrière toi ta gauche droite"
    ),
    test_words=(
        "chaise table voiture vermilion jade cyan mauve dorée argent dax xolo afze faze jatu croh vurst gakul sil "
        "Je veux que l'agent fasse Tu dois faire"
    ),
)

LANGUAGES: Mapping[str, Language] = {"en": ENGLISH, "fr": FRENCH}
_WORD_PATTERN = re.compile(r"[a-zà-ÿ]+|[0-9]+")
_N_NUMBERS = 32
"""The vocabulary contains the numbers 0 to 31, which count steps and index the observations of a prompt."""


def list_action_names(language: str, actions: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the actions in a set of this name, or `actions` itself if it is a sequence of names.

    Raises:
        ConfigError: the set does not exist, or the names are empty or repeated.
    """
    action_sets = LANGUAGES[language].action_sets
    if isinstance(actions, str):
        if actions not in action_sets:
            raise ConfigError(
                f"env.actions={actions} does not exist; use {', '.join(action_sets)}, or a list of names in the order "
                "of MiniGrid's actions, such as [turn left,turn right,go forward]"
            )
        return action_sets[actions]
    names = tuple(str(name) for name in actions)
    if not names or not all(name.strip() for name in names):
        raise ConfigError(f"env.actions={list(names)} must contain at least one name, and no empty one")
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"env.actions contains the name {repeated[0]!r} twice; each name must be unique")
    return names


def split_words(text: str) -> list[str]:
    """Return the words and numbers of a text, in lower case and in order."""
    return _WORD_PATTERN.findall(text.lower())


@functools.cache
def list_vocabulary(language: str) -> tuple[str, ...]:
    """Return all words and numbers in prompts of BabyAI levels and in tests of generalization, in a fixed order."""
    words = LANGUAGES[language]
    texts = [
        *(noun for noun, _ in words.nouns.values()),
        *(word for forms in (*words.colors.values(), *words.states.values()) for word in forms),
        *words.articles.values(),
        *(words.object_sentence, words.wall_sentence, words.carried_sentence),
        *(*words.directions, *words.step_nouns, words.conjunction),
        *(name for names in words.action_sets.values() for name in names),
        *(words.possible_actions_prefix, words.goal_prefix, words.observation_label, words.action_label),
        *(words.extra_mission_words, words.test_words),
        *(str(n) for n in range(_N_NUMBERS)),
    ]
    return tuple(dict.fromkeys(word for text in texts for word in split_words(re.sub(r"\{\w+\}", " ", text))))


_ENGLISH_COLORS = ENGLISH.colors[""]
_OBJECT_PATTERN = re.compile(
    rf"(?P<article>a|the) (?:(?P<color>{'|'.join(_ENGLISH_COLORS)}) )?(?P<noun>object|door|key|ball|box)"
    r"(?: (?P<position>in front of you|behind you|on your left|on your right))?"
)
_FRENCH_POSITIONS = {
    "in front of you": "devant toi",
    "behind you": "derrière toi",
    "on your left": "à ta gauche",
    "on your right": "à ta droite",
}
# English verb -> French infinitive and perfect infinitive.
_FRENCH_VERBS = {
    "go to": ("aller", "être allé"),
    "pick up": ("attraper", "avoir attrapé"),
    "open": ("ouvrir", "avoir ouvert"),
    "put": ("poser", "avoir posé"),
}


@functools.lru_cache(maxsize=65536)
def translate_to_french(mission: str) -> str:
    """Return a mission of BabyAI in French: `go to the red ball` becomes `aller à la balle rouge`.

    Raises:
        ConfigError: the mission does not follow BabyAI's grammar.
    """
    first_clauses, separator, later_clauses = mission.partition(", then ")
    if separator:
        return f"{_translate_clauses(first_clauses)}, puis {_translate_clauses(later_clauses)}"
    main_clauses, after_separator, earlier_clauses = mission.partition(" after you ")
    if after_separator:
        return f"{_translate_clauses(main_clauses)} après {_translate_clauses(earlier_clauses, is_perfect=True)}"
    return _translate_clauses(mission)


def _translate_clauses(clauses: str, is_perfect: bool = False) -> str:
    return " et ".join(_translate_clause(clause, is_perfect) for clause in clauses.split(" and "))


def _translate_clause(clause: str, is_perfect: bool) -> str:
    verb = next((verb for verb in _FRENCH_VERBS if clause.startswith(f"{verb} ")), None)
    if verb is None:
        raise _build_translation_error(clause)
    french_verb, object_text = _FRENCH_VERBS[verb][is_perfect], clause[len(verb) + 1 :]
    if verb == "go to":
        return f"{french_verb} {_translate_object(object_text, 'à')}"
    if verb == "put":
        subject, _, landmark = object_text.partition(" next to ")
        return f"{french_verb} {_translate_object(subject)} à côté {_translate_object(landmark, 'de')}"
    return f"{french_verb} {_translate_object(object_text)}"


def _translate_object(text: str, preposition: str = "") -> str:
    """Return a translated object: `la balle rouge`, `à une clef`, `de l'objet bleu à ta gauche`."""
    match = _OBJECT_PATTERN.fullmatch(text)
    if match is None:
        raise _build_translation_error(text)
    noun, gender = ("objet", "m") if match["noun"] == "object" else FRENCH.nouns[match["noun"]]
    color = f" {FRENCH.colors[gender][_ENGLISH_COLORS.index(match['color'])]}" if match["color"] else ""
    position = f" {_FRENCH_POSITIONS[match['position']]}" if match["position"] else ""
    if match["article"] == "a":
        article = f"{FRENCH.articles[gender]} "
        prefix = {"": "", "à": "à ", "de": "d'"}[preposition]
    else:
        article = "l'" if noun == "objet" else "la " if gender == "f" else "le "
        prefix = f"{preposition} " if preposition else ""
        if article == "le " and preposition:
            article, prefix = {"à": "au ", "de": "du "}[preposition], ""
    return f"{prefix}{article}{noun}{color}{position}"


def _build_translation_error(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r} in a mission cannot be translated into French, because it does not follow BabyAI's grammar; use "
        "env.language=en, or a level of BabyAI"
    )


class ViewDescriber:
    """Converter of views of `width` x `height` cells into sentences, in batches of views.

    Sentences describe, in this order: the carried object; the nearest walls ahead, left and right, unless an object is
    in front of them; all objects in the view, by columns from left to right and from far to near.

    Args:
        language: `en` or `fr`.
        width, height: size of a view, in cells. The agent is in the middle of the nearest row and looks ahead.
    """

    def __init__(self, language: str, width: int, height: int) -> None:
        self._words = LANGUAGES[language]
        self._agent_x, self._agent_y = width // 2, height - 1
        self._n_cells, self._height = width * height, height
        self._code_weights = np.array([N_COLORS * N_DOOR_STATES, N_DOOR_STATES, 1]) * self._n_cells
        self._position_codes = np.arange(self._n_cells).reshape(width, height)
        self._is_not_agent_cell = np.ones((width, height), dtype=bool)
        self._is_not_agent_cell[self._agent_x, self._agent_y] = False
        self._sentence_cache: dict[int, str] = {}
        steps = [self._words.format_steps(n) for n in range(max(width, height))]
        self._wall_sentences = [
            [self._words.wall_sentence.format(steps=n, direction=direction) for n in steps]
            for direction in self._words.directions
        ]

    def describe(self, views: np.ndarray) -> list[list[str]]:
        """Return the sentences about each of n views [n, width, height, 3], codes of type, color and state.

        The axis x goes from left to right, y from far to near.
        """
        types, x, y = views[..., 0], self._agent_x, self._agent_y
        texts: list[list[str]] = [[] for _ in range(len(views))]
        agent_cells = views[:, x, y]
        for i in np.flatnonzero(_IS_PORTABLE[agent_cells[:, 0]]).tolist():
            carried = self._words.describe_cell(*agent_cells[i].tolist())
            texts[i].append(self._words.carried_sentence.format(object=carried))
        # The cells ahead, to the left and to the right of the agent, from near to far.
        type_lines = types[:, x, :y][:, ::-1], types[:, :x, y][:, ::-1], types[:, x + 1 :, y]
        for line_types, sentences in zip(type_lines, self._wall_sentences, strict=True):
            if not line_types.shape[1]:
                continue
            distances = (line_types > _EMPTY_CODE).argmax(axis=1)
            for i in np.flatnonzero(line_types[np.arange(len(line_types)), distances] == _WALL_CODE).tolist():
                texts[i].append(sentences[distances[i] + 1])
        visible = (types > _WALL_CODE) & self._is_not_agent_cell
        # One integer encodes the three codes of an object and its position.
        positions = np.broadcast_to(self._position_codes, types.shape)[visible]
        object_position_codes = (views[visible].astype(np.int64) @ self._code_weights) + positions
        for i, code in zip(np.nonzero(visible)[0].tolist(), object_position_codes.tolist(), strict=True):
            texts[i].append(self._sentence_cache.get(code) or self._format_object_sentence(code))
        return texts

    def _format_object_sentence(self, code: int) -> str:
        appearance_code, position = divmod(code, self._n_cells)
        type_code, color_and_state = divmod(appearance_code, N_COLORS * N_DOOR_STATES)
        x, y = divmod(position, self._height)
        sentence = self._words.object_sentence.format(
            object=self._words.describe_cell(type_code, *divmod(color_and_state, N_DOOR_STATES)),
            offset=self._words.describe_offset(x - self._agent_x, self._agent_y - y),
        )
        self._sentence_cache[code] = sentence
        return sentence


@functools.cache
def get_view_describer(language: str, width: int, height: int) -> ViewDescriber:
    """Return the describer of views of this size from a cache."""
    return ViewDescriber(language, width, height)


def describe_view(image: np.ndarray, language: str = "en") -> list[str]:
    """Return the sentences about one view, [width, height, 3]."""
    return get_view_describer(language, *image.shape[:2]).describe(image[None])[0]


def find_carried_object(image: np.ndarray) -> str:
    """Return the object that the agent carries, e.g. `red key`, read from its own cell of a view; "" if none."""
    cell = image[image.shape[0] // 2, image.shape[1] - 1]
    cell_type, colors = CELL_TYPES[int(cell[0])], LANGUAGES["en"].colors[""]
    return f"{colors[int(cell[1])]} {cell_type}" if cell_type in PORTABLE_TYPES else ""
