//! Adds two vectors that do not fit in GPU memory.

use std::error::Error;
use std::io::{Write, stdout};

use gpuvm::{LaunchConfig, Vm};

fn main() -> Result<(), Box<dyn Error>> {
    let n = 1_000_003; // not a whole number of pages
    let vm = Vm::builder().frame_memory(2 << 20).build()?;
    let a = vm
        .region::<f32>()
        .name("a")
        .read_only()
        .from_iter((0..n).map(|i| i as f32))?;
    let b = vm
        .region::<f32>()
        .name("b")
        .read_only()
        .from_iter((0..n).map(|i| (2 * i) as f32))?;
    let sum = vm.region::<f32>().name("sum").zeroed(n)?;

    let add = vm.kernel("vector_add.cu", include_str!("vector_add.cu"), "add")?;
    let blocks = n.div_ceil(256) as u32;
    add.launch(LaunchConfig::new(blocks, 256), (&a, &b, &sum))?.sync()?;

    let result = sum.to_vec()?;
    for (i, &value) in result.iter().enumerate() {
        let expected = i as f32 + (2 * i) as f32;
        if value != expected {
            return Err(format!("element {i} is {value}, expected {expected}").into());
        }
    }
    let stats = vm.stats()?;
    // Not println!, which panics where the output is closed or full.
    writeln!(
        stdout(),
        "{n} sums are right: {} pages fetched into {} frames by {} faults of GPU threads, {} pages written back",
        stats.pages_fetched,
        vm.frames(),
        stats.faults,
        stats.pages_written_back
    )?;
    Ok(())
}
