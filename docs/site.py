"""What the site has beyond the pages: lists, the services of the .proto files, no dead links.

MkDocs calls the functions here (`hooks` in mkdocs.yml). The pages are readable without it: links
that leave the folder `docs/` are right in the repository, and become plain text on the site.
"""

from __future__ import annotations

import re
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

ROOT: Final = Path(__file__).resolve().parents[1]
PROTO: Final = ROOT / "proto"

_LINK: Final = re.compile(r"\[([^\]\n]+)\]\(([^)\s]+)\)")
# Where comments of a service and of its methods are, in the numbers of descriptor.proto.
_SERVICE, _METHOD, _MESSAGE, _FIELD = 6, 2, 4, 2


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by MkDocs for each page."""
    source = Path(page.file.src_path)
    if "<!-- pages -->" in markdown:
        markdown = markdown.replace("<!-- pages -->", pages(ROOT / "docs" / source.parent))
    if "<!-- services -->" in markdown:
        markdown = markdown.replace("<!-- services -->", services())
    return inward(markdown, ROOT / "docs" / source.parent)


def inward(markdown: str, folder: Path) -> str:
    """Links to files that are not part of the site become the text that they have."""
    docs = ROOT / "docs"

    def link(found: re.Match[str]) -> str:
        text, target = found[1], found[2].split("#")[0]
        if not target or "://" in target:
            return found[0]
        path = (folder / target).resolve()
        if not path.exists():
            raise FileNotFoundError(f"{found[0]} leads nowhere: {path} is not there")
        if path.is_relative_to(docs) and (path.is_file() or not target):
            return found[0]
        if path.is_relative_to(docs) and (path / "index.md").is_file():
            return f"[{text}]({target.rstrip('/')}/index.md)"
        where = path.relative_to(ROOT)
        return text if "`" in text else f"{text} (`{where}`)"

    return _LINK.sub(link, markdown)


def pages(folder: Path) -> str:
    """A list of the pages of a folder: the title, and what the first paragraph says."""
    lines = []
    for path in sorted(folder.glob("*.md")):
        if path.name != "index.md":
            title, _, rest = path.read_text(encoding="utf-8").partition("\n")
            first = " ".join(rest.strip().split("\n\n")[0].split())
            said = f": {first}" if first and not first.startswith(("#", "-", "|")) else ""
            lines.append(f"- [{title.removeprefix('# ')}]({path.name}){said}")
    return "\n".join(lines)


def services() -> str:
    """Every service, method and message of the protocol with its comment."""
    parts = []
    for file in _described():
        comments = {
            tuple(each.path): " ".join(each.leading_comments.split())
            for each in file.source_code_info.location
        }
        for number, service in enumerate(file.service):
            parts.append(f"## {service.name}\n\n{comments.get((_SERVICE, number), '')}\n")
            parts.append("| method | request | response | |\n|---|---|---|---|")
            for at, method in enumerate(service.method):
                said = comments.get((_SERVICE, number, _METHOD, at), "")
                asks = _stream(method.client_streaming) + _message(method.input_type)
                gives = _stream(method.server_streaming) + _message(method.output_type)
                parts.append(f"| `{method.name}` | {asks} | {gives} | {said} |")
            parts.append("")
    parts.append("## Messages\n")
    for file in _described():
        parts += _messages(file)
    return "\n".join(parts)


def _messages(file: FileDescriptorProto) -> list[str]:
    comments = {
        tuple(each.path): " ".join(each.leading_comments.split())
        for each in file.source_code_info.location
    }
    parts = []
    for number, message in enumerate(file.message_type):
        parts.append(f"### {message.name}\n\n{comments.get((_MESSAGE, number), '')}\n")
        if message.field:
            parts.append("| field | number | |\n|---|---|---|")
        for at, field in enumerate(message.field):
            said = comments.get((_MESSAGE, number, _FIELD, at), "")
            parts.append(f"| `{field.name}` | {field.number} | {said} |")
        parts.append("")
    return parts


def _described() -> list[FileDescriptorProto]:
    sources = sorted(str(path) for path in PROTO.glob("tailrace/v1/*.proto"))
    include = str(resources.files("grpc_tools") / "_proto")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        code = protoc.main(
            [
                "protoc",
                f"-I{PROTO}",
                f"-I{include}",
                f"--descriptor_set_out={out}",
                "--include_source_info",
                *sources,
            ]
        )
        if code:
            raise RuntimeError(f"protoc ended with {code}")
        return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def _stream(is_stream: bool) -> str:
    return "stream of " if is_stream else ""


def _message(name: str) -> str:
    short = name.rsplit(".", 1)[1]
    return f"[{short}](#{short.lower()})"
