"""Files for a cluster: this package as a zip for ``spark-submit --py-files``, and a script that starts a job.

In the zip, ``tandemmq`` is one package, as in an installed wheel. Dependencies are not included: workers need pyarrow
and numpy, and the driver also click and rich.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import tandemmq

ZIP_NAME: Final = "tandemmq-pipeline.zip"
SCRIPT_NAME: Final = "submit.py"
SCRIPT: Final = "from tandemmq.cli.pipeline import submit\n\nsubmit()\n"
# Directories that are not included, as in a wheel: jobs do not need them.
_LEFT_OUT: Final = frozenset(("__pycache__", "peers", "reports"))
# Time of all files, the earliest that zip permits, so that the same files give the same zip.
_DATE: Final = (1980, 1, 1, 0, 0, 0)


def package(directory: Path) -> tuple[Path, Path]:
    """Write the zip and the script into ``directory``, which is created if necessary. Return their paths."""
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
    """Yield each file of the package with its name in the zip. In a source tree, the package's directories are
    links."""
    package_directory = Path(tandemmq.__file__).resolve().parent
    for directory, subdirectories, names in os.walk(package_directory, followlinks=True):
        subdirectories[:] = sorted(name for name in subdirectories if name not in _LEFT_OUT)
        for name in sorted(names):
            path = Path(directory, name)
            yield str(Path("tandemmq", path.relative_to(package_directory))), path
