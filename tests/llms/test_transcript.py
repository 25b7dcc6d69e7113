"""Exchanges logged with metrics: selection, number and escaping of markup."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugin_util import markdown_to_safe_html

from experiments import find_run_folder, run
from llmrl.llms.call_log import CALL_LOG_NAME, read_calls
from llmrl.llms.transcript import MAX_SHOWN_CHARACTERS, N_TEXTS_BEFORE_THINNING, Transcript, format_call
from llmrl.loops.design_progress import AdaptationRecord


def call(time: float, reply: str = "r", **extra: object) -> dict:
    messages = [{"role": "user", "content": f"question of {time}"}]
    return {"time": time, "purpose": "principal", "model": "m", "messages": messages, "reply": reply} | extra


def write(folder: Path, *calls: dict, end: str = "") -> None:
    with (folder / CALL_LOG_NAME).open("a") as file:
        file.write("".join(json.dumps(record) + "\n" for record in calls) + end)


def line(step: int, end_time: float) -> dict:
    return {"kind": "proposal", "x": "proposals", "proposals": step, "llm/calls": 1.0, "time/unix": end_time}


def test_newest_call_since_previous_line(tmp_path):
    transcript = Transcript(tmp_path)
    assert transcript(line(0, 1.0)) is None  # no log yet
    write(tmp_path, call(2.0, "first"), call(3.0, "second"))
    probe = {"kind": "probe", "x": "updates", "updates": 1, "time/unix": 2.5}
    assert transcript(probe) is None  # it tells nothing of a model
    exchange = transcript(line(1, 3.5))
    assert "second" in exchange and " 2 calls" in exchange and "question of 3.0" in exchange
    write(tmp_path, end='{"time": 4.0, "reply": "cut sh')
    assert transcript(line(2, 5.0)) is None
    write(tmp_path, end="\n")
    write(tmp_path, call(5.5, "third"), end='"no record"\n')
    assert "third" in transcript(line(3, 6.0))


def test_earlier_lines_keep_texts(tmp_path):
    write(tmp_path, *[call(float(time), f"reply {time}") for time in range(1, 6)])
    live, second = Transcript(tmp_path), Transcript(tmp_path)
    lines = [line(step, step + 0.5) for step in range(1, 6)]
    first = [live(row) for row in lines]
    assert [f"reply {step}" in text for step, text in enumerate(first, start=1)] == [True] * 5
    # The last two lines are lost, and their calls are made again before the next lines are written.
    write(tmp_path, call(7.0, "anew 4"))
    assert [second(row) for row in lines[:3]] == first[:3]
    assert "anew 4" in second(line(4, 7.5))


@given(st.text(alphabet=st.sampled_from("`~<>&*_# \n\t\\[](){}!'\"axé\ud83d|-=:")))
def test_text_is_not_markup(text):
    html = markdown_to_safe_html(
        format_call(call(1.0, text, messages=[{"role": "user", "content": text}], finish=text))
    )
    tags = Counter(part.split(">")[0] for part in html.split("<")[1:])
    # The model, the purpose, the prompt's name, the role and perhaps the finish are code too.
    codes = 6 if text == "" else 7
    tag_counts = {"p": 3, "pre": 2, "strong": 2, "code": codes}
    assert tags == {f"{end}{tag}": count for tag, count in tag_counts.items() for end in ("", "/")}, html


def test_model_html_is_escaped():
    text = "```\n</code></pre><script>alert(1)</script>\n~~~~\n<b>bold</b> **bold** <!--"
    html = markdown_to_safe_html(format_call(call(1.0, text, model="<img src=x>")))
    assert "&lt;script&gt;" in html and "<script" not in html and "<b>" not in html and "<img" not in html
    assert "**bold**" in html


def test_failures_are_visible():
    assert "not valid" in format_call(call(1.0, valid=False))
    assert "1,200 prompt tokens, 0.25 " in format_call(call(1.0, valid=True, prompt_tokens=1200, cost=0.25))
    assert "cache" in format_call(call(1.0, cached=True, cost=0.25))
    failed = call(1.0, error="no route to host")
    del failed["reply"]
    assert "No reply" in format_call(failed) and "no route to host" in format_call(failed)


def test_long_questions_are_truncated_with_notice():
    words = " ".join(f"word{i}" for i in range(20_000))
    messages = [{"role": "user", "content": f"number {i}"} for i in range(9)] + [{"role": "user", "content": words}]
    text = format_call(call(1.0, messages=messages))
    assert "6 earlier messages" in text and "number 5" not in text and "number 6" in text
    assert f"{len(words) - MAX_SHOWN_CHARACTERS:,} characters " in text
    assert "word0 " in text and "word19999" in text and len(text) < 2 * MAX_SHOWN_CHARACTERS
    assert max(map(len, text.splitlines())) <= 160


def test_long_run_shows_limited_exchanges(tmp_path):
    write(tmp_path, *[call(float(time)) for time in range(8000)])
    transcript = Transcript(tmp_path)
    steps_with_text = [step for step in range(8000) if transcript(line(step, step + 0.5)) is not None]
    assert steps_with_text[: N_TEXTS_BEFORE_THINNING + 2] == [
        *range(N_TEXTS_BEFORE_THINNING),
        N_TEXTS_BEFORE_THINNING,
        N_TEXTS_BEFORE_THINNING + 2,
    ]
    assert len(steps_with_text) <= 520 and steps_with_text[-1] > 7900


def test_resume_repeats_no_exchange(tmp_path, monkeypatch):
    overrides = (
        "env=escape_room", "env.n_envs=4", "principal=llm", "llm=scripted", "design.steps=4", "design.adapt_rounds=1",
        "design.evaluations=1", "design.validate_episodes=4", "checkpoint_seconds=0", f"output_root={tmp_path}",
    )  # fmt: skip
    add, steps = AdaptationRecord.add_round, []

    def dies_in_the_third_step(self, *arguments):
        steps.append(1)
        if len(steps) == 3:
            raise RuntimeError("the machine is on fire")
        return add(self, *arguments)

    monkeypatch.setattr(AdaptationRecord, "add_round", dies_in_the_third_step)
    with pytest.raises(RuntimeError, match="fire"):
        run(*overrides)
    monkeypatch.undo()
    run(*overrides)
    folder = find_run_folder(tmp_path)
    calls = list(read_calls(folder / CALL_LOG_NAME))
    assert len(calls) == 5  # the third question was asked in both attempts
    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    events = accumulator.Tensors(Transcript.TAG)
    assert [event.step for event in events] == [1, 2, 3, 4]
    questions = [f"generation {k} of 4." for k in (1, 2, 3, 4)]
    for event, generation in zip(events, questions, strict=True):
        assert f"This is {generation}" in event.tensor_proto.string_val[0].decode()
