//! Words that were replaced by the field's own, and may not come back.

use std::path::Path;

use super::{files, is, report};

/// Names that something else has now, whole words. Where the new name is not plain from the old one it stands beside it.
const NAMES: &[(&str, &str)] = &[
    ("file_memory", "file_cache"),
    ("file-memory", "file-cache"),
    ("FileMemory", "FileCache"),
    ("foreseen", "premapped"),
    ("unforeseen", "on_demand"),
    ("guarded_regions", "reliable_regions"),
    ("FEATURE_GUARDED", "FEATURE_RELIABLE"),
    ("lane_spans", "thread_spans"),
    ("GivenKind", "ArgKind"),
    ("ByCaller", "External"),
    ("or_lost", "map_device_lost"),
    ("at_rest", "when_idle"),
    ("settle", "wait_idle"),
    ("patience", "timeout"),
    ("mend", "fix, repair or recover"),
    ("mends", "fixes, repairs or recovers"),
    ("mended", "fixed, repaired or recovered"),
    ("mending", "recovery"),
    ("queue_pairs_mended", "queue_pairs_recovered"),
    ("replicas_mended", "replicas_repaired"),
    ("lines_passed_on", "lines_forwarded"),
    ("pass_by_a_queue", "reap_random_queue"),
    ("spare_fewer", "lower_protection"),
    ("let_leave", "try_evict_page"),
    ("gpuvm_age", "gpuvm_mark_stale"),
    ("gpuvm_pass_on", "gpuvm_forward_atomics"),
    ("gpuvm_forget", "gpuvm_clear_errors"),
    ("gpuvm_settle_marks", "gpuvm_clear_marks"),
];

/// Turns of phrase that machines do not need, in comments, documents and texts alike.
const PHRASES: &[(&str, &str)] = &[
    ("memory before files", "file cache"),
    ("file memory", "file cache"),
    ("page table word", "page table entry"),
    ("page table words", "page table entries"),
    ("page words", "page table entries"),
    ("page's word", "page's entry"),
    ("written home", "written back"),
    ("writes home", "writes back"),
    ("wrote home", "wrote back"),
    ("goes home", "is written back"),
    ("go home", "be written back"),
    ("went home", "was written back"),
    ("comes home", "is written back"),
    ("brought home", "written back"),
    ("be had", "be available"),
    ("so many", "this many"),
    ("whoever", "the thread, the caller"),
    ("bench all", "bench core"),
    ("made a mistake", "internal error"),
    ("no whole number of", "not a multiple of"),
];

/// Besides, in what a user reads: texts of messages, the command's help, the settings' descriptions.
const NOT_SAID: &[(&str, &str)] = &[
    ("nobody", "nothing, no thread"),
    ("whoever", "the thread, the caller"),
    ("so many", "this many"),
    ("somebody", "another process"),
    ("lacks", "is missing"),
    ("by chance", "at random"),
];

/// Where words may stand: the begin of a path, the word, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("exec/", "", "not gone over yet"),
    ("sim_gpu/", "", "not gone over yet"),
    ("nic/src/soft", "", "not gone over yet"),
    ("runtime/kernel_nic", "", "not gone over yet"),
    ("simulate/src/scale", "", "not gone over yet"),
    ("docs/SCALE.md", "mended", "a heading that other documents link to"),
    (
        "nic/tests/",
        "settle",
        "a test bed's: the NIC's thread has come to an end",
    ),
    ("tests/loopback_rdma/", "at_rest", "a count of a server without clients"),
    ("tests/promises/metrics.rs", "so many", "so many that"),
    ("tests/promises/memory_node.rs", "so many", "so many that"),
    ("tests/softroce/src/scenarios/start.rs", "be had", "of a system's pages"),
];

/// Whether `word` stands in a line by itself. Letters count alike in either case.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let (line, word) = (line.to_lowercase(), word.to_lowercase());
    line.match_indices(&word).any(|(at, _)| {
        let after = line[at + word.len()..].chars().next();
        !line[..at].chars().next_back().is_some_and(part) && !after.is_some_and(part)
    })
}

fn is_allowed(path: &Path, word: &str) -> bool {
    let path = path.to_string_lossy();
    EXCEPTIONS
        .iter()
        .any(|(begin, allowed, _)| path.starts_with(begin) && (allowed.is_empty() || *allowed == word))
}

/// What stands in the text although something else is said for it.
fn found<'a>(path: &'a Path, text: &str, words: &'a [(&str, &str)]) -> Vec<String> {
    let words = words.iter().filter(|(word, _)| !is_allowed(path, word));
    let words: Vec<_> = words.collect();
    let lines = text.lines().zip(1..);
    let found = lines.flat_map(|(line, number)| {
        let those = words.iter().filter(move |(word, _)| has_word(line, word));
        those.map(move |(word, now)| format!("{}:{number}: `{word}`: say {now}", path.display()))
    });
    found.collect()
}

/// The parts of Rust code that users read: literals, and where `help` is set what documents its items.
fn said(text: &str, help: bool) -> String {
    let lines = text.lines().map(|line| {
        let begin = line.trim_start();
        match begin.strip_prefix("///") {
            Some(doc) if help => doc.to_owned(),
            Some(_) => String::new(),
            None if begin.starts_with("//") => String::new(),
            // Names have no space.
            None => {
                let odd = line.split('"').skip(1).step_by(2);
                odd.filter(|literal| literal.contains(' '))
                    .collect::<Vec<_>>()
                    .join(" ")
            }
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.ends_with("tests.rs")
        || path.starts_with("simulate")
}

/// Documentation of these is the command's help, or describes the settings.
fn is_help(path: &Path) -> bool {
    path.ends_with("args.rs")
        || path == Path::new("cli/src/machine.rs")
        || path == Path::new("runtime/settings/named.rs")
}

#[test]
fn old_words_do_not_come_back() {
    let kinds = [
        "rs", "cuh", "cu", "h", "hpp", "c", "cpp", "py", "pyi", "md", "sh", "toml", "tsv",
    ];
    let (mut broken, mut seen) = (Vec::new(), 0);
    for (path, text) in files() {
        let record = path.starts_with("docs/measurements") || path == Path::new("CHANGELOG.md");
        if record || path.starts_with("tests/tidy") || !is(&path, &kinds) {
            continue;
        }
        seen += 1;
        broken.extend(found(&path, &text, NAMES));
        broken.extend(found(&path, &text, PHRASES));
        if is(&path, &["rs"]) && !is_test(&path) {
            broken.extend(found(&path, &said(&text, is_help(&path)), NOT_SAID));
        }
    }
    report(
        "the field's words are used, see the lists in tests/tidy/words.rs",
        broken,
    );
    assert!(seen > 1000, "only {seen} files were looked at");
}

#[test]
fn old_words_are_found_where_they_stand() {
    let rust = Path::new("runtime/x.rs");
    for (word, now) in NAMES.iter().chain(PHRASES) {
        let text = format!("first\n/// A {word}, and more.\n");
        assert_eq!(
            found(rust, &text, &[(word, now)]),
            [format!("runtime/x.rs:2: `{word}`: say {now}")]
        );
        assert!(found(rust, &format!("a_{word}_b"), &[(word, now)]).is_empty(), "{word}");
    }
    let text = "/// Nobody says.\nfn f() {\n    // nobody\n    g(\"it has nobody\", nobody, \"nobody\");\n}";
    let words = &[("nobody", "none")];
    assert_eq!(found(rust, &said(text, false), words).len(), 1);
    assert_eq!(found(rust, &said(text, true), words).len(), 2);
    assert!(is_allowed(Path::new("exec/src/x.rs"), "mend") && !is_allowed(rust, "mend"));
    assert!(is_allowed(Path::new("docs/SCALE.md"), "mended") && !is_allowed(Path::new("docs/SCALE.md"), "patience"));
}
