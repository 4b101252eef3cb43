"""What a cluster is handed: this package as a zip for ``spark-submit --py-files``, and the script that starts a job.

In the zip the rooms and ``tandemmq`` stand on top, as in the tree: whoever has it on the path imports ``broker``
without more ado, also where it was made from an installed wheel. It holds no dependency: workers need pyarrow and
numpy, the driver click and rich, too.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import broker
import tandemmq

ZIP_NAME: Final = "tandemmq-pipeline.zip"
SCRIPT_NAME: Final = "submit.py"
SCRIPT: Final = "from broker.cli.pipeline.submit import main\n\nmain()\n"
_ROOMS: Final = ("broker", "config", "index", "journal", "locker", "store")
# The same files give the same zip: zip's own beginning of time.
_DATE: Final = (1980, 1, 1, 0, 0, 0)


def package(directory: Path) -> tuple[Path, Path]:
    """Write the zip and the script into ``directory``, which is made if need be; returns where they stand."""
    directory.mkdir(parents=True, exist_ok=True)
    archive, script = directory / ZIP_NAME, directory / SCRIPT_NAME
    fresh = directory / f".{ZIP_NAME}.fresh"
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as written:
        for name, path in _files():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            written.writestr(entry, path.read_bytes())
    fresh.replace(archive)
    script.write_text(SCRIPT, encoding="utf-8")
    return archive, script


def _files() -> Iterator[tuple[str, Path]]:
    root = Path(broker.__file__).resolve().parents[1]
    for room in _ROOMS:
        for path in sorted((root / room).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(root)), path
    # In a wheel the rooms are below it.
    for path in sorted(Path(tandemmq.__file__).resolve().parent.glob("*.py")):
        yield f"tandemmq/{path.name}", path
