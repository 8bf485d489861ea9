//! The book is whole, and no block of code is left untried.

use std::fs;

use gpuvm_guide::{Block, blocks_of, chapters, root};

/// Languages, and who tries them. `text` is no code, and `sh` is for commands that install or need more than a test has: of these the command
/// `gpuvm` has to understand its own.
const LANGUAGES: [&str; 6] = ["rust", "cpp", "python", "console", "sh", "text"];

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_block_is_in_a_language_that_is_tried() {
    let mut seen = 0;
    for path in chapters() {
        for block in blocks_of(&path.display().to_string(), &fs::read_to_string(&path).unwrap()) {
            assert!(
                LANGUAGES.contains(&block.language.as_str()),
                "{}: `{}`",
                block.place,
                block.language
            );
            seen += 1;
        }
    }
    assert!(seen > 15, "only {seen} blocks were found");
}

#[test]
fn chapters_with_rust_are_tests() {
    let tested = read("programs.rs");
    for path in chapters() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let has_rust = blocks_of(name, &fs::read_to_string(&path).unwrap())
            .iter()
            .any(|block| block.language == "rust");
        let is_tested = tested.contains(&format!("include_str!(\"src/{name}\")"));
        assert_eq!(
            has_rust, is_tested,
            "{name} has Rust: {has_rust}; programs.rs has it: {is_tested}"
        );
    }
}

#[test]
fn the_table_of_contents_names_every_chapter_once() {
    let contents = read("src/SUMMARY.md");
    for path in chapters() {
        let name = path.file_name().unwrap().to_str().unwrap();
        let times = contents.matches(&format!("({name})")).count();
        assert_eq!(times, usize::from(name != "SUMMARY.md"), "{name}");
    }
}

#[test]
fn blocks_are_found() {
    let text = "# A\n\n```sh\na\nb\n```\n\n- in a list\n\n  ```rust\n  fn main() {}\n  ```\n\n    indented\n";
    let block = |line: usize, language: &str, text: &str| Block {
        place: format!("a.md:{line}"),
        language: language.to_owned(),
        text: text.to_owned(),
    };
    let wanted = [block(3, "sh", "a\nb\n"), block(10, "rust", "fn main() {}\n")];
    assert_eq!(blocks_of("a.md", text)[..2], wanted);
}
