"""A short exchange of a player with its language model, and videos of agents, a few of each task."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.analysis.explorer.episodes import episode_rows, read_episodes
from llmrl.analysis.groups import Group
from llmrl.analysis.runs import RunRecord
from llmrl.core.errors import RunFolderError
from llmrl.run.episode_files import FOLDER

log = logging.getLogger(__name__)

LONGEST = 900
"""Characters of a text that is shown; of a prompt its end, of a reply its beginning."""
MOST_VIDEOS = 4
VIDEO_BYTES = 1_500_000
"""Most bytes of a video in the page."""


@dataclass(frozen=True)
class Exchange:
    """One decision of a player.

    Attributes:
        name: of its group.
        episode, step: which decision.
        prompt: the end of what the model was asked.
        reply: the beginning of its reply.
        action, reward: what was done, and what it brought.
    """

    name: str
    episode: int
    step: int
    prompt: str
    reply: str
    action: str
    reward: float


@dataclass(frozen=True)
class StoryVideo:
    """An episode as an animation.

    Attributes:
        name: of its group.
        run: the folder's group and seed, short.
        path: of the file, a GIF.
    """

    name: str
    run: str
    path: Path


def exchanges_of(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> tuple[Exchange, ...]:
    """Return one exchange of each group whose players asked a language model and wrote their steps down.

    Args:
        groups: short name, group and finished runs of each.
    """
    found = []
    for name, _, runs in groups:
        for run in runs:
            if (own := _exchange(name, run)) is not None:
                found.append(own)
                break
    return tuple(found)


def videos_of(groups: Sequence[tuple[str, Group, Sequence[RunRecord]]]) -> tuple[StoryVideo, ...]:
    """Return a video of each group that has one, of `MOST_VIDEOS` groups at most.

    Args:
        groups: short name, group and finished runs of each.
    """
    found = []
    for name, _, runs in groups:
        for run in runs:
            if (path := next(_videos(run.folder), None)) is not None:
                found.append(StoryVideo(name, run.reference, path))
                break
    return tuple(found[:MOST_VIDEOS])


def _videos(folder: Path) -> Iterator[Path]:
    yield from sorted((folder / FOLDER).glob("*/episode.gif"), key=lambda path: int(path.parent.name))
    yield from sorted(folder.glob("evaluation*/videos/**/*.gif"))


def _exchange(name: str, run: RunRecord) -> Exchange | None:
    """The first decision in a run's first episode that was asked for and understood."""
    try:
        recorded = [int(row["episode"]) for row in episode_rows(run.folder) if row["recorded"]]
        episodes = read_episodes(run.folder, set(recorded[:1]))
        for episode in episodes:
            for number, step in enumerate(episode["steps"]):
                for player in step:
                    if player.get("calls") and player.get("valid") is not False and "reply" in player:
                        return _told(name, episode, number, player)
    except (RunFolderError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: its episodes cannot be read (%r)", run.folder, error)
    return None


def _told(name: str, episode: dict[str, Any], number: int, player: dict[str, Any]) -> Exchange:
    texts = episode["texts"]
    asked = "\n".join(texts[text] for role, text in player["calls"][-1]["messages"] if role != "assistant")
    reply = texts[player["reply"]]
    return Exchange(
        name,
        int(episode["episode"]),
        number,
        end_of(asked),
        reply if len(reply) <= LONGEST else f"{reply[:LONGEST].rsplit(' ', 1)[0]}\n[{len(reply):,} characters in all]",
        str(player.get("action", "")),
        float(player.get("reward", 0.0) or 0.0),
    )


def end_of(text: str) -> str:
    """Return the last paragraphs of a text that fit into `LONGEST` characters, and say what came before them."""
    text = re.sub(r"\n{3,}", "\n\n", text.strip())
    if len(text) <= LONGEST:
        return text
    tail = text[-LONGEST:]
    tail = tail[tail.find("\n") + 1 :] if "\n" in tail else tail[tail.find(" ") + 1 :]
    return f"[{len(text) - len(tail):,} characters before]\n{tail}"
