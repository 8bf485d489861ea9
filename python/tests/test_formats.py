"""Tensors of .safetensors files and columns of Feather files as arrays, in place. The files are those of the crate's tests."""

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
