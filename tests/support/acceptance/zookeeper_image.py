"""An image of ZooKeeper for compose files that use the public image, built from Debian's package without pulling
images.

It supports the variables of the public image that the project's files set, and has its data in the same directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.acceptance.docker_image import JAVA, base_image, run

START = r"""#!/bin/sh
set -e
echo "$ZOO_MY_ID" > /data/myid
{
    echo "tickTime=$ZOO_TICK_TIME"
    echo "initLimit=$ZOO_INIT_LIMIT"
    echo "syncLimit=$ZOO_SYNC_LIMIT"
    echo "dataDir=/data"
    echo "dataLogDir=/datalog"
    echo "admin.enableServer=false"
    echo "$ZOO_SERVERS" | tr ' ' '\n'
} > /tmp/zoo.cfg
exec java -Xmx128m -XX:+UseSerialGC -Dzookeeper.jmx.log4j.disable=true -cp /usr/share/java/zookeeper.jar \
    org.apache.zookeeper.server.quorum.QuorumPeerMain /tmp/zoo.cfg
"""
DOCKERFILE = """FROM {base}
COPY start /start
RUN chmod 0755 /start && mkdir /data /datalog
VOLUME ["/data", "/datalog"]
ENTRYPOINT ["/start"]
"""


@contextmanager
def zookeeper_image(context: Path) -> Iterator[str]:
    """Build the image; yield its name. ``context``: an empty directory. The image is removed at the end; its base image
    is kept."""
    (context / "start").write_text(START)
    (context / "Dockerfile").write_text(DOCKERFILE.format(base=base_image("java", JAVA)))
    name = f"zookeeper-test:{os.getpid()}"
    run("docker", "build", "--network", "none", "-t", name, str(context), env={"DOCKER_BUILDKIT": "0"})
    try:
        yield name
    finally:
        run("docker", "image", "rm", "--force", name)
