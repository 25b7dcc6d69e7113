"""`proposals.jsonl` of a search."""

import pytest

from llmrl.run.files import LineFile
from llmrl.run.proposals import FILE_NAME, read_proposal_lines


def test_proposal_log_is_truncated_at_checkpoint(tmp_path):
    log = LineFile(tmp_path / FILE_NAME)
    for i in range(4):
        log.write_object({"iteration": i, "reasoning": "because \ud800 of \u2212"})
        if i == 1:
            position = log.position()
    log.close()
    with (tmp_path / FILE_NAME).open("a") as file:
        file.write('{"iteration": 4, "vec')
    log = LineFile(tmp_path / FILE_NAME, position)
    log.write_object({"iteration": 2})
    assert log.position()["lines"] == 3
    log.close()
    assert [p["iteration"] for p in read_proposal_lines(tmp_path)] == [0, 1, 2]
    with pytest.raises(Exception, match=r"3 lines.* 9"):
        LineFile(tmp_path / FILE_NAME, {"lines": 9, "sha256": ""})


def test_reasons_may_contain_unicode_line_breaks(tmp_path):
    reason = "one\u2028two\x85three\x0bfour"
    position = None
    for _ in range(3):
        log = LineFile(tmp_path / FILE_NAME, position)
        log.write_object({"vector": [1.0], "reasoning": reason})
        position = log.position()
        log.close()
    assert read_proposal_lines(tmp_path) == 3 * [{"vector": [1.0], "reasoning": reason}]
    with (tmp_path / "proposals.jsonl").open("a") as file:
        file.write('{"vector": [2')
    assert len(read_proposal_lines(tmp_path)) == 3
