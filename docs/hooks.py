"""Additions to MkDocs: pages of kept results, links as in the repository, notebooks, and the code of the gallery."""

import importlib.util
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages of results, and the files that they show or link to.
KEPT = ("results/README.md", "results/*/README.md", "results/*/*.png", "results/*/*.csv", "benchmarks/*/results/*.md")
# Optional: without jupytext, tutorials have no link to a notebook.
HAS_NOTEBOOKS = importlib.util.find_spec("jupytext") is not None
# Pages that are a section by themselves, like those of results: they need no navigation at the side.
ALONE = ("index.md", "start.md", "gallery.md", "experiments.md")
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the kept results to the site, at the paths that they have in the repository."""
    for pattern in KEPT:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, abs_src_path=str(path)))
    if HAS_NOTEBOOKS:
        notebooks = _script("notebooks")
        for page in notebooks.pages():
            content = notebooks.text_of(notebooks.make(page))
            files.append(File.generated(config, f"tutorials/{page.stem}.ipynb", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files, **_: Any) -> str:
    """Resolve links that leave docs/ to a page of the site or to the repository, and insert the code of the gallery."""
    uri = page.file.src_uri
    if uri == "gallery.md":
        markdown = _script("gallery").expand(markdown)
    if uri in ALONE or uri.startswith(("results/", "benchmarks/")):
        page.meta["hide"] = ["navigation"]
    notebook = f"{posixpath.splitext(uri)[0]}.ipynb"
    if files.get_file_from_path(notebook) is not None:
        title, rest = markdown.split("\n", 1)
        markdown = f"{title}\n\n[Download this page as a notebook]({posixpath.basename(notebook)})\n{rest}"
    place = uri if uri.startswith(("results/", "benchmarks/")) else f"docs/{uri}"

    def resolve(match: re.Match) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), match[2]))
        if target.startswith("docs/"):
            return match[0] if place.startswith("docs/") else match[1] + _relative(target[5:], uri)
        if files.get_file_from_path(target) is not None:
            return match[1] + _relative(target, uri)
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{match[1]}{config.repo_url.rstrip('/')}/{kind}/main/{target}"

    return LINK.sub(resolve, markdown)


def _relative(target: str, uri: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(uri) or ".")


def _script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
