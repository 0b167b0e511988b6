"""Images of programs on this machine, as `docker save` writes them and `ctr images import` reads them."""

import hashlib
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path


def libraries(program: Path) -> dict[str, Path]:
    """The libraries that a program needs, by the paths at which it looks for them; none if it is static."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return {path: Path(path) for path in re.findall(r"(/\S+) \(0x", told)}


def write_image(archive: Path, name: str, files: dict[str, Path], entrypoint: str) -> None:
    """Writes an image of one layer with these files, by their paths in it. All belong to root and may be executed."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        folders = {str(folder) for path in files for folder in Path(path).parents} | {"/etc", "/tmp", "/run"}
        for folder in sorted(folders - {"/"}):
            entry = tarfile.TarInfo(folder.lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for path, file in sorted(files.items()):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.mode, entry.size = 0o755, file.stat().st_size
            with file.open("rb") as bytes_of_file:
                tar.addfile(entry, bytes_of_file)
    bytes_of_layer = layer.getvalue()
    digest = hashlib.sha256(bytes_of_layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [entrypoint], "Env": ["PATH=/"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
            "history": [{"created_by": "tests/cluster/image.py"}],
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        parts = {
            config_name: config,
            f"{digest}/layer.tar": bytes_of_layer,
            "manifest.json": json.dumps(manifest).encode(),
        }
        for path, content in parts.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
