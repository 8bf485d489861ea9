//! Kernels that came as PTX over arrays whose pages come by faults: their accesses are calls.

use crate::common::{Bench, Kernels, PAGE_WORDS, simulated_soft};
use gpuvm::LaunchConfig;

const PLAIN_ADD: &str = include_str!("plain_add.ptx");
const NOTHING: Kernels = Kernels {
    name: "nothing.cu",
    text: "#include <gpuvm/gpuvm.cuh>\n",
};

/// Sizes that are no multiple of anything.
const N: u64 = 11 * PAGE_WORDS + 77;

fn values(seed: u32) -> Vec<u32> {
    (0..N as u32)
        .map(|i| i.wrapping_mul(2_654_435_761).wrapping_add(seed))
        .collect()
}

#[test]
fn a_loop_runs_over_more_pages_than_there_are_frames() {
    for frames in [40, 5] {
        let bench = Bench::new(simulated_soft(frames), NOTHING);
        let module = bench.vm.load_ptx("plain_add.ptx", PLAIN_ADD.as_bytes()).unwrap();
        let (mut wanted, b) = (values(1), values(2));
        let a = bench.vm.region::<u32>().from_slice(&wanted).unwrap();
        let of_b = bench.vm.region::<u32>().read_only().from_slice(&b).unwrap();
        for factor in 1..4u32 {
            let launch = module
                .kernel("plain_add")
                .unwrap()
                .launch(LaunchConfig::new(3, 64), (&a, &of_b, factor, N));
            launch.unwrap().sync().unwrap();
            wanted
                .iter_mut()
                .zip(&b)
                .for_each(|(a, b)| *a = a.wrapping_add(b.wrapping_mul(factor)));
            assert_eq!(a.to_vec().unwrap(), wanted);
        }
    }
}
