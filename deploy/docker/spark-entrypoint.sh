#!/bin/bash
# What Spark's scheduler for Kubernetes asks of its image: `driver …`, `executor`, or any other command as it is.
set -eu
role=${1:-bash}
[ $# -eq 0 ] || shift
case $role in
  driver)
    set -- "$SPARK_HOME/bin/spark-submit" --deploy-mode client \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" "$@"
    ;;
  executor)
    options=()
    for ((i = 0; ; i++)); do
      name=SPARK_JAVA_OPT_$i
      [ -n "${!name+x}" ] || break
      options+=("${!name}")
    done
    set -- "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*:${SPARK_CLASSPATH:-}" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *) set -- "$role" "$@" ;;
esac
exec tini -s -- "$@"
