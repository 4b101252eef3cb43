"""Of which messages a replay says that they have no body. By DuckDB."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="duckdb is not installed: the extra local")
pytest.importorskip("pyarrow", reason="pyarrow is not installed: the extra local")

from tandemmq.pipeline.columns import MESSAGES
from tandemmq.pipeline.jobs import replay
from tandemmq.pipeline.jobs.tables import Sources
from tandemmq.pipeline.local.session import LocalSession
from tandemmq.pipeline.sending.request import ReplayRequest
from tandemmq.store.records.message import BodyKind
from tests.support.pipeline.pipeline_journals import add, write_foreign


def test_an_empty_body_is_sent_and_an_omitted_body_is_reported(tmp_path: Path) -> None:
    write_foreign(tmp_path / "store" / "db-1.log", [[add(1, b"", body_kind=BodyKind.BYTES), add(2, b"x")]])
    with LocalSession(tmp_path / "local") as session:
        messages = Sources((str(tmp_path / "store"),)).read(session, MESSAGES)  # type: ignore[arg-type]
        messages.write.mode("overwrite").parquet(str(tmp_path / "whole"))
        messages.drop("body").write.mode("overwrite").parquet(str(tmp_path / "bare"))
        for source, sent in (("store", 2), ("whole", 2), ("bare", 0)):
            out = str(tmp_path / f"of-{source}")
            summary = replay.run(session, Sources((str(tmp_path / source),)), out, request=ReplayRequest())  # type: ignore[arg-type]
            assert summary.findings[0].startswith(f"{sent} messages, "), summary.findings
            assert summary.is_clean is (source != "bare")
