"""Modules whose code stays on the worker: arguments alone travel, and nothing is compiled again.

Ansible sends a module's whole code at each run, and the worker's Python compiles it each time
(decision 0008 has the figures). Here the code of the collection and what it needs of Ansible lies
in the worker's memory, under a name made of its content, and is gone with the next boot. A worker
that hasn't got it says so and gets it; one that can't hold it runs the module as Ansible always
does.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import ansible
from ansible import constants
from ansible.executor.module_common import _BuiltModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.json import Direction, get_module_encoder
from ansible.plugins.action import ActionBase

from ...module_utils.worker import kept_run, setup_arguments, worker_arguments

RULES = {**worker_arguments.BY_MODULE, **setup_arguments.BY_MODULE}
PLACE = "/run/tpufleet/modules"
PROFILE = "legacy"
PACKAGE = "ansible_collections/tpufleet/core/plugins"
KINDS = ("modules", "module_utils")
COLLECTION = Path(__file__).parents[3]
ANSIBLE = Path(ansible.__file__).parent
# What no module of ours imports: half of all. Nor Ansible's own __init__.py, which looks for much.
LEFT_OUT = {"facts", "csharp", "powershell", "_embed", "__pycache__"}


class KeptModules(ActionBase):
    """An action whose modules run on a worker as root, from the code that is kept there."""

    _way = "kept"

    def _execute_module(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Run a module as ever; where its code is missing, once more with it."""
        if not self._keeps(options.get("task_vars") or {}):
            self._way = "own"
        for way in (self._way, "sent", "own"):
            self._way = way
            told = super()._execute_module(*args, **options)
            if not told.pop("kept_modules", None):
                self._way = "own" if way == "own" else "kept"
                break
        return told

    def _keeps(self, task_vars: Mapping[str, Any]) -> bool:
        """Tell whether this is a module's run as root, over ssh, by a Python that is known."""
        user = self.get_become_option("become_user") if self._connection.become else None
        root = (user or self._get_remote_user()) == "root"
        plain = not self._task.async_val and not self._task.delegate_to
        python = interpreter(task_vars)
        return self._connection.transport == "ssh" and root and plain and python.startswith("/")

    def _configure_module(
        self, module_name: str, module_args: dict[str, Any], task_vars: Mapping[str, Any]
    ) -> tuple[_BuiltModule, str]:
        """Give what runs the kept module, in the place of the module with all its code."""
        if self._way == "own" or not module_name.startswith("tpufleet.core."):
            return super()._configure_module(module_name, module_args, task_vars)
        leaf = module_name.rpartition(".")[2]
        name = f"{PACKAGE.replace('/', '.')}.modules.{leaf}"
        arguments, secrets = check_arguments(leaf, module_args)
        encoder = get_module_encoder(PROFILE, Direction.CONTROLLER_TO_MODULE)
        params = json.dumps({"ANSIBLE_MODULE_ARGS": arguments}, cls=encoder)
        content = content_name(Path(constants.DEFAULT_LOCAL_TMP) / "kept-modules")
        # What was edited since the playbook began has another name: "own" follows then.
        sends = self._way == "sent" and digest() == content
        packed = base64.b64encode(pack()).decode() if sends else ""
        call = (f"{PLACE}/{content}", name, params, packed, secrets)
        script = Path(kept_run.__file__).read_text(encoding="utf-8")
        script += f"\n\nrun({', '.join(map(repr, call))})\n"
        python = interpreter(task_vars)
        built = _BuiltModule(
            b_module_data=script.encode(),
            module_style="new",
            shebang=f"#!{python}",
            serialization_profile=PROFILE,
        )
        return built, leaf


class WorkerModule(KeptModules):
    """The action of a module that needs none, but for its code being kept."""

    _supports_check_mode = True
    _supports_diff = True
    _supports_async = True

    def run(
        self, tmp: str | None = None, task_vars: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run the module of the task's own name."""
        super().run(tmp, task_vars)
        return self._execute_module(task_vars=task_vars, wrap_async=bool(self._task.async_val))


def check_arguments(
    module: str, given: dict[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...] | None]:
    """Check a module's arguments as it would itself; give them with their defaults, and what is
    secret of them.

    As they are, and None, where this is left to the module: its refusal is in Ansible's words, and
    a path is the worker's, with its home and its variables.
    """
    rules = RULES.get(module)
    if rules is None:
        return given, None
    own = {name: value for name, value in given.items() if name.startswith("_ansible_")}
    rest = {name: value for name, value in given.items() if name not in own}
    found = ArgumentSpecValidator(**rules).validate(rest)
    paths = worker_paths(rules["argument_spec"], rest)
    if found.error_messages or {"~", "$"} & set("".join(paths)):
        return given, None
    return {**found.validated_parameters, **own}, tuple(map(str, found._no_log_values))


def worker_paths(spec: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """Name the paths of the worker's that were given, those of an option's own options too."""
    for name, rule in spec.items():
        value = given.get(name)
        if rule["type"] == "path":
            yield str(value)
        for part in value if isinstance(value, list) else [value]:
            if "options" in rule and isinstance(part, Mapping):
                yield from worker_paths(rule["options"], part)
            elif "options" in rule:
                yield str(part)  # a dictionary that is still written out


def interpreter(task_vars: Mapping[str, Any]) -> str:
    """Give the worker's Python, or a word of Ansible's for one that is still to be found."""
    return str(constants.config.get_config_value("INTERPRETER_PYTHON", variables=dict(task_vars)))


def files() -> Iterator[tuple[str, Path]]:
    """Name the files that modules need on a worker: where each is to lie, and where it is here."""
    plugins = COLLECTION / "plugins"
    for kind in KINDS:
        for file in sorted((plugins / kind).rglob("*.py")):
            yield f"{PACKAGE}/{file.relative_to(plugins)}", file
    for file in sorted((ANSIBLE / "module_utils").rglob("*.py")):
        within = file.relative_to(ANSIBLE)
        if not LEFT_OUT & set(within.parts):
            yield f"ansible/{within}", file


@cache
def read() -> tuple[tuple[str, bytes], ...]:
    """Read them."""
    own = {"ansible/__init__.py": f'__version__ = "{ansible.__version__}"\n'.encode()}
    # A regular package of these names elsewhere would come before one without this file.
    parts = PACKAGE.split("/")
    own |= {"/".join([*parts[:end], "__init__.py"]): b"" for end in range(1, len(parts) + 1)}
    sent = dict(files())
    packages = {name.rpartition("/")[0] for name in sent if name.startswith(f"{PACKAGE}/")}
    own |= {f"{package}/__init__.py": b"" for package in sorted(packages)}
    return (*own.items(), *((name, file.read_bytes()) for name, file in sent.items()))


def content_name(known: Path) -> str:
    """Name the code by its content. The playbook's first process to ask reads it all; the others
    find the name in the file ``known``."""
    with known.open("a+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        name = file.read()
        if not name:
            name = digest()
            file.write(name)
        return name


def digest() -> str:
    """Name what was read by its content."""
    sums = hashlib.sha256()
    for path, text in read():
        sums.update(f"{path}\0{len(text)}\0".encode() + text)
    return sums.hexdigest()[:16]


def pack() -> bytes:
    """Zip them."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as pack_:
        for name, text in read():
            pack_.writestr(name, text)
    return packed.getvalue()
