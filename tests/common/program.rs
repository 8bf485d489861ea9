//! Random programs of `gpuvm-simulate`, on the GPU and the transport that the environment asks for.

use std::time::Duration;

use gpuvm::CompileOptions;
pub use gpuvm_simulate::program::{Element, Moment, Outcome, ProgramShape, rng, run_on, run_watched, tiny};
use rand_chacha::ChaCha8Rng;

use crate::common::{over_environment, scaled};

/// Runs the program that `rng` makes for `shape` and compares everything that can be seen with the model.
pub fn run<T: Element>(
    rng: &mut ChaCha8Rng,
    shape: &ProgramShape,
    options: &CompileOptions,
) -> Result<Outcome, String> {
    let mut shape = shape.clone();
    // Where packets are lost and few are sent again, requests do fail, and are repeated.
    shape.errors_allowed |= std::env::var_os("GPUVM_TEST_RETRIES").is_some();
    let mut builder = shape.builder().launch_deadline(scaled(Duration::from_secs(60)));
    if shape.interleaving.is_none() {
        // Only the simulated GPU follows a seed.
        builder = over_environment(builder.wait_limit(scaled(Duration::from_secs(20))));
    }
    if shape.direct {
        builder = builder.transport(gpuvm::Transport::Direct);
    }
    run_on::<T>(builder, rng, &shape, options)
}

/// The seeds to run: `count` from `first`, or the one that GPUVM_TEST_SEED names, or as many as GPUVM_TEST_SEEDS says.
/// Each is told before it runs, for `--nocapture`.
pub fn seeds(first: u64, count: u64) -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let range = match number("GPUVM_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("GPUVM_TEST_SEEDS").unwrap_or(count),
    };
    range.inspect(|seed| eprintln!("seed {seed}"))
}

/// Ends the test with the command that repeats it.
pub fn give_up(module: &str, test: &str, seed: u64, shape: &ProgramShape, wrong: &str) -> ! {
    panic!(
        "{wrong}\n{shape:?}\nrepeat with: GPUVM_TEST_SEED={seed} cargo test --release --test promises {module}::{test}"
    )
}
