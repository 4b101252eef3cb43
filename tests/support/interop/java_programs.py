"""Programs in Java beside the libraries of an installed ActiveMQ: compiled once, and run with what they read."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

LIBRARIES = Path("/usr/share/activemq/lib")
SOURCES = Path(__file__).parent / "java"
JAVA_SECONDS_MAX = 90
COMPILE_SECONDS_MAX = 300

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tandemmq</groupId><artifactId>client</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.activemq</groupId><artifactId>activemq-client</artifactId><version>6.3.1</version>
  </dependency></dependencies>
</project>
"""

#: `program(*arguments, text="")`: what it prints.
Program = Callable[..., str]


def compiled(
    require_service: Callable[[object, str], None], directory: Path, *sources: Path, path: str = f"{LIBRARIES}/*"
) -> None:
    """The classes of ``sources``, in ``directory``. Without a JDK or ActiveMQ the test is skipped, or fails."""
    require_service(shutil.which("java") and shutil.which("javac"), "no JDK: java and javac are not in the path")
    for jar in ("activemq-client.jar", "activemq-kahadb-store.jar"):
        require_service((LIBRARIES / jar).exists(), f"no ActiveMQ: {LIBRARIES} has no {jar}")
    options = ["-J-XX:TieredStopAtLevel=1", "-nowarn", "-encoding", "UTF-8", "-cp", path, "-d", str(directory)]
    _run(["javac", *options, *map(str, sources)], "", COMPILE_SECONDS_MAX)


def compiled_for_jakarta(require_service: Callable[[object, str], None], directory: Path, *sources: Path) -> str:
    """As ``compiled``, against activemq-client 6.3.1, which comes from Maven's repository and has jakarta.jms in place
    of javax.jms: the class path."""
    require_service(shutil.which("mvn"), "no Maven: mvn is not in the path")
    (directory / "pom.xml").write_text(_POM)
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={directory}/jars"]
    _run(["mvn", "-q", "-B", "-f", f"{directory}/pom.xml", *copy], "", COMPILE_SECONDS_MAX)
    changed = []
    for source in sources:
        changed.append(directory / source.name)
        changed[-1].write_text(source.read_text().replace("javax.jms", "jakarta.jms"))
    path = ":".join([str(directory), f"{directory}/jars/*", *map(str, LIBRARIES.glob("jackson-*.jar"))])
    compiled(require_service, directory, *changed, path=path)
    return path


def program(
    require_service: Callable[[object, str], None], directory: Path, name: str, *, optional: bool = False
) -> Program:
    """java/``name``.java; ``optional``: with the libraries of ActiveMQ's directory of that name."""
    compiled(require_service, directory, SOURCES / f"{name}.java")
    path = f"{directory}:{LIBRARIES}/*" + (f":{LIBRARIES}/optional/*" if optional else "")

    def run(*arguments: str, text: str = "") -> str:
        command: Sequence[str] = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, name, *arguments]
        return _run(command, text, JAVA_SECONDS_MAX)

    return run


def _run(command: Sequence[str], text: str, seconds: float) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
