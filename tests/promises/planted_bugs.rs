//! A device library with a rule broken that the workloads of `gpuvm simulate` do not show; all others are in `simulate/src/mutations`.

use crate::common::{BASIC, Bench, planted};
use crate::program::{ProgramShape, tiny};
use gpuvm::{CompileOptions, LaunchConfig};

#[test]
fn order_a_page_settled_before_its_group_meets() {
    let meet = "// The group's stores come before the leader's release.\n    __syncwarp(miss->group);";
    let bug = planted("gpuvm/detail/fault.cuh", meet, "");
    // Two warps whose lanes all write to one page, with a frame for it or for the page that they read.
    let copied = |seed, options| {
        let shape = ProgramShape {
            direct: true,
            ..tiny(seed, 1)
        };
        let bench = Bench::with(shape.builder(), BASIC, options);
        let values: Vec<u32> = (1..=64).collect();
        let from = bench.vm.region::<u32>().from_slice(&values).unwrap();
        let to = bench.vm.region::<u32>().zeroed(64).unwrap();
        bench.must("copy", LaunchConfig::new(2, 32), (&from, &to));
        to.to_vec().unwrap() == values
    };
    // One interleaving in some three hundred.
    let seed = (0..4000).find(|&seed| !copied(seed, &bug));
    let seed = seed.expect("an interleaving that shows the bug");
    println!("found by seed {seed}");
    assert!(copied(seed, &CompileOptions::default()), "the library as it is");
}
