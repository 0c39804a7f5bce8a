"""Hooks of mkdocs: the pages that are made from code (commands, notebooks) or lie outside of docs/, and equations.

Equations become MathML when the site is built, so that readers need no script. Notebooks are the sources in notebooks/;
`make docs` executes them first, and their outputs are shown; without outputs only the code is.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import typer
from latex2mathml.converter import convert as to_mathml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# In this order; the others follow.
FIRST_TUTORIALS = ("first_fusion", "real_pair", "choosing_a_method", "larger_than_memory")
EXECUTED = ROOT / "build" / "notebooks"
ROOT_PAGES = ("ARCHITECTURE.md", "GLOSSARY.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
# Shown by code hosts; the site would need a script for it.
DIAGRAM = re.compile(r"```mermaid\n.*?```", re.DOTALL)
EXAMPLE = re.compile(r"^\s*\[dim\](.*?)\[/dim\]\s*$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in ROOT_PAGES:
        files.append(File.generated(config, name.lower(), content=root_page(name)))
    files.append(File.generated(config, "commands.md", content="".join(commands_page())))
    tutorials = []
    found = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.py"))}
    for source in [found[name] for name in dict.fromkeys([*FIRST_TUTORIALS, *found])]:
        page = f"notebooks/{source.stem}.md"
        text, images = notebook_page(source)
        files.append(File.generated(config, page, content=text))
        for name, data in images.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
        tutorials.append(page)
    for section in config.nav or []:
        if "Tutorials" in section:
            section["Tutorials"] = tutorials
    listed = str(config.nav)
    others = [file.src_uri for file in files.documentation_pages() if file.src_uri not in listed]
    if others and config.nav:
        config.nav.append({"More": others})
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def rendered(found: re.Match[str]) -> str:
        if found[1] == "span":
            return to_mathml(unescape(found[2]))
        # A wide equation scrolls, not the page.
        return f'<div class="equation">{to_mathml(unescape(found[2]), display="block")}</div>'

    return EQUATION.sub(rendered, html)


def root_page(name: str) -> str:
    """A page beside README.md, with its links as seen from docs/."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    text = DIAGRAM.sub("![Data flow from two files to the fused cube](images/data_flow.svg)", text)
    for other in ROOT_PAGES:
        text = text.replace(f"]({other}", f"]({other.lower()}")
    return text


def commands_page() -> Iterator[str]:
    """Every command with its arguments and options, as the parser knows them."""
    from hyperfuse.cli.app import COMMANDS, app

    app.registered_commands.clear()
    for function in COMMANDS:
        app.command()(function)
    group: Any = typer.main.get_command(app)
    yield "# Commands\n\nGenerated from the command line itself; `hyperfuse COMMAND --help` prints the same. "
    yield "Every command also takes `-q` (no progress, notes or warnings) and `-v` (more of them). "
    yield "[Options](options.md) lists the same options with their names in Python and in batch lists.\n\n"
    yield "Exit codes: 0 done, 2 invalid input, 1 a bug in hyperfuse, 130 interrupted.\n"
    for name, command in group.commands.items():
        described = "\n".join(line.strip() for line in (command.help or "").splitlines())
        examples = EXAMPLE.findall(command.help or "")
        yield f"\n## hyperfuse {name}\n\n{EXAMPLE.sub('', described).strip()}\n"
        if examples:
            yield "\n" + "".join(f"    {line}\n" for line in examples)
        shown = [each for each in command.params if not getattr(each, "hidden", False)]
        yield "\n| | meaning | default |\n|---|---|---|\n"
        yield from sorted((option_row(each) for each in shown), key=lambda row: row.startswith("| `-"))


def option_row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = ", ".join(parameter.opts)
    if is_option and parameter.secondary_opts:
        names += "/" + ", ".join(parameter.secondary_opts)
    value = "" if getattr(parameter, "is_flag", False) else parameter.metavar or ""
    label = f"{names} {value}".strip() if is_option else parameter.metavar or parameter.name.upper()
    default = parameter.default if parameter.show_default and parameter.default not in (None, False) else ""
    if isinstance(parameter.show_default, str):
        default = parameter.show_default
    needed = "required" if parameter.required else {True: "yes"}.get(default, default)
    cells = (f"`{label}`", " ".join(unescape(parameter.help or "").split()), f"{needed}")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def notebook_page(source: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by name."""
    executed = EXECUTED / f"{source.stem}.ipynb"
    notebook = nbformat.read(executed, as_version=4) if executed.is_file() else jupytext.read(source)
    parts, images = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for number, output in enumerate(cell.get("outputs", [])):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{source.stem}_{len(images) + 1}.png"
                images[name] = base64.b64decode(data["image/png"])
                parts.append(f"![{data.get('text/plain', 'figure')}, output {number + 1}]({name})")
            elif text := (output.get("text") or data.get("text/plain", "")).rstrip():
                parts.append(f'<div class="output" markdown>\n\n```text\n{text}\n```\n\n</div>')
    if not executed.is_file():
        parts.append("*Built without outputs: `make docs` executes the notebooks.*")
    path = source.relative_to(ROOT).as_posix()
    parts.append(f"This page is the notebook `{path}`; `jupytext --to ipynb {path}` makes it one for Jupyter.")
    return "\n\n".join(parts) + "\n", images
