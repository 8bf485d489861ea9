//! The commands of the user's guide do what it shows.

use gpuvm_guide::{Block, blocks};
use tempfile::TempDir;

use crate::common::{finish, gpuvm};

/// A line without what another run or another machine may say: words with digits, and units.
fn shape(line: &str) -> Vec<&str> {
    const UNITS: [&str; 11] = ["B", "KiB", "MiB", "GiB", "us", "ms", "s", "%", "M", "worker", "workers"];
    let words = line.split([' ', ',', ';']).filter(|word| !word.is_empty());
    let kept = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    kept.filter(|word| !UNITS.contains(word)).collect()
}

/// Whether the lines shown are among those said, in their order, and without gaps but where `...` stands.
fn shows(shown: &[&str], said: &[&str]) -> bool {
    match (shown, said) {
        ([], rest) => rest.is_empty(),
        (["..."], _) => true,
        (["...", after @ ..], _) => (0..said.len()).any(|from| shows(after, &said[from..])),
        ([line, shown @ ..], [found, said @ ..]) => shape(line) == shape(found) && shows(shown, said),
        (_, []) => false,
    }
}

/// The commands of a block, each with the output that is shown below it.
fn commands(block: &Block) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in block.text.lines() {
        match (line.strip_prefix("$ gpuvm "), found.last_mut()) {
            (Some(arguments), _) => found.push((arguments, Vec::new())),
            (None, Some((_, output))) => output.push(line),
            (None, None) => panic!("{}: no command of gpuvm", block.place),
        }
    }
    found
}

#[test]
fn commands_with_their_output_say_that() {
    let folder = TempDir::new().unwrap();
    let blocks = blocks("console");
    assert!(blocks.len() > 4, "only {} were found", blocks.len());
    for block in &blocks {
        for (arguments, shown) in commands(block) {
            let mut command = gpuvm(folder.path(), arguments);
            command.env("GPUVM_TENANTS_DIR", folder.path());
            let (status, said, errors) = finish(command);
            assert_eq!(status, 0, "{}: {errors}", block.place);
            let said: Vec<&str> = said.lines().collect();
            // A command without output is there for what it does.
            assert!(
                shown.is_empty() || shows(&shown, &said),
                "{}: the guide shows\n{}\nand the command says\n{}",
                block.place,
                shown.join("\n"),
                said.join("\n")
            );
        }
    }
}

/// Those that need other machines, hardware or processes: what they ask for is there.
#[test]
fn other_commands_are_understood() {
    let folder = TempDir::new().unwrap();
    let mut seen = 0;
    for block in blocks("sh") {
        for arguments in block.text.lines().filter_map(|line| line.strip_prefix("gpuvm ")) {
            // A command that has understood what stands before `--help` explains itself.
            let (status, said, errors) = finish(gpuvm(folder.path(), &format!("{arguments} --help")));
            assert_eq!(status, 0, "{}: gpuvm {arguments}: {errors}", block.place);
            assert!(said.contains("Usage: gpuvm"), "{}: {said}", block.place);
            seen += 1;
        }
    }
    assert!(seen > 4, "only {seen} were found");
    let (status, ..) = finish(gpuvm(folder.path(), "run bfs --no-such-option --help"));
    assert_eq!(status, 2);
}

#[test]
fn output_is_compared_by_its_words() {
    let said = ["a 1 KiB of x", "b 2.5 MiB, y", "c"];
    assert!(shows(&["a 7 MiB of x", "b 9 GiB, y", "c"], &said));
    assert!(shows(&["a 7 MiB of x", "...", "c"], &said));
    assert!(shows(&["a 7 MiB of x", "..."], &said));
    assert!(!shows(&["a 7 MiB of x", "c"], &said));
    assert!(!shows(&["a 7 MiB of z", "..."], &said));
    assert!(!shows(&["a 7 MiB of x"], &said));
    assert!(!shows(&["...", "b 2.5 MiB, y"], &said));
}
