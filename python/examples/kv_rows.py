"""Rows of a KV cache in host memory, of which each decoding step needs the top few: a hot buffer on the GPU holds those of late."""

import numpy as np

import gpuvm

TOKENS, TOP, STEPS = 20_000, 64, 20


def main() -> None:
    chance = np.random.default_rng(1)
    keys, values = (chance.random((TOKENS, 128), dtype=np.float32) for _ in range(2))
    with gpuvm.Vm("1MiB") as vm:
        # Rows of 512 bytes; one id names a row of both.
        cache = vm.slot_cache([vm.array(keys, read_only=True), vm.array(values, read_only=True)], slots=4 * TOP)
        wanted = chance.choice(TOKENS, TOP, replace=False)
        for _ in range(STEPS):
            # Most of what the last step needed is needed again.
            wanted[chance.choice(TOP, TOP // 8, replace=False)] = chance.choice(TOKENS, TOP // 8)
            slots = cache.ensure(wanted)
            # Here attention would read cache.frames[0] and [1] by slots, on the GPU.
            for frames, table in zip(cache.frames, (keys, values)):
                assert (frames.numpy()[slots.numpy()] == table[wanted]).all()
        counts = cache.stats
        print(f"{counts['hits']} hits of {STEPS * TOP}, {counts['bytes'] >> 10} KiB fetched")


if __name__ == "__main__":
    main()
