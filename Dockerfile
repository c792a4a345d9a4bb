# One image for the engine, Spark's master and its workers: Python with lakequeue (which brings
# PySpark) and Java. Driver and executors need the same Python and the same packages.
FROM python:3.11.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

ENV LAKEQUEUE_CACHE=/opt/lakequeue/cache \
    PYSPARK_PYTHON=/usr/local/bin/python \
    PYSPARK_DRIVER_PYTHON=/usr/local/bin/python \
    SPARK_HOME=/usr/local/lib/python3.11/site-packages/pyspark \
    SPARK_NO_DAEMONIZE=1

# No other image uses this user id. A new volume takes its owner from /data.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin lakequeue \
    && mkdir -p /data /opt/lakequeue/cache \
    && chown lakequeue:lakequeue /data /opt/lakequeue/cache

WORKDIR /opt/lakequeue/source
COPY pyproject.toml README.md __init__.py aio.py ./
COPY bench bench
COPY cli cli
COPY client client
COPY conf conf
COPY dataframes dataframes
COPY definitions definitions
COPY earlier earlier
COPY examples examples
COPY expressions expressions
COPY lake lake
COPY memory memory
COPY mesh mesh
COPY monitor monitor
COPY protocol protocol
COPY replica replica
COPY sinks sinks
COPY sources sources
COPY state state
COPY streaming streaming
COPY tasks tasks
RUN pip install --no-cache-dir ".[monitor,sql]"

COPY --chmod=755 deploy/entrypoint.sh /opt/lakequeue/entrypoint.sh

USER 10001:10001
# The jars, once per image instead of once per start.
WORKDIR /data
RUN python -m lakequeue.streaming.jars

ENTRYPOINT ["/opt/lakequeue/entrypoint.sh"]
CMD ["lakequeue", "--help"]
