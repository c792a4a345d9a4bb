"""The Java classes of the shared engine and of its Kafka as archives (class data sharing): Java
processes that later tests start map them, where they would read, check and link one by one.

Of the processor time until a Kafka serves that is two fifths, until an engine's first delivery some
seconds, and the tests start dozens of both. Java leaves an archive alone that is not of its
version, class path or collector. Where none can be made, nothing changes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lakequeue.streaming.kafka_broker import JAVA_OPTIONS
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

SPARK_OPTIONS = "SPARK_SUBMIT_OPTS"  # spark-submit hands it to the driver's Java
RECORD = "-XX:+IgnoreUnrecognizedVMOptions -XX:+RecordDynamicDumpInfo"
WORDS = "[Ljava.lang.String;"
WRITE = "-XX:+IgnoreUnrecognizedVMOptions -XX:ArchiveClassesAtExit"


class Archives:
    """In a folder of the session: `recorded`, `write_spark`, `use`, once each; later calls do
    nothing."""

    def __init__(self, folder: Path) -> None:
        self._spark, self._kafka = folder / "spark.jsa", folder / "kafka.jsa"
        self._used = False

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """What is started within is archived: Kafka's classes when its process ends in order."""
        with contextlib.ExitStack() as stack:
            if not self._used:
                stack.enter_context(_added(SPARK_OPTIONS, RECORD))
                stack.enter_context(_added(JAVA_OPTIONS, f"{WRITE}={self._kafka}"))
            yield

    def write_spark(self) -> None:
        """The archive of the Java process of this process's session, which goes on."""
        gateway = SparkContext._gateway
        if gateway is None or self._used:
            return
        jvm = gateway.jvm
        object_, string = jvm.java.lang.Object, jvm.java.lang.String

        def array(kind: Any, *items: Any) -> Any:
            made = gateway.new_array(kind, len(items))
            for at, item in enumerate(items):
                made[at] = item
            return made

        words = array(string, "dynamic_dump", str(self._spark))
        command = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
        given = array(object_, command, "vmCds", array(object_, words), array(string, WORDS))
        beans = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
        # By its interface: the class of the server is Java's own, and hidden.
        methods = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethods()
        (invoke,) = [method for method in methods if method.getName() == "invoke"]
        with contextlib.suppress(Py4JJavaError):  # a Java that has no such command
            invoke.invoke(beans, given)

    def use(self) -> None:
        """From here on, by all that is started."""
        if self._used:
            return
        self._used = True
        for variable, archive in ((SPARK_OPTIONS, self._spark), (JAVA_OPTIONS, self._kafka)):
            if archive.exists():
                use = f"-Xlog:cds*=off -XX:SharedArchiveFile={archive}"
                os.environ[variable] = f"{os.environ.get(variable, '')} {use}".strip()


@contextlib.contextmanager
def _added(variable: str, words: str) -> Iterator[None]:
    before = os.environ.get(variable)
    os.environ[variable] = f"{before or ''} {words}".strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
