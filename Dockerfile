# The image of the engine and of Spark's master and workers: Python with lakequeue, which brings
# PySpark, and Java. Driver and executors need the same Python and the same packages, so they are
# one image.
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*

ENV LAKEQUEUE_CACHE=/opt/lakequeue/cache \
    PYSPARK_PYTHON=/usr/local/bin/python \
    PYSPARK_DRIVER_PYTHON=/usr/local/bin/python \
    SPARK_HOME=/usr/local/lib/python3.11/site-packages/pyspark \
    SPARK_NO_DAEMONIZE=1

WORKDIR /opt/lakequeue/source
COPY pyproject.toml README.md __init__.py aio.py ./
COPY bench bench
COPY cli cli
COPY client client
COPY conf conf
COPY dataframes dataframes
COPY definitions definitions
COPY examples examples
COPY expressions expressions
COPY lake lake
COPY memory memory
COPY monitor monitor
COPY protocol protocol
COPY sinks sinks
COPY sources sources
COPY state state
COPY streaming streaming
RUN pip install --no-cache-dir ".[fast,sql]"

# The jars, once per image instead of once per start.
WORKDIR /data
RUN python -m lakequeue.streaming.jars

CMD ["lakequeue", "--help"]
