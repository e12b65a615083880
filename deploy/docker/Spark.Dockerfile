# Spark with the Tailrace source, sink and jobs, for drivers and executors in Kubernetes.
# BASE_IMAGE is any Debian with Python 3.11 or newer, pip, tini and a Java 17 runtime (JAVA_HOME set).
ARG BASE_IMAGE=eclipse-temurin:17-jre
FROM ${BASE_IMAGE} AS build
WORKDIR /src
COPY deploy/docker/spark-requirements.txt deploy/docker/build-requirements.txt ./
RUN python3 -m venv /opt/python \
 && /opt/python/bin/pip install --disable-pip-version-check --no-deps --require-hashes -r spark-requirements.txt \
 && python3 -m venv /opt/build \
 && /opt/build/bin/pip install --disable-pip-version-check --no-deps --require-hashes -r build-requirements.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY proto proto
COPY services services
COPY operators operators
COPY spark-jobs spark-jobs
RUN /opt/build/bin/python -m hatchling build -t wheel -d /tmp/wheel \
 && /opt/python/bin/pip install --disable-pip-version-check --no-deps /tmp/wheel/*.whl \
 && /opt/python/bin/pip uninstall -y -q pip setuptools

FROM ${BASE_IMAGE}
COPY --from=build /opt/python /opt/python
RUN ln -s /opt/python/lib/python3*/site-packages/pyspark /opt/spark \
 && useradd --uid 10001 --gid 0 --home-dir /work --create-home tailrace && chmod g+w /work
COPY spark-jobs/jobs /opt/tailrace/jobs
COPY --chmod=755 deploy/docker/spark-entrypoint.sh /opt/entrypoint.sh
ENV SPARK_HOME=/opt/spark PYSPARK_PYTHON=/opt/python/bin/python3 PYSPARK_DRIVER_PYTHON=/opt/python/bin/python3 \
    PATH=/opt/python/bin:/opt/spark/bin:/usr/local/bin:/usr/bin:/bin PYTHONUNBUFFERED=1
WORKDIR /work
USER 10001
ENTRYPOINT ["/opt/entrypoint.sh"]
