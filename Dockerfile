# TandemMQ. The same image is master or standby: the lock in /var/lib/tandemmq decides.
#
#   docker build -t tandemmq .
#   docker build -t tandemmq --build-arg BASE=debian:bookworm-slim .
#   docker build -t tandemmq --build-arg COMPILE=0 .    plain Python: a message costs twice the CPU
#
# Clients connect from outside the container, so they are refused until you set up users or allow anonymous clients:
# docker run -e TANDEMMQ_SECURITY__ALLOW_ANONYMOUS=true -p 127.0.0.1:61616:61616 tandemmq
#
# The jobs on journals have their own image, with Spark and Java:
#
#   docker build -t tandemmq-pipeline --target tandemmq-pipeline .
#   docker run --rm -v /data/orders:/var/lib/tandemmq:ro -v /tmp/out:/lake tandemmq-pipeline \
#       pipeline composition /var/lib/tandemmq --out /lake
#
# BASE can be any Debian or Ubuntu with Python 3.11 or newer. If it has no Python, the build installs the package.
# If wheels/ has wheels of the dependencies and of hatchling, the build needs no network, provided that wheels/ also has
# a wheel of TandemMQ (which is installed instead of the source) or COMPILE=0 is set.
# Docker's builder before BuildKit builds all stages up to the target, so use --target tandemmq with it.
ARG BASE=python:3.11-slim

FROM ${BASE} AS python
RUN python3 -c 'import venv, ensurepip' 2>/dev/null \
 || (apt-get update \
  && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
  && rm -rf /var/lib/apt/lists/*)
RUN groupadd --gid 61613 tandemmq \
 && useradd --uid 61613 --gid 61613 --no-create-home --home-dir /var/lib/tandemmq --shell /usr/sbin/nologin tandemmq \
 && install -d -o tandemmq -g tandemmq -m 0700 /var/lib/tandemmq

FROM python AS source
COPY . /source
WORKDIR /source
# The package to install: wheels/tandemmq-*.whl, or this directory.
RUN echo "$(ls -d wheels/tandemmq-*.whl 2>/dev/null || echo .)" >/tandemmq-source
# The final image has no pip and no setuptools, which saves 25 MB.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/tandemmq

# -- the broker --------------------------------------------------------------------------------------------------------

FROM source AS build
# For example EXTRAS=[postgres]
ARG EXTRAS=
# 0: nothing is compiled
ARG COMPILE=1
RUN if [ "$COMPILE" = 1 ] && [ "$(cat /tandemmq-source)" = . ]; then \
        has_headers=$(python3 -c 'import os, sysconfig; print(os.path.exists(sysconfig.get_path("include") + "/Python.h"))') \
     && apt-get update \
     && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends gcc libc6-dev \
            $([ "$has_headers" = True ] || echo python3-dev) \
     && rm -rf /var/lib/apt/lists/*; \
    fi
RUN if [ -d wheels ]; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/source/wheels; fi \
 && TANDEMMQ_COMPILE=$COMPILE /opt/pip/bin/pip --python /opt/tandemmq/bin/python3 install --no-cache-dir --disable-pip-version-check "$(cat /tandemmq-source)${EXTRAS}"

FROM python AS tandemmq
COPY --from=build /opt/tandemmq /opt/tandemmq
ENV PATH=/opt/tandemmq/bin:$PATH PYTHONUNBUFFERED=1
USER tandemmq
WORKDIR /var/lib/tandemmq
VOLUME /var/lib/tandemmq
EXPOSE 61613 61616 8161
# Healthy as master and as standby, but not if a change between the two takes long.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python3", "-IS", "-c", "import socket; c = socket.create_connection(('127.0.0.1', 8161), 4); c.sendall(b'GET /health HTTP/1.0\\r\\n\\r\\n'); raise SystemExit(' 200 ' not in c.makefile().readline())"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tandemmq"]
CMD ["run", "--data", "/var/lib/tandemmq", "--stomp", "0.0.0.0:61613", "--openwire", "0.0.0.0:61616", "--admin", "0.0.0.0:8161"]

# -- the jobs on journals ----------------------------------------------------------------------------------------------

FROM source AS pipeline-build
RUN if [ -d wheels ]; then export PIP_NO_INDEX=1 PIP_FIND_LINKS=/source/wheels; fi \
 && TANDEMMQ_COMPILE=0 /opt/pip/bin/pip --python /opt/tandemmq/bin/python3 install --no-cache-dir --disable-pip-version-check "$(cat /tandemmq-source)[spark]"

FROM python AS tandemmq-pipeline
# Java of the Debian or Ubuntu release: 17 or 21. Spark runs on both.
RUN command -v java \
 || (apt-get update \
  && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends default-jre-headless \
  && rm -rf /var/lib/apt/lists/*)
COPY --from=pipeline-build /opt/tandemmq /opt/tandemmq
# A new volume for results gets the owner of this directory.
RUN install -d -o tandemmq -g tandemmq -m 0750 /lake
ENV PATH=/opt/tandemmq/bin:$PATH PYTHONUNBUFFERED=1
USER tandemmq
WORKDIR /lake
VOLUME /lake
STOPSIGNAL SIGTERM
ENTRYPOINT ["tandemmq"]
CMD ["pipeline", "--help"]

# -- the default target ------------------------------------------------------------------------------------------------

FROM tandemmq
