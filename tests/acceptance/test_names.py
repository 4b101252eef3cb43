"""Two brokers of one name over one directory: the second is refused while the first lives, and not a moment longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.acceptance.broker_process import BrokerProcess


@pytest.mark.promise("one-name-one-broker")
def test_a_second_broker_of_a_name_is_refused_and_one_that_was_killed_is_not(tmp_path: Path) -> None:
    first, second = (BrokerProcess(tmp_path / "data", "a") for _ in range(2))
    try:
        first.start().wait_role("master")
        second.start()
        assert second.wait() == 2
        said = second.log.read_text()
        assert f"a broker named a runs already: pid {first.pid} on " in said
        assert "--name NAME" in said
        assert sorted(path.name for path in (tmp_path / "data" / "index").iterdir() if path.is_dir()) == ["a"]
        first.kill()
        second.start().wait_role("master")
        assert "in memory only" not in second.log.read_text()
    finally:
        first.stop()
        second.stop()
