"""A timeline that a program asks for, without the environment."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import NAMES, SCALE

import gpuvm


def faults(path):
    return sum(event["name"] == "fault" and event["ph"] == "X" for event in json.loads(path.read_text()))


@pytest.mark.parametrize("transport", ["soft", "direct"])
def test_every_fault_is_in_a_timeline_of_one_in_one(tmp_path, transport):
    path = tmp_path / "timeline.json"
    with gpuvm.Vm("64KiB", gpu="simulated", transport=transport, placement="fetch", timeline=path, timeline_one_in=1) as vm:
        array = vm.array(np.ones(100_000, np.float32), name="weights")
        vm.module(SCALE, NAMES)["scale"][400, 256](array, 2).sync()
        assert (array.numpy() == 2).all()
        served = vm.stats()["faults"]
        array.close()
    assert faults(path) == served > 0
    assert "kernel `scale`" in path.read_text() and "weights" in path.read_text()


def test_a_sample_is_smaller_and_other_vms_have_none(tmp_path, vm):
    path = tmp_path / "of %p.json"
    with gpuvm.Vm("64KiB", gpu="simulated", timeline=str(path)) as drawn:
        for one in (drawn, vm):
            gpuvm.ops.sum(one.array(np.ones(500_000, np.float32)))
        served = drawn.stats()["faults"]
    (written,) = tmp_path.iterdir()
    assert "%p" not in written.name
    assert faults(written) < served / 4


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(gpuvm.errors.Error, match="timeline .*no/such/folder.json"):
        gpuvm.Vm("64KiB", gpu="simulated", timeline=tmp_path / "no" / "such" / "folder.json")
    precious = tmp_path / "data.json"
    precious.write_text("[\n")
    with pytest.raises(OSError, match="data.json"):
        gpuvm.Vm("64KiB", gpu="simulated", timeline=precious)
    assert precious.read_text() == "[\n"
