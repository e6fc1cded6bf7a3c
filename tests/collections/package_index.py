"""A package index in a directory (PEP 503), with packages of one empty module."""

import hashlib
import zipfile
from pathlib import Path


def publish(index: Path, name: str, version: str, needs: str = "") -> None:
    """Add a wheel to an index."""
    folder = index / name
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(
            f"{info}/METADATA", metadata + (f"Requires-Dist: {needs}\n" if needs else "")
        )
        kind = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", kind)
        wheel.writestr(f"{info}/RECORD", "")
    digests = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.whl")
    }
    links = (f'<a href="{name}#sha256={digest}">{name}</a>' for name, digest in digests.items())
    (folder / "index.html").write_text("\n".join(links))


def variables(index: Path) -> dict[str, str]:
    """Return environment variables that make uv use only this index."""
    return {"UV_DEFAULT_INDEX": index.as_uri(), "UV_OFFLINE": "1"}
