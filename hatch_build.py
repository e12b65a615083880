"""Makes `tailrace.v1` from the .proto files: a step of every build, and what `make proto` runs.

Generated code is never committed. The build calls `ProtobufHook`; `python hatch_build.py` makes the
same files in place. The folder is made anew each time, so that nothing outlives its .proto file.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SERVICE = re.compile(r"^service\s", re.MULTILINE)
_INIT = '"""Generated from proto/tailrace/v1 by the build: do not edit."""\n'


class ProtobufHook(BuildHookInterface[Any]):
    """Generates before a wheel or an editable install is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate(Path(self.root))


def generate(root: Path) -> list[Path]:
    """Write the package `tailrace.v1` below `root`/services and return its files."""
    sources = sorted((root / "proto").glob("tailrace/v1/*.proto"))
    if not sources:
        raise FileNotFoundError(f"there are no .proto files below {root / 'proto'}")
    target = root / "services" / "tailrace" / "v1"
    with tempfile.TemporaryDirectory(prefix="tailrace-proto-") as folder:
        out = Path(folder)
        _compile(root / "proto", sources, out)
        made = out / "tailrace" / "v1"
        (made / "__init__.py").write_text(_INIT, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(made, target)
    return sorted(target.iterdir())


def _compile(proto_root: Path, sources: list[Path], out: Path) -> None:
    _protoc(
        proto_root,
        sources,
        f"--python_out={out}",
        f"--plugin=protoc-gen-mypy={_program('protoc-gen-mypy')}",
        f"--mypy_out=quiet:{out}",
    )
    # The gRPC plugin writes an empty module for a file without services, which nobody needs.
    services = [path for path in sources if _SERVICE.search(path.read_text(encoding="utf-8"))]
    if services:
        _protoc(
            proto_root,
            services,
            f"--grpc_python_out={out}",
            f"--plugin=protoc-gen-mypy_grpc={_program('protoc-gen-mypy_grpc')}",
            f"--mypy_grpc_out=quiet:{out}",
        )


def _protoc(proto_root: Path, sources: list[Path], *options: str) -> None:
    well_known = resources.files("grpc_tools") / "_proto"
    arguments = ["protoc", f"-I{proto_root}", f"-I{well_known}", *options, *map(str, sources)]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc refused the .proto files; its reasons are above")


def _program(name: str) -> str:
    # Beside this Python in a venv that is not activated; on PATH in an isolated build.
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is missing: install mypy-protobuf")
    return found


if __name__ == "__main__":
    for path in generate(Path(__file__).resolve().parent):
        print(path.relative_to(Path(__file__).resolve().parent))  # noqa: T201
