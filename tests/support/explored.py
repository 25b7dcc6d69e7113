"""Run folders with episodes, proposals and call logs for tests of the explorer, written without a game or a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.frames import save_video
from llmrl.run.episode_files import TEXT_COLUMN_WIDTH, EpisodeFiles
from run_folders import write_run

HOSTILE = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>\u2028 line & <b>bold</b>"
SYSTEM = "You walk along a corridor."


def build_call_records(
    place: str, messages: Sequence[Sequence[str]], reply: str, fault: str = "", **extra: Any
) -> list[dict[str, Any]]:
    """Return the two records of a call in the call log: the call and its parsed reply."""
    mark = {"hash": f"{place}|{messages[-1][1]}|{reply}", "time": float(len(reply))}
    messages_ = [{"role": role, "content": text} for role, text in messages]
    record = {
        "model": "tiny",
        "purpose": "player",
        "question_id": place,
        "messages": messages_,
        "reply": reply,
        "repeat": 0,
    }
    verdict = {
        "valid": not fault,
        "parse_error": fault,
        "parsed_reply": None if fault else extra.pop("parsed_reply", {}),
    }
    counts = {"prompt_tokens": 5, "completion_tokens": 2, "cost": 0.0, "cached": False, "finish": "stop"}
    return [{**mark, **record, **counts, **extra}, {"parsed_call": mark["hash"], "time": mark["time"], **verdict}]


def write_calls(folder: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Append lines to the call log of a run."""
    with (folder / "llm_calls.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def write_player_run(
    root: Path, episodes: int, recorded: int = 2, steps: int = 4, players: int = 1, video: bool = False
) -> Path:
    """Write the folder of a run of a language model player and return it.

    In odd episodes the first reply of step 2 is invalid. Reflections contain HTML and scripts.

    Args:
        root: output folder.
        episodes: number of episodes.
        recorded: number of episodes whose steps are recorded.
        steps: steps per episode.
        players: number of players.
        video: whether recorded episodes have a video.
    """
    folder = write_run(root, "corridor", ["env=corridor", "agent=llm_player"], 0, llm="tiny")
    files = EpisodeFiles(folder, None)
    for k in range(episodes):
        bad = k % 2 if steps > 2 else 0
        for step in range(steps if k < recorded else 0):
            for player in range(players):
                _write_step(files, folder, k, step, player, players, bool(bad) and step == 2)
        if video and k < recorded:
            pictures = [_draw_picture(step) for step in range(steps + 1)]
            save_video(pictures, folder / "episodes" / str(k), "episode", 2.0)
        row = {
            "return": float(k % 50),
            "length": steps,
            "success": float(k % 2),
            "invalid": bad,
            "replies": steps + bad,
        }
        files.finish_episode(k, {"episode": k, **row, "end": "terminated"}, None)
    files.close()
    return folder


def _write_step(files: EpisodeFiles, folder: Path, k: int, step: int, player: int, players: int, bad: bool) -> None:
    place = f"episode {k}, player {player}, {step}"
    messages = [("system", SYSTEM), ("user", f"prompt of step {step} for {player}")]
    reply = f"reply {step} {HOSTILE}"
    lines = []
    if bad:
        lines = build_call_records(place, messages, "mumble", "no action in it")
        messages = [*messages, ("assistant", "mumble"), ("user", "say an action")]
    write_calls(
        folder,
        [
            *lines,
            *build_call_records(place, messages, reply, thoughts=f"thought {step}", parsed_reply={"action": step}),
        ],
    )
    line = {
        "step": step,
        **({"agent": player} if players > 1 else {}),
        "observation": {"cell": step, "map": ["..", "#."]},
    }
    line |= {"action": f"go {step}", "reward": 1.0 + player, "reflection": f"because {step} {HOSTILE}", "reply": reply}
    files.write_step(k, {**line, "has_request": True, "valid": True, "replies": 1 + bad, "invalid": int(bad)})


def _draw_picture(step: int) -> np.ndarray:
    picture = np.full((32, 48 + TEXT_COLUMN_WIDTH, 3), 255, dtype=np.uint8)
    picture[:, :48] = [20 + 40 * step % 200, 90, 160]
    picture[:, 48 + step] = 0
    return picture


def write_principal_run(root: Path, seed: int = 0, proposals: int = 6, silent: int | None = 3) -> Path:
    """Write the folder of a run of a language model principal and return it.

    Question number `silent` has no valid reply, so its proposal repeats the previous one.
    """
    vectors = [[0.5 * i, 1.0] for i in range(proposals)]
    if silent is not None:
        vectors[silent] = vectors[silent - 1]
    names = ("tax", "fine")
    history = [
        {
            "step": i + 1,
            "candidate": 0,
            "objective": float(i),
            "standard_error": 0.5,
            "values": [i - 0.5, i + 0.5],
            "context": None,
            "mechanism": dict(zip(names, vector, strict=True)),
        }
        for i, vector in enumerate(vectors)
    ]
    folder = write_run(root, "state", ["env=town", "principal=llm"], seed, history=history, llm="tiny")
    rows = [
        {"kind": "proposal", "x": "proposals", "proposals": i + 1, "welfare/mean": 0.1 * i, "validation/apples": i}
        for i in range(proposals)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for i, vector in enumerate(vectors):
        question = [("user", f"question {i} {HOSTILE}")]
        record = {"purpose": "principal", "parsed_reply": {"vectors": [vector], "reasoning": f"reason {i}"}}
        if i == silent:
            first = build_call_records("", question, "no numbers", "there is no number", purpose="principal")
            repair = [*question, ("assistant", "no numbers"), ("user", "give numbers")]
            write_calls(folder, [*first, *build_call_records("", repair, "none", "still none", purpose="principal")])
        else:
            write_calls(folder, build_call_records("", question, f"answer {i}", **record))
    return folder
