"""Reference pages: roles from their argument_specs, plugins from ansible-doc.

A Sphinx extension that writes ``docs/reference/`` before a build, and a command that writes the
generated part of each role's README: ``python docs/reference_pages.py``.
"""

import json
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from antsibull_docs_parser import md
from antsibull_docs_parser.parser import Context, parse

ROOT = Path(__file__).resolve().parent.parent
ROLES = ROOT / "roles"
PLUGINS = ROOT / "collections/ansible_collections/tpufleet/core/plugins"
KINDS = {"inventory": "Inventory", "module": "Modules", "callback": "Terminal view"}
FOLDERS = {"inventory": "inventory", "module": "modules", "callback": "callback"}
INHERITED = {"callback": "ansible.builtin.default"}
"""The ansible-core plugin that a kind of plugin extends; ansible-core documents its options."""

BEGIN, END = "<!-- from meta/argument_specs.yml -->", "<!-- end -->"
Options = Mapping[str, Mapping[str, Any]]


def setup(app: Any) -> dict[str, bool]:
    """Register a hook by which Sphinx writes the pages before it reads the sources."""
    app.connect("config-inited", lambda *_: write_pages(ROOT / "docs" / "reference"))
    return {"parallel_read_safe": True}


def write_pages(directory: Path) -> None:
    """Write a page for each kind of plugin and one for the roles."""
    directory.mkdir(exist_ok=True)
    for kind in KINDS:
        (directory / f"{kind}.md").write_text(plugins_page(kind, documents(kind)))
    (directory / "roles.md").write_text(
        "# Roles\n\n" + "\n\n".join(role_part(role, "##") for role in roles()) + "\n"
    )


def write_readmes() -> None:
    """Update the generated part of each role's README."""
    for role in roles():
        file = role / "README.md"
        file.write_text(readme(file.read_text() if file.exists() else "", role))


def readme(before: str, role: Path) -> str:
    """Return the README ``before`` with the part between BEGIN and END replaced.

    If ``before`` has no such part, return a README that consists only of the generated part.
    """
    part = f"{BEGIN}\n{role_part(role, '#')}\n{END}"
    if BEGIN in before and END in before:
        return before[: before.index(BEGIN)] + part + before[before.index(END) + len(END) :]
    return part + "\n"


def roles() -> list[Path]:
    """Return the directories of roles that have argument_specs."""
    return sorted(spec.parent.parent for spec in ROLES.glob("*/meta/argument_specs.yml"))


def role_part(role: Path, level: str) -> str:
    """Return the description and the variables of each entry point of a role."""
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    defaults = _defaults(role)
    parts, main = [], specs.get("main", {})
    for entry, spec in specs.items():
        name = role.name if entry == "main" else f"{role.name}: {entry}"
        words = [f"{level} {name}", _sentence(spec.get("short_description", ""))]
        if entry == "main" or spec.get("description") != main.get("description"):
            words += [text(paragraph) for paragraph in _several(spec.get("description"))]
        if entry != "main" and spec.get("options") == main.get("options"):
            words.append("It has the variables of the role.")
        elif spec.get("options"):
            words.append(table(spec["options"], defaults))
        parts.append("\n\n".join(filter(None, words)))
        level = "#" * max(2, len(level))
    return "\n\n".join(parts)


def documents(kind: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the output of ansible-doc for all plugins of a kind in the collection."""
    names = sorted(
        f"tpufleet.core.{file.stem}"
        for file in (PLUGINS / FOLDERS[kind]).glob("*.py")
        if not file.stem.startswith("_")
    )
    return _ask(kind, names)


def _ask(kind: str, names: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
    shown = subprocess.run(
        ["ansible-doc", "-t", kind, "-j", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(shown.stdout)


def plugins_page(kind: str, plugins: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page of one kind of plugin."""
    inherited = _ask(kind, [INHERITED[kind]]) if kind in INHERITED else {}
    known = {key for core in inherited.values() for key in core["doc"]["options"]}
    parts = [plugin_part(name, plugin, known) for name, plugin in plugins.items()]
    return "\n\n".join([f"# {KINDS[kind]}", *parts]) + "\n"


def plugin_part(name: str, plugin: Mapping[str, Any], inherited: Collection[str]) -> str:
    """Return the Markdown of a plugin: description, options, examples and return values.

    ``inherited`` has the names of options to leave out, because ansible-core documents them.
    """
    doc = plugin["doc"]
    own = {k: v for k, v in (doc.get("options") or {}).items() if k not in inherited}
    parts = [f"## {name}", _sentence(doc["short_description"])]
    parts += [text(paragraph) for paragraph in _several(doc.get("description"))]
    if own:
        parts += ["### Options", table(own, {})]
    if plugin.get("examples"):
        parts += ["### Examples", f"```yaml\n{plugin['examples'].strip()}\n```"]
    if plugin.get("return"):
        parts += ["### Returns", table(plugin["return"], {})]
    return "\n\n".join(_apart(parts, name))


def table(options: Options, defaults: Mapping[str, Any], within: str = "") -> str:
    """Return a Markdown table of options, each followed by its suboptions.

    ``defaults`` has default values that take precedence over those in ``options``. ``within`` is
    the prefix of the options' names, such as ``data_disks.``.
    """
    rows = list(_rows(options, defaults, within))
    return "\n".join(["| name | type | description |", "|---|---|---|", *rows])


def text(paragraph: str) -> str:
    """Convert Ansible markup to Markdown (docs.ansible.com, "Ansible markup")."""
    marked = md.to_md(parse(paragraph, Context()))
    coded = re.sub(r"<code>(.*?)</code>", lambda m: f"`{_plain(m[1])}`", marked)
    within_words = re.sub(r"(?<=\w)\\_(?=\w)", "_", coded)
    return re.sub(r"\\([^\w\s*`\[\]<>])", r"\1", within_words)


def _rows(options: Options, defaults: Mapping[str, Any], within: str) -> Iterator[str]:
    for key, option in options.items():
        kind = option.get("type", "str")
        if kind == "list" and option.get("elements"):
            kind = f"list of {option['elements']}"
        words = " ".join(text(part) for part in _several(option.get("description")))
        default = defaults.get(key, option.get("default"))
        facts = [
            "**required**" if option.get("required") else "",
            f"one of {_codes(option['choices'])}" if option.get("choices") else "",
            f"default {_code(default)}" if default not in (None, "", [], {}) else "",
        ]
        about = "; ".join(filter(None, facts))
        cell = f"{words} {f'({about})' if about else ''}".replace("|", "\\|").replace("\n", " ")
        yield f"| `{within}{key}` | {kind} | {cell.strip()} |"
        for inner in ("suboptions", "options", "contains"):
            yield from _rows(option.get(inner) or {}, {}, f"{within}{key}.")


def _apart(parts: Sequence[str], name: str) -> Iterator[str]:
    """Yield the parts of a plugin's page, with the plugin's name added to their headings.

    Headings such as "Options" occur for each plugin of a page. Links need unique headings.
    """
    for part in parts:
        yield f"{part} of {name}" if part.startswith("### ") and "\n" not in part else part


def _defaults(role: Path) -> Mapping[str, Any]:
    file = role / "defaults" / "main.yml"
    return (yaml.safe_load(file.read_text()) or {}) if file.exists() else {}


def _several(words: str | Sequence[str] | None) -> Sequence[str]:
    return [words] if isinstance(words, str) else words or []


def _sentence(words: str) -> str:
    return f"{text(words).rstrip('.')}." if words else ""


def _code(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value)
    return f"`{' '.join(shown.split())}`"


def _codes(values: Sequence[Any]) -> str:
    return ", ".join(_code(value) for value in values)


def _plain(code: str) -> str:
    return re.sub(r"</?strong>", "", re.sub(r"\\(.)", r"\1", code))


if __name__ == "__main__":
    write_readmes()
