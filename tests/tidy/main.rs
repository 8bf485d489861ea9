//! House rules that no compiler checks.

mod circles;
mod features;
mod limits;
mod words;

use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Parser, Tag};

/// Every text file of the repository that people write, by its path from the root.
fn files() -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        for entry in entries.map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name());
            if name == ".git" {
                // A folder, or in a second working tree a file with a path.
                continue;
            }
            if path.is_dir() {
                if name != "target" && name != "wip" {
                    walk(&path, found);
                }
            } else if name != "Cargo.lock" {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(root, &mut found);
    found.sort();
    let texts = found.into_iter().filter_map(|path| {
        let text = std::fs::read_to_string(&path).ok()?;
        Some((path.strip_prefix(root).expect("below the root").to_owned(), text))
    });
    texts.collect()
}

fn is(path: &Path, extensions: &[&str]) -> bool {
    path.extension()
        .is_some_and(|found| extensions.iter().any(|wanted| found == *wanted))
}

/// Words that say that something is unfinished, or where somebody's machine keeps things. In pieces, since this file
/// is looked at too.
fn banned() -> Vec<String> {
    let marks = [
        ("TO", "DO"),
        ("FIX", "ME"),
        ("XX", "X:"),
        ("todo", "!("),
        ("unimpl", "emented!("),
        ("dbg", "!("),
        // Without the reason beside it.
        ("#[ig", "nore]"),
    ];
    let places = [("/wo", "rk/"), ("/ro", "ot/"), ("/ho", "me/")];
    marks.iter().chain(&places).map(|(a, b)| format!("{a}{b}")).collect()
}

fn unfinished(text: &str) -> Option<String> {
    let banned = banned();
    text.lines().zip(1..).find_map(|(line, number)| {
        let word = banned.iter().find(|word| line.contains(word.as_str()))?;
        Some(format!("line {number} has `{word}`"))
    })
}

/// The first `unsafe` block or implementation without a SAFETY comment right above it or on its line.
fn unexplained(text: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    (0..lines.len()).find_map(|at| {
        let line = lines[at].split("//").next().unwrap_or_default();
        if !line.contains("unsafe {") && !line.starts_with("unsafe impl") {
            return None;
        }
        // Up through the statement's own lines and the comment above it.
        let explained = lines[at.saturating_sub(12)..=at]
            .iter()
            .any(|line| line.contains("SAFETY"));
        (!explained).then_some(at + 1)
    })
}

/// Whether a header of the device library holds what one kind of GPU alone has.
fn is_of_a_platform(name: &str) -> bool {
    name.ends_with("_cuda.cuh") || name == "platform_sim.cuh"
}

/// The first instruction in device code that belongs into a header of one platform.
fn bare_instruction(text: &str) -> Option<(usize, &'static str)> {
    const INSTRUCTIONS: [&str; 7] = [
        "__atomic_",
        "__sync_",
        "asm",
        "__threadfence",
        "volatile",
        "__ldg",
        "__trap",
    ];
    text.lines().zip(1..).find_map(|(line, number)| {
        let code = line.split("//").next().unwrap_or_default();
        let word = INSTRUCTIONS.into_iter().find(|word| code.contains(word))?;
        // `__syncwarp` and friends are CUDA's own; the GNU builtins are not.
        Some((number, word))
    })
}

fn report(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}\n  {}", broken.join("\n  "));
}

#[test]
fn every_unsafe_is_explained() {
    let rust = files().into_iter().filter(|(path, _)| is(path, &["rs"]));
    let bare = rust.filter_map(|(path, text)| unexplained(&text).map(|line| format!("{}:{line}", path.display())));
    report("`unsafe` comes with SAFETY", bare.collect());
    assert_eq!(unexplained("fn f() {\n    unsafe { g() }\n}"), Some(2));
    assert_eq!(unexplained("// SAFETY: checked.\nunsafe impl Send for X {}"), None);
}

#[test]
fn nothing_is_unfinished_and_no_path_is_absolute() {
    let found = files()
        .into_iter()
        .filter_map(|(path, text)| unfinished(&text).map(|what| format!("{}: {what}", path.display())));
    report("nothing unfinished, no path of somebody's machine", found.collect());
    for word in banned() {
        assert!(unfinished(&format!("a line\nwith {word} in it")).is_some());
    }
}

#[test]
fn device_code_orders_memory_in_platform_headers_only() {
    let headers = files().into_iter().filter(|(path, _)| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        path.starts_with("gpu_kernels/include/gpuvm") && !is_of_a_platform(&name) && name != "kernel_param.cuh"
    });
    let headers: Vec<_> = headers.collect();
    assert!(headers.len() > 10, "the device library is somewhere else");
    let bare = headers.iter().filter_map(|(path, text)| {
        bare_instruction(text).map(|(line, word)| format!("{}:{line}: {word}", path.display()))
    });
    report(
        "instructions with an order or a scope have their name in *_cuda.cuh and platform_sim.cuh",
        bare.collect(),
    );
    assert!(bare_instruction("int x;\n__atomic_thread_fence(0);").is_some());
    assert!(bare_instruction("// no asm here").is_none());
    assert!(bare_instruction("asm volatile(\"\");").is_some());
    for (name, of_a_platform) in [
        ("platform_cuda.cuh", true),
        ("staging_cuda.cuh", true),
        ("platform.cuh", false),
        ("fault.cuh", false),
    ] {
        assert_eq!(is_of_a_platform(name), of_a_platform, "{name}");
    }
}

#[test]
fn every_file_of_tests_is_packed_for_a_gpu_or_left_out() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pack = std::fs::read_to_string(root.join("tests/gpu/pack")).unwrap();
    let listed: Vec<&str> = pack.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let missing: Vec<String> = std::fs::read_dir(root.join("tests/promises"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| is(path, &["rs"]) && !path.ends_with("main.rs"))
        .filter(|path| !listed.contains(&path.file_stem().unwrap().to_str().unwrap()))
        .map(|path| path.display().to_string())
        .collect();
    report("each of tests/promises/*.rs is in a list of tests/gpu/pack", missing);
}

#[test]
fn tests_that_can_be_repeated_say_how() {
    let tests = files()
        .into_iter()
        .filter(|(path, _)| path.starts_with("tests") && is(path, &["rs"]));
    let silent = tests.filter(|(_, text)| text.contains("from_os_rng") || text.contains("rand::rng()"));
    // Chance comes from seeds. This file names what it looks for.
    let silent = silent.filter(|(path, _)| !path.ends_with("tidy/main.rs"));
    report(
        "all chance comes from a seed",
        silent.map(|(path, _)| path.display().to_string()).collect(),
    );
}

/// Where the guide, which is read elsewhere as well, finds the documents beside it.
const REPOSITORY: &str = "https://github.com/gpuvm/gpuvm/blob/main/";

/// The targets of a Markdown text's links, without those to other hosts.
fn links(text: &str) -> impl Iterator<Item = String> {
    let targets = Parser::new(text).filter_map(|event| match event {
        Event::Start(Tag::Link { dest_url, .. }) => Some(dest_url.to_string()),
        _ => None,
    });
    targets.filter(|target| !target.contains("://") || target.starts_with(REPOSITORY))
}

/// The file that a link of the document `from` leads to, both by their paths from the root.
fn linked(from: &Path, file: &str) -> PathBuf {
    match (file, file.strip_prefix(REPOSITORY)) {
        ("", _) => from.to_owned(),
        (_, Some(file)) => file.into(),
        (_, None) => from.parent().expect("in a folder").join(file),
    }
}

/// A heading's anchor as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim_start_matches('#').trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        _ => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
    });
    kept.collect()
}

fn has_anchor(text: &str, wanted: &str) -> bool {
    text.lines().any(|line| line.starts_with('#') && anchor(line) == wanted)
}

#[test]
fn links_of_documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documents: Vec<_> = files().into_iter().filter(|(path, _)| is(path, &["md"])).collect();
    let mut looked_at = 0;
    let mut broken = Vec::new();
    for (path, text) in &documents {
        for target in links(text) {
            looked_at += 1;
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let to = root.join(linked(path, file));
            let found = match heading {
                "" => to.exists(),
                _ => std::fs::read_to_string(&to).is_ok_and(|text| has_anchor(&text, heading)),
            };
            if !found {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    report("a relative link names a file, and its anchor a heading", broken);
    assert!(looked_at > 20, "only {looked_at} links were found");
    assert_eq!(
        links("[a](b.md#c), [d](https://e.org) and [f](#g), `[h](i)`").collect::<Vec<_>>(),
        ["b.md#c", "#g"]
    );
    let here = format!("{REPOSITORY}docs/b.md#c");
    assert_eq!(links(&format!("[a]({here})")).collect::<Vec<_>>(), [here.as_str()]);
    let from = Path::new("docs/guide/src/a.md");
    assert_eq!(linked(from, ""), from);
    assert_eq!(linked(from, "b.md"), Path::new("docs/guide/src/b.md"));
    assert_eq!(linked(from, here.trim_end_matches("#c")), Path::new("docs/b.md"));
    assert_eq!(anchor("## 10. Two `homes`, each page"), "10-two-homes-each-page");
    assert!(has_anchor("# One\ntext\n## A b", "a-b") && !has_anchor("text a-b", "a-b"));
}

/// The paths in backticks in the first column of a README's table of folders.
fn folders(readme: &str) -> Vec<&str> {
    let rows = readme
        .lines()
        .skip_while(|line| !line.starts_with("| folder |"))
        .skip(2);
    let cells = rows.map_while(|row| row.strip_prefix('|')?.split('|').next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn folders_that_the_readme_names_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let named = folders(&readme);
    let missing = named.iter().filter(|path| !root.join(path).is_dir());
    report(
        "a folder of the README's table exists",
        missing.map(|path| path.to_string()).collect(),
    );
    assert!(named.len() > 8, "only {named:?} were found");
    // And none of the repository's is left out.
    let table: Vec<&str> = named.iter().filter_map(|path| path.split('/').next()).collect();
    let unnamed = files().into_iter().filter_map(|(path, _)| {
        let folder = path.components().next()?.as_os_str().to_str()?.to_owned();
        let known = path.components().count() == 1 || folder.starts_with('.') || folder == "docs";
        (!known && !table.contains(&folder.as_str())).then_some(folder)
    });
    let mut unnamed: Vec<String> = unnamed.collect();
    unnamed.dedup();
    report("the README's table has every folder", unnamed);
    assert_eq!(
        folders("| folder | x |\n|---|---|\n| `a/`, `b/c/` | `d` |\n\n| `e` |"),
        ["a/", "b/c/"]
    );
}

/// Words in backticks that are a file's path: a folder, a name and an ending of ours.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(|word| {
        let path = Path::new(word);
        let plain = word.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
        plain
            && path.is_relative()
            && path.components().count() > 1
            && is(path, &["rs", "cu", "cuh", "md", "sh", "yml"])
    })
}

#[test]
fn files_that_documents_name_are_there() {
    let files = files();
    let documents = files.iter().filter(|(path, _)| is(path, &["md"]));
    let missing = documents.flat_map(|(document, text)| {
        named_files(text)
            .filter(|named| !files.iter().any(|(path, _)| path.ends_with(named)))
            .map(move |named| format!("{}: {named}", document.display()))
    });
    report(
        "a file that a document names exists, by the end of its path",
        missing.collect(),
    );
    let text = "`a/b.rs`, `b.rs`, `a b/c.rs`, `https://e.org/c.rs`, a/d.rs\n`/sys/e.md` `detail/f.cuh`";
    assert_eq!(named_files(text).collect::<Vec<_>>(), ["a/b.rs", "detail/f.cuh"]);
}
