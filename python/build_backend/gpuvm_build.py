"""Builds the wheel: maturin's, with the kernels of the simulated GPU compiled, so that who installs it needs no compiler.

Kernels are compiled by the extension that was built just now, for each transport that the simulated GPU has without further hardware, by
the machine's C++ compiler. Without one there is no wheel. ``--config-settings nvidia=80,90,100`` has those of NVIDIA GPUs of these compute
capabilities in it as well: NVRTC compiles them, which needs no GPU.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from typing import Any, Dict, List, Optional

import maturin
from maturin import *  # noqa: F401,F403 - the hooks that stay maturin's

PRECOMPILED = "gpuvm/precompiled/"


def get_requires_for_build_wheel(config_settings: Optional[Dict[str, Any]] = None) -> List[str]:
    """PEP 517's hook."""
    required: List[str] = maturin.get_requires_for_build_wheel(config_settings)
    return required + (["nvidia-cuda-nvrtc==13.0.*"] if (config_settings or {}).get("nvidia") else [])


def _compile(wheel: str, folder: str, capabilities: str) -> Dict[str, bytes]:
    """The modules of a wheel's operations, by their names in the wheel."""
    unpacked, compiled = os.path.join(folder, "unpacked"), os.path.join(folder, "compiled")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    # Where pip builds in isolation, NumPy is on the path that it has set.
    paths = os.pathsep.join(filter(None, [unpacked, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "GPUVM_CACHE_DIR": os.path.join(folder, "cache")}
    command = [sys.executable, "-m", "gpuvm._precompile", compiled, capabilities]
    subprocess.run(command, check=True, env=environment, cwd=folder)
    found = {}
    for name in sorted(os.listdir(compiled)):
        with open(os.path.join(compiled, name), "rb") as module:
            found[PRECOMPILED + name] = module.read()
    return found


def _record(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def _add(wheel: str, files: Dict[str, bytes]) -> None:
    """Writes the wheel anew with more files, which its record lists."""
    part = wheel + ".part"
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            content = old.read(item)
            if item.filename.endswith(".dist-info/RECORD"):
                content += "".join(_record(name, added) for name, added in files.items()).encode()
            new.writestr(item, content, zipfile.ZIP_DEFLATED)
        for name, added in files.items():
            item = zipfile.ZipInfo(name)
            # Everybody may read it, as the rest.
            item.external_attr = 0o644 << 16
            new.writestr(item, added, zipfile.ZIP_DEFLATED)
    os.replace(part, wheel)


def build_wheel(
    wheel_directory: str,
    config_settings: Optional[Dict[str, Any]] = None,
    metadata_directory: Optional[str] = None,
) -> str:
    """PEP 517's hook."""
    if (config_settings or {}).get("headers") != "read":
        # A wheel has the device library in it. One that reads the source tree's, as `./test` builds everything, is for this machine alone.
        os.environ.pop("GPUVM_HEADERS", None)
    name: str = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    wheel = os.path.join(wheel_directory, name)
    with tempfile.TemporaryDirectory() as folder:
        try:
            files = _compile(wheel, folder, (config_settings or {}).get("nvidia") or "")
        except subprocess.CalledProcessError as error:
            # pip shows what was printed above it.
            sys.exit(f"{name}: the kernels could not be compiled, as the error above says: {error}")
    _add(wheel, files)
    print(f"{name}: {len(files)} compiled modules", file=sys.stderr)
    return name
