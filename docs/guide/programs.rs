//! The programs of the user's guide. Those in Rust are documentation tests of this crate; for the others [`blocks`] hands each to what can
//! run it: `capi/tests` those in C++, `cli/tests` the commands, `python/tests` those in Python, which reads the chapters itself.

use std::{
    fs,
    path::{Path, PathBuf},
};

use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// A block of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The chapter's file name, and the line of the first fence.
    pub place: String,
    /// What stands behind the fence.
    pub language: String,
    /// The code.
    pub text: String,
}

/// The book's folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of the chapters, the table of contents among them, in the order of their names.
///
/// # Panics
/// When the folder cannot be read.
pub fn chapters() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("src")).expect("the book's folder");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// The blocks of code in a text of Markdown.
pub fn blocks_of(name: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open = None;
    for (event, range) in Parser::new(text).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let language = match kind {
                    CodeBlockKind::Fenced(language) => language.to_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                open = Some(Block {
                    place: format!("{name}:{}", text[..range.start].matches('\n').count() + 1),
                    language,
                    text: String::new(),
                });
            }
            Event::Text(piece) => {
                if let Some(block) = &mut open {
                    block.text.push_str(&piece);
                }
            }
            Event::End(TagEnd::CodeBlock) => blocks.extend(open.take()),
            _ => {}
        }
    }
    blocks
}

/// All blocks of the book in this language, in the order of the chapters' names.
///
/// # Panics
/// When a chapter cannot be read.
pub fn blocks(language: &str) -> Vec<Block> {
    let all = chapters().into_iter().flat_map(|path| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        blocks_of(&path.file_name().unwrap_or_default().to_string_lossy(), &text)
    });
    all.filter(|block| block.language == language).collect()
}

/// The programs in Rust are compiled and run.
#[cfg(doctest)]
mod programs {
    #[doc = include_str!("src/first.md")]
    pub struct First;
    #[doc = include_str!("src/porting.md")]
    pub struct Porting;
    #[doc = include_str!("src/libraries.md")]
    pub struct Libraries;
    #[doc = include_str!("src/choosing.md")]
    pub struct Choosing;
    #[doc = include_str!("src/watching.md")]
    pub struct Watching;
    #[doc = include_str!("src/memory.md")]
    pub struct Memory;
    #[doc = include_str!("src/gpus.md")]
    pub struct Gpus;
    #[doc = include_str!("src/errors.md")]
    pub struct Errors;
}
