"""NVRTC of the package ``nvidia-cuda-nvrtc``, which the extra ``[cuda]`` brings: the loader does not know its folder."""

from __future__ import annotations

import importlib.util
import os

from . import _core

#: Where its wheels have it, in the namespace package ``nvidia``: of CUDA 13, and of 12.
_FOLDERS = (("cu13", "lib"), ("cuda_nvrtc", "lib"))


def name_folders() -> None:
    """Says where it lies, if it does. Nothing is loaded before a kernel is compiled."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for folder in _FOLDERS:
            path = os.path.join(place, *folder)
            if os.path.isdir(path):
                _core.look_for_nvrtc_in(path)
