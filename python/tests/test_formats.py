"""Tensors of .safetensors files and columns of Feather files as arrays, in place. The files are those of the crate's tests."""

import json
import os
import pathlib

import numpy as np
import pytest

import gpuvm

DATA = pathlib.Path(__file__).resolve().parents[2] / "formats" / "tests" / "data"


def test_tensors_are_arrays(vm):
    tensors = gpuvm.safetensors(vm, DATA / "model.safetensors")
    assert sorted(tensors) == ["count", "half", "weight"] and len(tensors) == 3
    assert tensors.notes == {"made": "by numpy"}
    weight = tensors["weight"]
    assert weight is tensors["weight"] and weight.read_only
    assert (weight.numpy() == np.arange(1000, dtype=np.float32).reshape(40, 25)).all()
    assert gpuvm.ops.sum(weight) == 1000 * 999 / 2
    assert tensors["half"].dtype == np.float16 and list(tensors["half"].numpy()) == [1, -2]
    assert tensors["count"].shape == () and tensors["count"].numpy() == 7
    with pytest.raises(KeyError):
        tensors["nothing"]
    weight.close()
    assert tensors["weight"][39, 24] == 999


def test_a_file_may_have_any_number_of_tensors(vm, tmp_path):
    count = 600
    places = {f"layer.{n}": {"dtype": "F32", "shape": [4], "data_offsets": [16 * n, 16 * n + 16]} for n in range(count)}
    header = json.dumps(places).encode()
    header += b" " * (-len(header) % 8)
    data = np.arange(4 * count, dtype=np.float32)
    path = tmp_path / "many.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data.tobytes())
    tensors = gpuvm.safetensors(vm, path)
    arrays = [tensors[name] for name in tensors]
    assert len(arrays) == count and all(not array.closed for array in arrays)
    for n in (0, 255, 256, 511, 512, count - 1):
        assert gpuvm.ops.sum(tensors[f"layer.{n}"]) == data[4 * n : 4 * n + 4].sum()
    # Their places serve again.
    for array in arrays:
        array.close()
    assert gpuvm.ops.sum(gpuvm.safetensors(vm, path)["layer.1"]) == 22


def test_the_number_of_arrays_may_have_a_limit():
    with gpuvm.Vm("64KiB", gpu="sim", regions_max=2) as vm:
        _one, _two = vm.zeros(4), vm.zeros(4)
        with pytest.raises(gpuvm.errors.RegionError, match="all 2 region slots .* or raise the setting regions_max"):
            vm.zeros(4)


def test_columns_are_arrays(vm):
    columns = gpuvm.feather(vm, DATA / "plain.feather")
    assert list(columns) == ["id", "fare", "name", "kind"]
    parts = columns["id"]
    assert [part.rows for part in parts] == [400, 400, 200]
    assert (np.concatenate([part.values.numpy() for part in parts]) == np.arange(1000)).all()
    fare = columns["fare"][1]
    there = np.unpackbits(fare.validity.numpy(), bitorder="little")[: fare.rows].astype(bool)
    assert fare.nulls == 100 and (there == (np.arange(400) % 4 != 0)).all()
    assert (fare.values.numpy()[there] == np.arange(400, 800)[there] / 2).all()
    name = columns["name"][2]
    offsets, text = name.offsets.numpy(), name.values.numpy().tobytes()
    assert text[offsets[199] : offsets[200]] == b"n999"
    kind = columns["kind"]
    assert (kind[1].values.numpy() == np.arange(400, 800) % 2).all()
    [names] = kind[1].dictionary
    assert names.rows == 2 and names.values.numpy().tobytes() == b"bustaxi" and names is kind[0].dictionary[0]
    with pytest.raises(KeyError):
        columns["nothing"]
    with pytest.raises(gpuvm.errors.FileError, match="uncompressed"):
        gpuvm.feather(vm, DATA / "lz4.feather")["id"]


def test_lists_are_arrays(vm):
    columns = gpuvm.feather(vm, DATA / "lists.feather")
    numbers = np.arange(600, 1000)
    vector = columns["vector"][1]
    assert vector.list_size == 3 and vector.values.shape == (400, 3) and vector.offsets is None
    assert (vector.values.numpy() == np.stack([numbers, numbers / 2, -numbers], axis=1)).all()
    assert vector.items.rows == 1200 and (vector.items.values.numpy() == vector.values.numpy().ravel()).all()
    tokens = columns["tokens"][1]
    offsets, items = tokens.offsets.numpy(), tokens.values.numpy()
    assert tokens.nulls == 40 and tokens.list_size is None and tokens.values is tokens.items.values
    for row, i in enumerate(numbers):
        assert list(items[offsets[row] : offsets[row + 1]]) == list(range(0 if i % 10 == 0 else i % 7))
    assert list(columns) == ["vector", "tokens", "point.x"]
    point = columns["point.x"][1]
    assert (point.values.numpy() == numbers).all() and point.within == [] and point.dictionary == []
    with pytest.raises(KeyError):
        columns["point"]
    assert (columns.at(2)[1].values.numpy() == numbers).all()
    with pytest.raises(gpuvm.errors.FileError, match="no column `3`"):
        columns.at(3)


def test_fields_maps_and_views_are_arrays(vm):
    columns = gpuvm.feather(vm, DATA / "nested.feather")
    assert list(columns) == ["point.x", "point.at.y", "stock.key", "stock.value", "word"]
    numbers = np.arange(600, 1000)
    y = columns["point.at.y"][1]
    kept = [np.unpackbits(bits.numpy(), bitorder="little")[: y.rows].astype(bool) for bits in y.within]
    there = kept[0] & kept[1]
    assert len(kept) == 2 and (there == ((numbers % 3 != 0) & (numbers % 2 != 0))).all()
    assert (y.values.numpy()[there] == numbers[there] / 2).all()
    amounts = columns["stock.value"][1]
    offsets, values = amounts.offsets.numpy(), amounts.values.numpy()
    for row, i in enumerate(numbers):
        assert list(values[offsets[row] : offsets[row + 1]]) == [i + n for n in range(i % 3)]
    word = columns["word"][1]
    views = word.values.numpy().view(np.int32)
    there = np.unpackbits(word.validity.numpy(), bitorder="little")[: word.rows].astype(bool)
    buffers = [buffer.numpy().tobytes() for buffer in word.buffers]
    assert views.shape == (400, 4) and (there == (numbers % 6 != 5)).all()
    for row in np.flatnonzero(there):
        length, _, buffer, at = views[row]
        text = views[row, 1:].tobytes()[:length] if length <= 12 else buffers[buffer][at : at + length]
        assert text.decode() == "w" * (numbers[row] % 40) + str(numbers[row])


def test_other_files_are_refused(vm, tmp_path):
    path = tmp_path / "other"
    path.write_bytes(b"something else, of some length")
    for door in (gpuvm.safetensors, gpuvm.feather):
        with pytest.raises(gpuvm.errors.FileError, match="other"):
            door(vm, path)
        with pytest.raises(gpuvm.errors.FileError, match="No such file"):
            door(vm, tmp_path / "nothing")


def tensors_file(path, tensors, pad=b""):
    """Tensors of type, shape and bytes, one after another."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8) + pad
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_types_that_numpy_lacks_keep_their_shape_and_name(vm, tmp_path):
    path, values = tmp_path / "a.safetensors", bytes(range(48))
    kinds = {
        "C64": ([2, 3], np.complex64, (2, 3), 48),
        "BF16": ([2, 3], np.uint16, (2, 3), 12),
        "F32": ([3], np.float32, (3,), 12),
        "F8_E4M3": ([2, 3], np.uint8, (2, 3), 6),
        "F8_E5M2": ([3, 2], np.uint8, (3, 2), 6),
        "F8_E8M0": ([6], np.uint8, (6,), 6),
        "F4": ([2, 6], np.uint8, (2, 3), 6),
        "F6_E2M3": ([2, 4], np.uint8, (6,), 6),
    }
    tensors_file(path, {f"x{kind}": (kind, shape, values[:size]) for kind, (shape, _, _, size) in kinds.items()})
    tensors = gpuvm.safetensors(vm, path)
    for kind, (shape, dtype, lengths, size) in kinds.items():
        found = tensors[f"x{kind}"]
        assert (found.dtype, found.shape, found.stored) == (dtype, lengths, kind)
        assert found.numpy().tobytes() == values[:size] and kind in repr(found)
        assert (tensors.dtypes[f"x{kind}"], tensors.shapes[f"x{kind}"]) == (kind, tuple(shape))


def test_a_header_of_an_odd_length_says_what_to_do(vm, tmp_path):
    path = tmp_path / "odd.safetensors"
    tensors_file(path, {"w": ("F32", [6], np.arange(6, dtype="f4").tobytes()), "b": ("U8", [2], b"ab")}, pad=b" ")
    tensors = gpuvm.safetensors(vm, path)
    assert list(tensors["b"].numpy()) == [97, 98]
    with pytest.raises(gpuvm.errors.RegionError, match=r"`w`.*numpy.fromfile\(path, 'float32', count, offset=\d+\) to Vm.array"):
        tensors["w"]


def test_what_is_no_tensor_file_is_named(vm, tmp_path):
    path = tmp_path / "model.safetensors"
    for text, what in [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n", "a Git LFS pointer.*git lfs pull"),
        (b"<!DOCTYPE html><html><body></body></html>", "an HTML page"),
        (b'{"metadata": {"total_size": 8}, "weight_map": {}}', "JSON.*open the .safetensors files that it names"),
        (b"PK\x03\x04\x14\0\0\0\x08\0" * 9, "a zip archive"),
    ]:
        path.write_bytes(text)
        with pytest.raises(gpuvm.errors.FileError, match=what):
            gpuvm.safetensors(vm, path)


def test_a_named_pipe_is_refused_at_once(vm, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for door in (lambda: vm.map_file(path, "f4"), lambda: gpuvm.safetensors(vm, path), lambda: gpuvm.feather(vm, path)):
        with pytest.raises(gpuvm.errors.Error, match="not a regular file|it is no regular"):
            door()
    with pytest.raises(gpuvm.errors.FileError, match="not a regular file"):
        vm.load(path, ["k"])


def test_files_have_names_of_any_bytes(vm, tmp_path):
    raw = os.fsencode(tmp_path) + b"/nam\xe9.safetensors"
    tensors_file(tmp_path / "plain", {"w": ("F32", [4], np.arange(4, dtype="f4").tobytes())})
    os.rename(tmp_path / "plain", raw)
    for path in (raw, os.fsdecode(raw), pathlib.Path(os.fsdecode(raw))):
        assert list(gpuvm.safetensors(vm, path)["w"].numpy()) == [0, 1, 2, 3]
        found = vm.map_file(path)
        assert found.shape == (os.stat(raw).st_size,) and "nam\ufffd" in repr(found)
        found.close()


def test_a_name_of_several_columns_is_an_error(vm):
    columns = gpuvm.feather(vm, DATA / "twice.arrow")
    assert list(columns) == ["x", "p.x"]
    for name, first, second in (("x", 0, 1), ("p.x", 2, 3)):
        with pytest.raises(gpuvm.errors.FileError, match=f"columns {first} and {second} of .* are named `{name}`.*\\.at\\({first}\\)"):
            columns[name]
    assert [columns.at(number)[0].values.numpy()[0] for number in range(4)] == [1, 10, 100, 1000]


def test_a_span_of_a_file_is_mapped(vm, tmp_path):
    path = tmp_path / "data"
    np.arange(3000, dtype=np.int32).tofile(path)
    span = vm.map_file(path, np.int32, (10, 20), offset=4 * 1001)
    assert span.shape == (10, 20) and (span.numpy().ravel() == np.arange(1001, 1201)).all()
    assert vm.map_file(path, np.int32, offset=4 * 2999).shape == (1,)
    written = vm.map_file(path, np.int32, (5,), offset=8, read_only=False)
    written[:] = 7
    written.close()
    assert list(np.fromfile(path, np.int32)[:9]) == [0, 1, 7, 7, 7, 7, 7, 7, 8]
    for wrong in ({"offset": 2}, {"offset": 4 * 3001}, {"shape": (3000,), "offset": 4}, {"offset": -4}):
        with pytest.raises(gpuvm.errors.RegionError):
            vm.map_file(path, np.int32, **wrong)
