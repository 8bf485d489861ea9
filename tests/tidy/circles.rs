//! The runtime's modules depend on each other in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{files, is, report};

/// Names that follow `crate::` in a text, also in the braces of `crate::{a, b::c}`.
fn used(text: &str) -> BTreeSet<String> {
    let word = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut found = BTreeSet::new();
    for rest in text.split("crate::").skip(1) {
        let Some(group) = rest.strip_prefix('{') else {
            found.insert(word(rest));
            continue;
        };
        let (mut depth, mut begins) = (0, true);
        for (at, c) in group.char_indices() {
            match c {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                c if begins && c.is_alphabetic() => {
                    found.insert(word(&group[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    found
}

/// The modules that each top-level module of `runtime/` uses outside of its tests.
fn modules() -> BTreeMap<String, BTreeSet<String>> {
    let mut modules = BTreeMap::<String, BTreeSet<String>>::new();
    for (path, text) in files() {
        let Ok(inner) = path.strip_prefix("runtime") else {
            continue;
        };
        let name = inner
            .components()
            .next()
            .map(|part| Path::new(part.as_os_str()).with_extension(""));
        let name = name.unwrap_or_default().display().to_string();
        if !is(&path, &["rs"])
            || name == "lib"
            || inner
                .components()
                .any(|part| part.as_os_str().to_string_lossy().starts_with("tests"))
        {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let code: Vec<&str> = lines.collect();
        modules.entry(name).or_default().extend(used(&code.join("\n")));
    }
    let names: BTreeSet<String> = modules.keys().cloned().collect();
    for (name, uses) in &mut modules {
        uses.retain(|used| used != name && names.contains(used));
    }
    modules
}

/// What is left when modules that use none of the others, or that none of them uses, are taken away again and again.
fn circles(mut modules: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    loop {
        let ends = modules
            .iter()
            .find(|(name, uses)| uses.is_empty() || !modules.values().any(|others| others.contains(*name)));
        let Some(end) = ends.map(|(name, _)| name.clone()) else {
            return modules
                .iter()
                .map(|(name, uses)| format!("{name} uses {uses:?}"))
                .collect();
        };
        modules.remove(&end);
        for uses in modules.values_mut() {
            uses.remove(&end);
        }
    }
}

#[test]
fn modules_of_the_runtime_depend_in_one_direction() {
    let modules = modules();
    let uses: usize = modules.values().map(BTreeSet::len).sum();
    assert!(
        modules.len() > 20 && uses > 40,
        "{} modules with {uses} uses",
        modules.len()
    );
    report("no module of runtime/ is in a circle", circles(modules));
    let found = used("use crate::{a::{x, y}, b, c::d};\ncrate::e::f()");
    assert_eq!(
        found.iter().map(String::as_str).collect::<Vec<_>>(),
        ["a", "b", "c", "e"]
    );
    let module = |name: &str, uses: &[&str]| (name.to_owned(), uses.iter().map(|used| (*used).to_owned()).collect());
    let circle = [
        module("a", &["b"]),
        module("b", &["c", "d"]),
        module("c", &["b"]),
        module("d", &[]),
    ];
    assert_eq!(circles(BTreeMap::from(circle)).len(), 2);
}
