"""Writes the files beside it, once: pip install numpy pyarrow safetensors, and python write.py in this folder."""

import numpy as np
import pyarrow as pa
import pyarrow.feather
import safetensors.numpy

ROWS = 1000
numbers = np.arange(ROWS)
table = pa.table(
    {
        "id": pa.array(numbers, pa.int64()),
        "fare": pa.array([None if i % 4 == 0 else i / 2 for i in range(ROWS)], pa.float32()),
        "name": pa.array([f"n{i}" for i in range(ROWS)]),
        "kind": pa.array([["bus", "taxi"][i % 2] for i in range(ROWS)]).dictionary_encode(),
    }
)
pa.feather.write_feather(table, "plain.feather", compression="uncompressed", chunksize=400)
lists = pa.table(
    {
        "vector": pa.array([[i, i / 2, -i] for i in range(ROWS)], pa.list_(pa.float32(), 3)),
        "tokens": pa.array([None if i % 10 == 0 else list(range(i % 7)) for i in range(ROWS)], pa.list_(pa.int32())),
        "point": pa.array([{"x": i} for i in range(ROWS)], pa.struct({"x": pa.int32()})),
    }
)
pa.feather.write_feather(lists, "lists.feather", compression="uncompressed", chunksize=600)
nested = pa.table(
    {
        "point": pa.array(
            [None if i % 3 == 0 else {"x": i, "at": None if i % 2 == 0 else {"y": i / 2}} for i in range(ROWS)],
            pa.struct({"x": pa.int32(), "at": pa.struct({"y": pa.float64()})}),
        ),
        "stock": pa.array([[(f"k{n}", i + n) for n in range(i % 3)] for i in range(ROWS)], pa.map_(pa.string(), pa.int32())),
        "word": pa.array([None if i % 6 == 5 else "w" * (i % 40) + str(i) for i in range(ROWS)], pa.string_view()),
    }
)
pa.feather.write_feather(nested, "nested.feather", compression="uncompressed", chunksize=600)
twice = pa.Table.from_arrays(
    [pa.array([1, 2]), pa.array([10, 20]), pa.array([{"x": 100}, {"x": 200}]), pa.array([1000, 2000])], ["x", "x", "p", "p.x"]
)
with pa.ipc.new_file("twice.arrow", twice.schema) as out:
    out.write_table(twice)
pa.feather.write_feather(table.select(["id"]), "lz4.feather", compression="lz4")
safetensors.numpy.save_file(
    {
        "weight": numbers.reshape(40, 25).astype(np.float32),
        "half": np.array([1.0, -2.0], np.float16),
        "count": np.array(7, np.int32),
    },
    "model.safetensors",
    {"made": "by numpy"},
)
