"""`llmrl-export`: completed runs, read by the programs of the target formats."""

import sys

import pytest

import llmrl
from explored import write_principal_run
from llmrl.cli.export import TABLE_BY_ARGUMENT, main


@pytest.mark.parametrize("format", ["csv", "parquet"])
@pytest.mark.parametrize("what", ["runs", "metrics", "proposals", "episodes", "calls"])
def test_tables_equal_loaded_results(tmp_path, what, format):
    import pandas as pd

    run = write_principal_run(tmp_path / "outputs")
    main(["table", str(run), "--what", what, "--format", format])
    frame = getattr(llmrl.load(run), TABLE_BY_ARGUMENT[what])
    path = run / "tables" / f"{what}.{format}"
    read = pd.read_parquet(path) if format == "parquet" else pd.read_csv(path)
    assert list(read) == list(frame) and len(read) == len(frame)
    if what in ("runs", "proposals"):
        assert len(read) and read["seed"].tolist() == frame["seed"].tolist()


def test_table_of_sweep(tmp_path, monkeypatch, capsys):
    for seed in (0, 1):
        write_principal_run(tmp_path / "outputs", seed)
    monkeypatch.chdir(tmp_path)
    main(["table", "latest:state", "--out", "runs.csv"])
    assert "2 rows" in capsys.readouterr().out
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 3


def test_missing_pyarrow_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit):
        main(["table", str(write_principal_run(tmp_path)), "--format", "parquet"])
    assert "llmrl[analysis]" in capsys.readouterr().err
