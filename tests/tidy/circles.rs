//! The files of each crate use each other in one direction.
//!
//! A module is a file. It uses another one of its crate where its code names an item that the other one defines, by a path that begins with
//! `crate`, `super`, `self`, a module below it, or an imported name. Paths are followed through imports: `crate::gpu::View` uses `gpu/view.rs`
//! where `gpu.rs` says `pub use view::View`. A file that re-exports what it does not name itself does not use it. So a parent that only
//! re-exports its children is in no circle with them; a child that uses a type of its parent is, if the parent uses the child. Tests do not
//! count, and methods are not followed.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use super::{files, is, report};

/// A name that a file imports, by which path, and whether for others.
struct Import {
    name: String,
    path: String,
    public: bool,
}

/// A file: what it imports, and its code without that.
struct Module {
    imports: Vec<Import>,
    code: String,
}

/// Two paths behind each other, of which each may be empty.
fn join(path: &str, rest: &str) -> String {
    let both = if path.is_empty() || rest.is_empty() { "" } else { "::" };
    [path, both, rest].concat()
}

/// Adds what a tree like `a::{b, c::d as e}` imports.
fn add_imports(tree: &str, before: &str, public: bool, found: &mut Vec<Import>) {
    let tree = tree.trim();
    if let Some((path, group)) = tree.strip_suffix('}').and_then(|tree| tree.split_once('{')) {
        let (path, mut depth) = (join(before, path.trim_end_matches("::")), 0);
        let at_comma = |c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        };
        let trees = group.split(at_comma).filter(|tree| !tree.trim().is_empty());
        return trees.for_each(|tree| add_imports(tree, &path, public, found));
    }
    let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
    let path = if path == "self" {
        before.to_owned()
    } else {
        join(before, path)
    };
    let last = path.rsplit("::").next().unwrap_or_default();
    let name = if name.is_empty() { last } else { name }.to_owned();
    found.push(Import { name, path, public });
}

impl Module {
    fn of(text: &str) -> Self {
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let (mut imports, mut code, mut left_out) = (Vec::new(), String::new(), false);
        let mut lines = text.lines().map(|line| {
            let without_strings: Vec<&str> = line.split('"').step_by(2).collect();
            without_strings
                .concat()
                .split("//")
                .next()
                .unwrap_or_default()
                .to_owned()
        });
        while let Some(line) = lines.next() {
            let whole = line.trim_start();
            let of_others = whole
                .strip_prefix("pub")
                .map(|item| item.trim_start_matches(|c| c != ' '));
            let item = of_others.unwrap_or(whole).trim_start();
            if let Some(tree) = item.strip_prefix("use ") {
                let mut tree = tree.to_owned();
                while !tree.contains(';') {
                    tree += lines.next().expect("an import ends").trim();
                }
                if !left_out {
                    add_imports(tree.trim_end_matches(';'), "", of_others.is_some(), &mut imports);
                }
            } else if !(item.starts_with("mod ") && item.ends_with(';')) {
                code += &line;
                code.push('\n');
            }
            left_out = matches!(item, "#[cfg(test)]" | "#[cfg(doc)]");
        }
        Self { imports, code }
    }

    /// Paths in its code, also of one word. Neither fields, methods, nor names of parameters.
    fn paths(&self) -> BTreeSet<&str> {
        let paths = self.code.split(|c: char| !c.is_alphanumeric() && !"_:.".contains(c));
        let paths = paths.map(|path| path.trim_start_matches(".."));
        let paths = paths.filter(|path| !path.starts_with('.') && (!path.ends_with(':') || path.ends_with("::")));
        paths
            .filter_map(|path| path.trim_matches(':').split('.').next())
            .collect()
    }

    fn defines(&self, name: &str) -> bool {
        let mut kinds = "fn struct enum const static type trait union macro_rules!".split(' ');
        kinds.any(|kind| self.code.contains(&format!("{kind} {name}")))
    }
}

/// The modules of a crate by their path from its root.
struct Crate(BTreeMap<String, Module>);

impl Crate {
    /// The module into which a path leads from a module by its first word, if that is of the crate.
    fn enter(&self, from: &str, word: &str) -> Option<String> {
        match word {
            "crate" => Some(String::new()),
            "self" => Some(from.to_owned()),
            "super" => Some(from.rsplit_once("::").map_or("", |(parent, _)| parent).to_owned()),
            _ => Some(join(from, word)).filter(|below| self.0.contains_key(below)),
        }
    }

    /// The file that defines what a path leads to from a module; none if it is of another crate. This many imports are followed.
    fn resolve(&self, from: &str, path: &str, most: u32) -> Option<String> {
        let mut words = path.split("::");
        let mut module = self.enter(from, words.next()?)?;
        for word in words {
            if let Some(entered) = self.enter(&module, word) {
                module = entered;
                continue;
            }
            let here = self.0.get(&module).filter(|_| word != "*" && most > 0);
            let imports = here.map_or(&[][..], |here| &here.imports);
            let follow = |import: &Import| self.resolve(&module, &import.path, most - 1);
            let by_name = imports.iter().filter(|import| import.name == word).find_map(follow);
            let defines = |module: &String| self.0.get(module).is_some_and(|module| module.defines(word));
            let mut all = imports.iter().filter(|import| import.name == "*").filter_map(follow);
            let found = by_name.or_else(|| all.find(defines).filter(|_| !defines(&module)));
            return found.or(Some(module));
        }
        Some(module)
    }

    /// The modules that one uses.
    fn used_by(&self, name: &str) -> BTreeSet<String> {
        let (module, paths) = (&self.0[name], self.0[name].paths());
        let first = |path: &str| path.split("::").next().unwrap_or_default().to_owned();
        let named: BTreeSet<String> = paths.iter().map(|path| first(path)).collect();
        let imports = module.imports.iter();
        let imports = imports.filter(|import| !import.public || named.contains(&import.name));
        let whole = |path: &&str| {
            let (first, rest) = path.split_once("::")?;
            let import = module.imports.iter().find(|import| import.name == first);
            Some(import.map_or_else(|| (*path).to_owned(), |import| join(&import.path, rest)))
        };
        let used = imports
            .map(|import| import.path.clone())
            .chain(paths.iter().filter_map(whole));
        let used = used.filter_map(|path| self.resolve(name, &path, 8));
        used.filter(|used| used != name && self.0.contains_key(used)).collect()
    }

    /// Sets of modules of which each one leads to each other one.
    fn circles(&self) -> BTreeSet<Vec<String>> {
        let uses: BTreeMap<&String, _> = self.0.keys().map(|name| (name, self.used_by(name))).collect();
        let reached = |from| {
            let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
            while let Some(one) = left.pop() {
                left.extend(uses[one].iter().filter(|next| seen.insert(*next)));
            }
            seen
        };
        let reached: BTreeMap<&String, _> = uses.keys().map(|name| (*name, reached(name))).collect();
        let circle = |name: &&String| -> Vec<String> {
            let others = reached[*name].iter().filter(|other| reached[**other].contains(name));
            others.map(|other| (*other).clone()).collect()
        };
        reached.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
    }
}

/// The crates of the repository, by the folders of their sources.
fn crates() -> BTreeMap<PathBuf, Crate> {
    let files = files();
    let of_one = |(manifest, text): &(PathBuf, String)| {
        let lib = text.split("[lib]").nth(1).and_then(|lib| lib.split("\n[").next());
        let lib = lib.and_then(|lib| lib.split("path = \"").nth(1)?.split('"').next());
        let folder = manifest.with_file_name(lib.unwrap_or("src/lib.rs"));
        let folder = folder.parent()?.to_owned();
        let module = |(path, text): &(PathBuf, String)| {
            let inner = path.strip_prefix(&folder).ok().filter(|path| is(path, &["rs"]))?;
            let words: Vec<_> = inner.iter().map(|word| word.to_str().unwrap_or_default()).collect();
            let left_out = words.iter().any(|word| word.starts_with("tests") || *word == "bin");
            let name = words.join("::");
            let name = ["mod.rs", "lib.rs", ".rs"]
                .iter()
                .find_map(|end| name.strip_suffix(end))?;
            (!left_out).then(|| (name.trim_end_matches("::").to_owned(), Module::of(text)))
        };
        let mut modules: BTreeMap<_, _> = files.iter().filter_map(module).collect();
        if let Some(main) = modules.remove("main") {
            modules.entry(String::new()).or_insert(main);
        }
        Some((folder, Crate(modules)))
    };
    let packages = files
        .iter()
        .filter(|(path, text)| path.ends_with("Cargo.toml") && text.contains("[package]"));
    packages.filter_map(of_one).collect()
}

#[test]
fn files_of_a_crate_use_each_other_in_one_direction() {
    let crates = crates();
    let modules: usize = crates.values().map(|one| one.0.len()).sum();
    assert!(modules > 500, "{modules} modules");
    let in_one = |(folder, one): (&PathBuf, &Crate)| -> Vec<String> {
        let circles = one.circles();
        circles
            .iter()
            .map(|circle| format!("{}: {circle:?}", folder.display()))
            .collect()
    };
    let found = crates.iter().flat_map(in_one).collect();
    report("no file is in a circle of files that use each other", found);
}

#[test]
fn circles_of_files_are_found() {
    let found = |files: &[(&str, &str)]| -> Vec<String> {
        let module = |(name, text): &(&str, &str)| ((*name).to_owned(), Module::of(text));
        let circles = Crate(files.iter().map(module).collect()).circles();
        circles.into_iter().map(|circle| circle.join(" ")).collect()
    };
    // Through imports of others, in groups, and by a name that was imported.
    let root = ("", "pub use a::A;\nmod a;");
    let a = ("a", "use crate::{b::{c::X, Y as Z}, d};\nfn f(x: d::e::W) {}");
    let b = ("b", "pub struct Y;\nmod c;");
    let c = ("b::c", "use crate::A;\npub struct X;");
    let e = ("d::e", "fn f() { super::super::a::f() }");
    assert_eq!(found(&[root, a, b, c, ("d", "pub mod e;"), ("d::e", "")]), ["a b::c"]);
    assert_eq!(found(&[root, a, b, ("d", ""), e]), ["a d::e"]);
    // A parent that re-exports what it does not name, and one that does. Neither tests nor comments.
    let child = ("p::c", "use super::T;\npub struct C;");
    let parent = |code| found(&[("", ""), ("p", code), child]);
    assert!(parent("mod c;\npub use c::C;\nstruct T;\nfn f() -> E { E::C.c }").is_empty());
    assert!(parent("struct T; // c::C\n#[cfg(test)]\nuse c::C;\n#[cfg(test)]\nmod tests {\nuse c::C;").is_empty());
    assert_eq!(parent("mod c;\npub use c::C;\nstruct T(C);"), ["p p::c"]);
}
