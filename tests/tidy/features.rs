//! Features of shared packages.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Packages and their features, a line each, of what `cargo tree` shows for these arguments.
fn features(arguments: &[&str]) -> BTreeSet<String> {
    let mut tree = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    tree.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .args(["tree", "--locked", "--offline", "--no-dedupe"])
        .args(["--prefix", "none", "--format", "{p} features: {f}"])
        .args(arguments);
    let output = tree.output().expect("cargo runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8_lossy(&output.stdout).replace(" (proc-macro)", "");
    text.lines()
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .collect()
}

fn package(line: &str) -> &str {
    line.split(" features: ").next().unwrap_or(line)
}

/// `./run`, `pip install ./python`, `cargo xtask install` and `./test` build the library in one target folder, and only once where every
/// package that the library needs has the same features in each of them.
#[test]
fn packages_have_the_same_features_in_every_build() {
    let library = features(&["--package", "gpuvm", "--edges", "normal,build"]);
    let needed: BTreeSet<&str> = library.iter().map(|line| package(line)).collect();
    let whole = features(&["--workspace", "--edges", "normal,build,dev"]);
    for product in ["gpuvm-cli", "gpuvm-python", "gpuvm-capi"] {
        let alone = features(&["--package", product, "--edges", "normal,build"]);
        let differs = alone.difference(&whole).filter(|line| needed.contains(package(line)));
        let differs: Vec<&str> = differs.map(String::as_str).collect();
        assert!(
            differs.is_empty(),
            "{product} alone has other features than the workspace: name them in [workspace.dependencies], or in layouts/Cargo.toml: {differs:#?}"
        );
    }
}
