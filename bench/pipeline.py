"""``python -m tandemmq.bench --scenario pipeline``: cost of reading a journal with Spark, beside the decoder alone.

Journals are written once (bench.mixed_journal), and read in the same run by plain processes, by the data source on two
threads of Spark, and by ``binaryFile`` with the same decoder in Spark's workers. Same columns, same aggregate.
"""

import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tandemmq.bench.driver.process import peak_bytes
from tandemmq.bench.journals import FILE_BYTES, write_mixed_journal
from tandemmq.bench.report import Say, head
from tandemmq.pipeline import columns, walk
from tandemmq.pipeline.arrow import record_batches
from tandemmq.pipeline.stores import journal_files
from tandemmq.pipeline.walk import JournalFile

# ---- decoders: of journals in plain processes, and of bytes in memory

KEYS = ("command", "destination")
RECORDS = columns.RECORDS
MESSAGES = columns.MESSAGES


class Decoded(NamedTuple):
    """Work of a process between ``start`` and ``stop``, seconds of the machine's clock."""

    start: float
    stop: float
    cpu_seconds: float
    rows: int
    peak_bytes: int


def closed_files(directory: Path, last: int | None = None) -> list[JournalFile]:
    """Return the closed files, up to the number ``last``."""
    return journal_files([str(directory)], last=last)


def decode_in_processes(files: Sequence[JournalFile], table: str, processes: int) -> list[Decoded]:
    """Decode ``files`` in this many processes, which all begin at once when each has warmed up."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    ends, started = [], []
    for number in range(processes):
        end, far_end = context.Pipe(duplex=False)
        process = context.Process(target=_decode, args=(files[number::processes], table, barrier, far_end))
        process.start()
        far_end.close()  # so that the early end of a process is noticed
        ends.append(end)
        started.append(process)
    found = [end.recv() for end in ends]
    for process in started:
        process.join()
    return found


def _decode(files: Sequence[JournalFile], table: str, barrier: Barrier, end: Connection) -> None:
    read = count_records if table == RECORDS else read_all
    read(files[:1])
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    rows = read(files)
    end.send(Decoded(start, time.monotonic(), time.process_time() - cpu, rows, peak_bytes(os.getpid())))


def count_records(files: Sequence[JournalFile]) -> int:
    """Count records by command and destination, as the query for Spark does. Return the total."""
    sums: pa.Table | None = None
    for file in files:
        parts = [] if sums is None else [sums]
        for batch in record_batches(file, RECORDS, KEYS):
            grouped = pa.Table.from_batches([batch]).group_by(list(KEYS)).aggregate([([], "count_all")])
            parts.append(grouped.rename_columns([*KEYS, "count"]))
        sums = pa.concat_tables(parts).group_by(list(KEYS)).aggregate([("count", "sum")])
        sums = sums.rename_columns([*KEYS, "count"])
    return 0 if sums is None else sum(sums.column("count").to_pylist())


def read_all(files: Sequence[JournalFile]) -> int:
    """Read all columns of all messages, bodies included, and discard them. Return the number of messages."""
    return sum(batch.num_rows for file in files for batch in record_batches(file, MESSAGES))


class BufferFile:
    """A journal file whose bytes came from Spark: the pipeline opens it as if it were on a disk."""

    def __init__(self, content: pa.Buffer) -> None:
        self._content = content

    def read(self, offset: int, length: int) -> bytes:
        start = min(offset, self._content.size)
        found: bytes = self._content.slice(start, min(length, self._content.size - start)).to_pybytes()
        return found

    def data_from(self, offset: int) -> int:
        return offset

    def size(self) -> int:
        size: int = self._content.size
        return size

    def close(self) -> None:
        pass

    def release(self) -> None:
        pass


def decode_buffer(file: JournalFile, content: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Decode the same columns with the same decoder from bytes in memory."""
    setattr(walk, "open_file", lambda path, access=(): BufferFile(content))  # noqa: B010 - imported name
    yield from record_batches(file, RECORDS, KEYS)


# ---- the scenario

BIG_FILE_BYTES = 1 << 30
PANDAS = "pandas>=2.2,<3"  # mapInArrow imports it; the source does not
SPARK_SECONDS_MAX = 3600.0


def pipeline(
    journal_bytes: int, composition_bytes: int, rounds: int, directory: Path | None, say: Say
) -> dict[str, object]:
    """Read ``journal_bytes`` each way, and compose ``composition_bytes``; one journal serves both. Journals in
    ``directory`` are kept for the next run; without it they are removed."""
    with ExitStack() as stack:
        work = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-pipeline-")))
        journal, big = work / "journal", work / "big"
        _build(journal, max(journal_bytes, composition_bytes), FILE_BYTES, say)
        _build(big, min(BIG_FILE_BYTES, journal_bytes), min(BIG_FILE_BYTES, journal_bytes), say)
        files = closed_files(journal, max(1, journal_bytes // FILE_BYTES))
        size = sum(file.size for file in files)
        last = files[-1].file

        plain = [_plain(files, RECORDS, count, say) for _ in range(rounds) for count in (1, 2)]
        spark = _spark("aggregates", journal, last, rounds, work, say, with_pandas=True)
        plain += [_plain(files, RECORDS, count, say) for _ in range(rounds) for count in (1, 2)]
        one, two = (_middle(plain[start::2], size) for start in (0, 1))
        counts = {*spark["records"].values(), *(run["rows"] for run in plain)}
        assert len(counts) == 1, f"each way counts the same records: {counts}"
        source, binary = (
            _rate(spark["seconds"][name], size, counts, spark["cpu_seconds"][name])
            for name in ("source", "binary_file")
        )

        bodies = [_plain(files, MESSAGES, count, say) for count in (1, 2)]
        small = _spark("bodies", journal, last, rounds, work, say)
        one_big = _spark("bodies", big, 1, 1, work, say)
        composed = _spark("composition", journal, 0, 1, work, say)
    return {
        **head("pipeline"),
        "files": len(files),
        "bytes": size,
        "records": counts.pop(),
        "one_process": one,
        "two_processes": two,
        "source": source,
        "binary_file": binary,
        "source_to_two_processes": round(source["mb_per_second"] / two["mb_per_second"], 2),
        "source_to_binary_file": round(source["mb_per_second"] / binary["mb_per_second"], 2),
        "messages": {
            "one_process": _middle(bodies[:1], size),
            "two_processes": _middle(bodies[1:], size),
            "source": _rate(small["seconds"], size, {bodies[0]["rows"]}),
        },
        "peak_memory_mb": {
            "plain_process": round(max(run["peak_bytes"] for run in bodies) / 1e6),
            f"worker_files_of_{FILE_BYTES >> 20}_mib": round(small["worker_peak_bytes"] / 1e6),
            f"worker_one_file_of_{min(BIG_FILE_BYTES, journal_bytes) >> 20}_mib": round(
                one_big["worker_peak_bytes"] / 1e6
            ),
        },
        "composition": composed,
    }


def _build(directory: Path, size: int, file_bytes: int, say: Say) -> None:
    """Write a journal with more than ``size`` bytes of closed files, unless it exists."""
    if directory.exists():
        if sum(file.size for file in closed_files(directory)) >= size:
            return
        shutil.rmtree(directory)
    say(f"writing {size >> 20} MiB of journal to {directory}")
    write_mixed_journal(directory, size + file_bytes, file_bytes)


def _plain(files: Sequence[JournalFile], table: str, processes: int, say: Say) -> dict[str, Any]:
    found: list[Decoded] = decode_in_processes(files, table, processes)
    taken = max(each.stop for each in found) - min(each.start for each in found)
    rows = sum(each.rows for each in found)
    say(f"{table}, {processes} plain: {taken:.2f} s")
    return {
        "seconds": taken,
        "cpu_seconds": sum(each.cpu_seconds for each in found),
        "rows": rows,
        "peak_bytes": max(each.peak_bytes for each in found),
    }


def _middle(runs: Sequence[Mapping[str, Any]], size: int) -> dict[str, Any]:
    cpu = [run["cpu_seconds"] for run in runs]
    return _rate([run["seconds"] for run in runs], size, {run["rows"] for run in runs}, cpu)


def _rate(seconds: Sequence[float], size: int, rows: set[int], cpu: Sequence[float] = ()) -> dict[str, Any]:
    middle = statistics.median(seconds)
    return {
        "seconds": [round(each, 3) for each in seconds],
        "cpu_seconds": round(statistics.median(cpu), 2) if cpu else None,
        "mb_per_second": round(size / middle / 1e6, 1),
        "records_per_second": round(max(rows) / middle),
    }


def _spark(
    case: str, journal: Path, last: int, rounds: int, work: Path, say: Say, *, with_pandas: bool = False
) -> dict[str, Any]:
    """Run a case of bench.pipeline_spark in a separate process, with pandas beside the packages of this one."""
    room = Path(__file__).resolve().parents[1]
    paths = [str(room)]
    if with_pandas:
        paths.append(str(_pandas(work / "pandas", say)))
    arguments = [case, str(journal), str(last), str(rounds), str(work)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-m", "tandemmq.bench.pipeline_spark", *arguments],
        cwd=room,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=SPARK_SECONDS_MAX,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    say(f"spark, {case}: {found['seconds']}")
    return found


def _pandas(target: Path, say: Say) -> Path:
    if not target.exists():
        say(f"installing {PANDAS} to {target}")
        wanted = [PANDAS, "python-dateutil", "pytz", "tzdata", "six"]
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), *wanted]
        subprocess.run(command, check=True)
    return target
