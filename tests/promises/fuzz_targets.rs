//! The fuzz targets over their corpus, and over inputs made of it by a fixed seed: the harness works, and what fuzzing found
//! once stays found.

use std::path::{Path, PathBuf};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[path = "../../fuzz/src/targets.rs"]
mod targets;

/// Inputs made for each target.
const MADE: u32 = 20_000;
/// Longest input that is made.
const BYTES_MAX: usize = 1024;

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    // The same order on every file system.
    paths.sort();
    paths
        .into_iter()
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

/// An input made of others, as a fuzzer would.
fn make(rng: &mut ChaCha8Rng, corpus: &[(PathBuf, Vec<u8>)]) -> Vec<u8> {
    let mut input = corpus[rng.random_range(0..corpus.len())].1.clone();
    for _ in 0..rng.random_range(1..6) {
        let at = rng.random_range(0..=input.len());
        match rng.random_range(0..7) {
            0 if at < input.len() => input[at] ^= 1 << rng.random_range(0..8),
            1 if at < input.len() => input[at] = rng.random(),
            2 => input.insert(at, rng.random()),
            3 if at < input.len() => drop(input.drain(at..rng.random_range(at..input.len()))),
            4 => {
                let other = &corpus[rng.random_range(0..corpus.len())].1;
                let from = rng.random_range(0..=other.len());
                input.splice(at.., other[from..].iter().copied());
            }
            5 => {
                let word = [0, 1, 0x7f, 0x80, 0xff][rng.random_range(0..5)];
                input[at..].iter_mut().take(4).for_each(|byte| *byte = word);
            }
            _ => {
                let digits = [b'0', b'9', b'-', b'.', b':', b'\n', b',', b'%'];
                input.insert(at, digits[rng.random_range(0..digits.len())]);
            }
        }
    }
    input.truncate(BYTES_MAX);
    input
}

fn run(target: &str, made: u32, run: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "the corpus of {target} is empty");
    let tried = |input: &[u8], what: &str| {
        if std::panic::catch_unwind(|| run(input)).is_err() {
            panic!("{target} fails on {what}: {input:?}");
        }
    };
    for (path, input) in &corpus {
        tried(input, &path.display().to_string());
    }
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for number in 0..made {
        tried(&make(&mut rng, &corpus), &format!("input {number}"));
    }
}

macro_rules! targets {
    ($($name:ident: $made:expr;)*) => {$(
        #[test]
        fn $name() {
            run(stringify!($name), $made, targets::$name);
        }
    )*};
}

/// The targets that are built for fuzzing are those that are run here.
#[test]
fn every_target_is_built_and_run() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
    let mut built: Vec<String> = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""))
        .map(str::to_owned)
        .collect();
    let text = std::fs::read_to_string(root.join("tests/promises/fuzz_targets.rs")).unwrap();
    let list = text.split_once("\ntargets! {").unwrap().1.split_once('}').unwrap().0;
    let mut run: Vec<String> = list
        .lines()
        .filter_map(|line| Some(line.trim().split_once(": ")?.0.to_owned()))
        .collect();
    for name in &built {
        let main = std::fs::read_to_string(root.join(format!("fuzz/fuzz_targets/{name}.rs"))).unwrap();
        assert!(main.contains(&format!("gpuvm_fuzz::{name}(data)")), "{name}: {main}");
    }
    built.sort();
    run.sort();
    assert_eq!(built, run);
}

targets! {
    mlx5_requests: MADE;
    mlx5_completions: MADE;
    rxe_entries: MADE;
    // Each is a file.
    graph_files: MADE / 10;
    command_line: MADE;
    fault_mixes: MADE;
    node_messages: MADE;
    ptx_modules: MADE;
}

#[test]
#[should_panic(expected = "mlx5_requests fails on")]
fn a_target_that_panics_is_noticed() {
    run("mlx5_requests", 10, |_| panic!("as a reader with a bug would"));
}
