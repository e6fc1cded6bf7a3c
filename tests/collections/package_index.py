"""Wheels, and a package index in a directory (PEP 503), for tests of installations."""

import hashlib
import zipfile
from pathlib import Path

WHEEL = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    body: str = "",
    needs: str = "",
    program: str = "",
) -> str:
    """Create a wheel with one module; return the line that pins the wheel in a lock file.

    ``body`` is the text of the module, ``needs`` a requirement of the package. ``program`` is the
    text of a program that the wheel also has; empty for none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, release = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": body,
        f"{release}.dist-info/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{release}.dist-info/WHEEL": WHEEL,
        f"{release}.dist-info/RECORD": "",
        **({f"{release}.data/scripts/{name}": program} if program else {}),
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return f"{name}=={version} --hash=sha256:{digest_of(path)}\n"


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def publish(index: Path, name: str, version: str, needs: str = "") -> None:
    """Add a wheel to an index."""
    folder = index / name
    make_wheel(folder, name, version, needs=needs)
    links = (
        f'<a href="{file.name}#sha256={digest_of(file)}">{file.name}</a>'
        for file in folder.glob("*.whl")
    )
    (folder / "index.html").write_text("\n".join(links))


def variables(index: Path) -> dict[str, str]:
    """Return environment variables that make uv use only this index."""
    return {"UV_DEFAULT_INDEX": index.as_uri(), "UV_OFFLINE": "1"}
