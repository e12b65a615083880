"""The manifests name jobs that exist, with options that these jobs take."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = sorted((ROOT / "spark-jobs" / "manifests").glob("*.yaml"))
JOBS = sorted((ROOT / "spark-jobs" / "jobs").glob("*.py"))


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_every_job_has_one() -> None:
    assert [each.stem for each in MANIFESTS] == [each.stem for each in JOBS]
    assert len(JOBS) == 4


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_a_spark_application(path: Path) -> None:
    made = _load(path)
    assert made["apiVersion"] == "sparkoperator.k8s.io/v1beta2"
    assert made["kind"] == "SparkApplication"
    spec = made["spec"]
    assert spec["mainApplicationFile"].endswith(f"/jobs/{path.stem}.py")
    assert spec["type"] == "Python"
    locked = re.search(r"^pyspark==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert spec["sparkVersion"] == locked[1]
    assert spec["restartPolicy"]["type"] in {"Always", "OnFailure", "Never"}
    for role in ("driver", "executor"):
        assert {each["name"] for each in spec[role]["volumeMounts"]} == {"data"}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_the_job_takes_these_arguments(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location(
        path.stem, ROOT / "spark-jobs" / "jobs" / f"{path.stem}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    # It ends for want of Java, which it looks for after its options.
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(SystemExit, match="Spark needs Java"):
        job.main(_load(path)["spec"]["arguments"])
