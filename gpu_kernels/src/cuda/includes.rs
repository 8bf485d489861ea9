//! `#include` lines: how headers in memory find each other, and which files a source reads.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// An `#include` line.
struct Include<'a> {
    /// What is between the quotes or brackets; none when a macro stands there.
    name: Option<&'a str>,
    quoted: bool,
}

fn parse(line: &str) -> Option<Include<'_>> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start();
    let rest = rest.strip_prefix("include")?;
    let rest = rest.strip_prefix("_next").unwrap_or(rest).trim_start();
    let (close, quoted) = match rest.chars().next()? {
        '"' => ('"', true),
        '<' => ('>', false),
        _ => {
            return Some(Include {
                name: None,
                quoted: false,
            });
        }
    };
    let name = rest[1..].split(close).next();
    Some(Include { name, quoted })
}

/// `name` as seen from the file `from`, without `.` and `..`.
fn beside(from: &str, name: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// All headers for NVRTC: the crate's own and `extra`. NVRTC knows headers in memory by their whole name only, so includes of neighbours
/// are spelled out.
pub(crate) fn headers(extra: &[(String, String)]) -> Vec<(String, String)> {
    let own = crate::headers().iter();
    let mut all: Vec<(String, String)> = own.map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
    for (name, text) in extra {
        // The caller's own takes the place of one of the same name.
        all.retain(|(other, _)| other != name);
        all.push((name.clone(), text.clone()));
    }
    let names: BTreeSet<String> = all.iter().map(|(name, _)| name.clone()).collect();
    for (name, text) in &mut all {
        *text = spelled_out(name, text, &names);
    }
    all
}

/// `text` with its includes of headers in memory by their whole names. Lines stay lines.
pub(crate) fn spelled_out(file: &str, text: &str, names: &BTreeSet<String>) -> String {
    let mut all = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let near = match parse(line) {
            Some(Include {
                name: Some(name),
                quoted: true,
            }) => Some((name, beside(file, name))),
            _ => None,
        };
        match near {
            Some((name, whole)) if names.contains(&whole) => {
                all.push_str(&line.replacen(&format!("\"{name}\""), &format!("\"{whole}\""), 1));
            }
            _ => all.push_str(line),
        }
    }
    all
}

/// What a source reads from `dirs`, whatever its macros choose: the files' names and texts; none when a macro
/// names a file, so that this cannot be told.
pub(crate) fn files(text: &str, dirs: &[PathBuf]) -> Option<Vec<(PathBuf, Vec<u8>)>> {
    let mut found: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    let mut waiting = vec![(None::<PathBuf>, text.to_owned())];
    let mut seen = BTreeSet::new();
    while let Some((file, text)) = waiting.pop() {
        for include in text.lines().filter_map(parse) {
            let name = include.name?;
            let own = file.as_deref().and_then(Path::parent).filter(|_| include.quoted);
            let places = own.into_iter().chain(dirs.iter().map(PathBuf::as_path));
            for path in places.map(|place| place.join(name)) {
                if !seen.insert(path.clone()) {
                    continue;
                }
                match fs::read(&path) {
                    Ok(bytes) => {
                        waiting.push((Some(path.clone()), String::from_utf8_lossy(&bytes).into_owned()));
                        found.push((path, bytes));
                    }
                    // That it is missing matters too: another folder's file is taken instead, until it appears.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => found.push((path, Vec::new())),
                    Err(_) => return None,
                }
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_spelled_out() {
        let names = BTreeSet::from(["gpuvm/layouts.h".to_owned(), "gpuvm/detail/a.cuh".to_owned()]);
        let text =
            "#include \"../layouts.h\" // x\n#  include \"a.cuh\"\n#include <a.cuh>\n#include \"other.h\"\nint x;";
        let all = spelled_out("gpuvm/detail/b.cuh", text, &names);
        assert_eq!(
            all,
            "#include \"gpuvm/layouts.h\" // x\n#  include \"gpuvm/detail/a.cuh\"\n#include <a.cuh>\n#include \"other.h\"\nint x;"
        );
    }

    #[test]
    fn every_own_include_is_found() {
        let all = headers(&[]);
        let names: BTreeSet<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains("gpuvm/gpuvm.cuh"));
        for (file, text) in &all {
            for include in text.lines().filter_map(parse).filter(|include| include.quoted) {
                let name = include.name.expect("a name");
                assert!(
                    names.contains(name) || name.ends_with("platform_sim.cuh"),
                    "{name} in {file}"
                );
            }
        }
    }

    #[test]
    fn a_changed_file_is_seen() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("a.h"), "#include \"b.h\"\n").expect("a file");
        fs::write(dir.path().join("b.h"), "int b;").expect("a file");
        let dirs = [dir.path().to_owned()];
        let before = files("#include <a.h>\n", &dirs).expect("plain includes");
        assert_eq!(before.iter().filter(|(_, bytes)| !bytes.is_empty()).count(), 2);
        fs::write(dir.path().join("b.h"), "int c;").expect("a file");
        assert_ne!(files("#include <a.h>\n", &dirs), Some(before));
        assert_eq!(files("#include NAME\n", &dirs), None);
    }
}
