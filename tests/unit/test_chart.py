"""The chart, as far as it can be checked without Helm: its README, its schema and its CRDs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tailrace_operator.spec import DRILLS, read_cluster, read_drill

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "tailrace"


def test_the_readme_is_made_of_the_values() -> None:
    script = ROOT / "deploy" / "helm" / "readme.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, "run `make chart-readme`"


def test_the_schema_knows_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert list(_unknown(values, schema, schema, "")) == []


def _unknown(value: Any, about: Any, schema: Any, path: str) -> Iterator[str]:
    while "$ref" in about:
        about = schema["definitions"][about["$ref"].rpartition("/")[2]]
    properties = about.get("properties")
    if not isinstance(value, dict) or properties is None:
        return
    for key, each in value.items():
        if key in properties:
            yield from _unknown(each, properties[key], schema, f"{path}.{key}")
        elif about.get("additionalProperties") is False:
            yield f"{path}.{key}"


def _definition(name: str) -> Any:
    found = yaml.safe_load((CHART / "crds" / f"{name}.yaml").read_text(encoding="utf-8"))
    return found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


def test_the_definition_of_a_drill_is_what_the_operator_reads() -> None:
    properties = _definition("drill")["properties"]
    assert tuple(properties["kind"]["enum"]) == DRILLS
    examples: dict[str, Any] = {
        "cluster": "c",
        "kind": "roll",
        "schedule": "0 3 * * *",
        "suspended": True,
        "recordsPerSecond": 7,
        "partitions": 3,
        "warmup": "9s",
        "holdFor": "8s",
        "timeout": "7m",
        "maxUnavailable": "6s",
        "node": "n",
        "keepTopic": True,
    }
    assert examples.keys() == properties.keys()
    plain = read_drill("d", {"cluster": "c", "kind": "kill-leader"})
    given = read_drill("d", examples)
    same = [name for name in plain.__slots__ if getattr(plain, name) == getattr(given, name)]
    # Everything that can be written is read, and into a field of its own.
    assert same == ["name", "cluster"]


@pytest.mark.parametrize("name", ["cluster", "topic", "drill"])
def test_every_resource_has_columns_a_status_and_a_schema(name: str) -> None:
    found = yaml.safe_load((CHART / "crds" / f"{name}.yaml").read_text(encoding="utf-8"))
    version = found["spec"]["versions"][0]
    assert version["subresources"]["status"] == {}
    assert len(version["additionalPrinterColumns"]) >= 5
    assert _definition(name)["required"]


def test_defaults_of_the_definition_are_those_of_the_operator() -> None:
    properties = _definition("cluster")["properties"]
    spec = read_cluster("c", "n", {"image": "i", "etcd": {"endpoints": ["e:1"]}})
    assert properties["brokers"]["properties"]["replicas"]["default"] == spec.brokers.replicas
    storage = properties["brokers"]["properties"]["storage"]["properties"]
    assert storage["size"]["default"] == spec.storage.size
    assert properties["controllers"]["properties"]["replicas"]["default"] == 2


@pytest.mark.parametrize(("values", "crd"), [("topics", "topic"), ("drills", "drill")])
def test_the_schema_knows_what_the_definition_does(values: str, crd: str) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    known = schema["properties"][values]["additionalProperties"]["properties"]
    assert set(known) == set(_definition(crd)["properties"]) - {"cluster"}
    if crd == "drill":
        assert tuple(known["kind"]["enum"]) == DRILLS
