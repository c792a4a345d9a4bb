#!/bin/sh
# The image's entry point. It runs its arguments. Spark on Kubernetes passes `executor` to the pods of
# its executors, with everything else in the environment.
set -eu
if [ "${1:-}" != executor ]; then
    exec "$@"
fi
# SPARK_JAVA_OPT_0, _1, …: one Java option each, which may contain spaces.
set --
for name in $(env | sed -n 's/^\(SPARK_JAVA_OPT_[0-9]*\)=.*/\1/p' | sort -t_ -k4 -n); do
    set -- "$@" "$(printenv "$name")"
done
exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CLASSPATH:-}:$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
