"""Who holds each file: what `store why` says, said of the journal alone, in tables."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: the extra spark")

from pipeline_histories import Life

from broker.pipeline.columns import MARKS, RECORDS
from broker.pipeline.jobs.effects import MARK_COLUMNS, RECORD_COLUMNS
from broker.pipeline.jobs.holding import Journal, journals
from broker.pipeline.jobs.pins import judged
from broker.pipeline.jobs.tables import Sources
from broker.pipeline.stores import journal_files
from journal.files import JournalFiles
from store.why.copied import copy_facts
from store.why.explain import Place, explain
from store.why.facts import Facts
from store.why.offline import read_state
from store.why.report import Why

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.service

SEED = int(os.environ.get("TANDEMMQ_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
IS_THOROUGH = os.environ.get("TANDEMMQ_THOROUGH") == "1"
LIVES = 24 if IS_THOROUGH else 5
STEPS = 120


def of_the_broker(directory: Path) -> tuple[Facts, Why]:
    """What `store why` knows of a store that is written to, and what it says."""
    with read_state(str(directory), is_live=False) as follower:
        files = JournalFiles(str(directory))
        sizes = {file: files.size(file) for file in files.list()}
        facts = copy_facts(lambda ask: ask(follower.state), follower.chronicle, sizes, is_written=True)
        place = Place(files, 64 << 10, True)
        return facts, explain(lambda ask: ask(follower.state), place, follower.chronicle, 0)


def of_the_journal(spark: SparkSession, *directories: Path) -> list[Journal]:
    sources = Sources(tuple(map(str, directories)), is_tail_wanted=True)
    return journals(
        sources.read(spark, RECORDS, RECORD_COLUMNS),
        sources.read(spark, MARKS, MARK_COLUMNS),
        journal_files(sources.paths, is_tail_wanted=True),
    )


def told(facts: Facts) -> dict[int, Any]:
    """All that is known of each file, with owners by name instead of number."""
    names = {number: (o.destination, o.client_id, o.subscription_name) for number, o in facts.owners.items()}
    return {
        file: {
            "size": known.size,
            "live": (known.live, known.live_bytes),
            "holders": {names[owner]: holder for owner, holder in known.holders.items()},
            "pins": known.pins,
            "records": sorted(str(names[number]) for number, owner in facts.owners.items() if file in owner.records),
            "transactions": {
                each.key: (each.is_prepared, each.operations.get(file, 0), each.prepared_in == file)
                for each in facts.transactions
                if file in each.files
            },
            "goes": file in facts.reclaimable,
        }
        for file, known in facts.files.items()
    }


def same_answer(journal: Journal, directory: Path) -> None:
    facts, why = of_the_broker(directory)
    assert told(journal.facts) == told(facts), f"{directory}, TANDEMMQ_SEED={SEED}"
    pins, verdicts = judged(journal)
    assert [(v.file, v.state, v.bytes, v.live_messages, v.live_bytes) for v in verdicts] == [
        (f.file, f.state, f.bytes, f.live_messages, f.live_bytes) for f in why.files
    ]
    for file in why.files:
        mine = [pin for pin in pins if pin.file == file.file]
        assert {pin.ref_file for pin in mine if pin.reason == "acks_of"} == set(file.pins if mine else ())
        assert sum(pin.items or 0 for pin in mine if pin.reason == "message") == sum(h.count for h in file.holders)


def test_the_journal_alone_says_what_the_broker_says(spark: SparkSession, tmp_path: Path) -> None:
    print(f"TANDEMMQ_SEED={SEED}")
    chance = random.Random(SEED)
    directories = []
    for number in range(LIVES):
        directory = tmp_path / f"store-{number:02}"
        directory.mkdir()
        life = Life(str(directory), random.Random(chance.random()))
        life.go_on(STEPS)
        life.term.close()
        directories.append(directory)

    found = of_the_journal(spark, *directories)

    assert [journal.store for journal in found] == list(map(str, directories))
    for journal, directory in zip(found, directories, strict=True):
        same_answer(journal, directory)
