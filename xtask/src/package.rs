//! The packages of the crates that are published: made as `cargo publish` makes them, looked at, and installed from.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{Doing, TaskError, cargo, root};

/// Largest package, in bytes: the registry of crates takes ten million.
const BYTES_MAX: u64 = 10_000_000;

/// A package that is complete.
#[derive(Debug)]
pub struct Packed {
    /// The crate's name.
    pub name: String,
    /// How many files it has.
    pub files: usize,
    /// Its size, packed.
    pub bytes: u64,
    /// The packed file.
    archive: PathBuf,
    /// The folder in it.
    folder: String,
}

/// Runs a program, which may write to the terminal what is no result, and returns its output.
fn run(command: &mut Command, program: &'static str, package: &'static str) -> Result<String, TaskError> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|source| TaskError::Program {
        program,
        package,
        source,
    })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(text),
        false => Err(TaskError::Failed { program, output: text }),
    }
}

fn run_cargo(command: &mut Command) -> Result<String, TaskError> {
    run(command, "cargo", "cargo")
}

/// What the registry shows and searches that a crate's manifest does not say.
fn unsaid(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let empty = |key: &&str| match &package[*key] {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    };
    let keys = [
        "description",
        "license",
        "repository",
        "readme",
        "keywords",
        "categories",
    ];
    let missing = keys.iter().filter(|key| empty(key));
    missing.map(|key| format!("{name}: no {key}")).collect()
}

/// A path without `..`, as far as that can be known; none that leads out of the folder that it is relative to.
fn inside(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => found.push(name),
            Component::CurDir => {}
            Component::ParentDir if found.pop() => {}
            _ => return None,
        }
    }
    Some(found)
}

/// The files that a Rust file has the compiler read, by their literal paths.
fn reads(text: &str) -> impl Iterator<Item = &str> {
    ["include_str!(\"", "include_bytes!(\"", "include!(\"", "#[path = \""]
        .into_iter()
        .flat_map(|begin| text.split(begin).skip(1).filter_map(|rest| rest.split('"').next()))
}

/// All files below a folder, by their paths from it.
fn files(folder: &Path) -> Result<BTreeSet<PathBuf>, TaskError> {
    let (mut found, mut open) = (BTreeSet::new(), vec![PathBuf::new()]);
    while let Some(below) = open.pop() {
        let here = folder.join(&below);
        for entry in fs::read_dir(&here).doing("read", &here)? {
            let entry = entry.doing("read", &here)?;
            let path = below.join(entry.file_name());
            match entry.path().is_dir() {
                true => open.push(path),
                false => drop(found.insert(path)),
            }
        }
    }
    Ok(found)
}

/// What an unpacked package lacks that its build, or its licences, ask for.
fn lacks(folder: &Path, files: &BTreeSet<PathBuf>) -> Result<Vec<String>, TaskError> {
    let mut missing: Vec<String> = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"]
        .into_iter()
        .filter(|name| !files.contains(Path::new(name)))
        .map(str::to_owned)
        .collect();
    for file in files
        .iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
    {
        let path = folder.join(file);
        let text = fs::read_to_string(&path).doing("read", &path)?;
        let parent = file.parent().unwrap_or(Path::new(""));
        let absent = reads(&text).filter(|read| !inside(&parent.join(read)).is_some_and(|path| files.contains(&path)));
        missing.extend(absent.map(|read| format!("{read}, which {} reads", file.display())));
    }
    Ok(missing)
}

/// Unpacks a package into a folder.
fn unpack(archive: &Path, to: &Path) -> Result<(), TaskError> {
    let mut tar = Command::new("tar");
    tar.arg("--extract")
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(to);
    run(&mut tar, "tar", "tar").map(drop)
}

fn temporary() -> Result<tempfile::TempDir, TaskError> {
    tempfile::tempdir().doing("make a folder in", &std::env::temp_dir())
}

/// Packs every crate of the workspace that is published, and checks that each package has what its build reads and what the registry shows.
///
/// # Errors
/// [`TaskError`]; [`TaskError::Incomplete`] with all that is missing.
pub fn package() -> Result<Vec<Packed>, TaskError> {
    let mut metadata = Command::new(cargo());
    metadata.args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let metadata = run_cargo(metadata.current_dir(root()))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(TaskError::Metadata)?;
    let target = Path::new(metadata["target_directory"].as_str().unwrap_or("target"));
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    // A list of registries that is empty is `publish = false`.
    let (published, kept): (Vec<_>, Vec<_>) = packages.iter().partition(|package| {
        package["publish"]
            .as_array()
            .is_none_or(|registries| !registries.is_empty())
    });
    let name = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();

    let mut pack = Command::new(cargo());
    pack.args([
        "package",
        "--workspace",
        "--no-verify",
        "--allow-dirty",
        "--locked",
        "--quiet",
    ]);
    for package in kept {
        pack.arg("--exclude").arg(name(package));
    }
    run_cargo(pack.current_dir(root()))?;

    let unpacked = temporary()?;
    let (mut done, mut missing) = (Vec::new(), Vec::new());
    for package in published {
        let name = name(package);
        let folder = format!("{name}-{}", package["version"].as_str().unwrap_or_default());
        let archive = target.join("package").join(format!("{folder}.crate"));
        unpack(&archive, unpacked.path())?;
        let here = unpacked.path().join(&folder);
        let files = files(&here)?;
        missing.extend(unsaid(package));
        missing.extend(lacks(&here, &files)?.iter().map(|what| format!("{name}: no {what}")));
        let bytes = fs::metadata(&archive).doing("look at", &archive)?.len();
        if bytes > BYTES_MAX {
            missing.push(format!("{name}: {bytes} bytes are too many"));
        }
        done.push(Packed {
            name,
            files: files.len(),
            bytes,
            archive,
            folder,
        });
    }
    match missing.is_empty() {
        true => Ok(done),
        false => Err(TaskError::Incomplete(missing)),
    }
}

/// Installs the command from the packages alone, takes their sources away, and returns what the command says of a small search.
///
/// # Errors
/// [`TaskError`].
pub fn install_command(packages: &[Packed]) -> Result<String, TaskError> {
    // Not below the repository, whose workspace the packages are no members of.
    let (sources, installed) = (temporary()?, temporary()?);
    let mut install = Command::new(cargo());
    install.arg("install").arg("--root").arg(installed.path());
    // Its own build folder, which is kept: the crates of others are built once.
    install.arg("--target-dir").arg(root().join("target/packages"));
    for package in packages {
        unpack(&package.archive, sources.path())?;
        let folder = sources.path().join(&package.folder);
        match package.name.as_str() {
            "gpuvm-cli" => install.arg("--path").arg(&folder),
            // In the registry's place, where it is not yet.
            name => install.arg("--config").arg(format!(
                "patch.crates-io.{name}.path={:?}",
                folder.display().to_string()
            )),
        };
    }
    // As users build: with the headers inside.
    run_cargo(install.env_remove("GPUVM_HEADERS").current_dir(sources.path()))?;
    drop(sources);
    let mut search = Command::new(installed.path().join("bin/gpuvm"));
    search.args(["run", "bfs", "kron:10", "--gpu", "sim", "--memory", "25%"]);
    run(search.env_remove("GPUVM_HEADERS"), "gpuvm", "gpuvm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_that_lacks_a_file_is_told() {
        let folder = temporary().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // In pieces: this file is not packed itself, but read when packing.
        let include = |path: &str| format!("const A: &str = {}(\"{path}\");\n", "include_str!");
        for name in ["README.md", "LICENSE-MIT", "src/a.cu"] {
            write(name, "");
        }
        write(
            "src/lib.rs",
            &(include("a.cu") + &include("../README.md") + &include("../../b.cu")),
        );
        write("src/m/n.rs", &include("../c.cu"));
        let found = files(folder.path()).unwrap();
        assert_eq!(found.len(), 5);
        let missing = lacks(folder.path(), &found).unwrap();
        let wanted = [
            "LICENSE-APACHE",
            "../../b.cu, which src/lib.rs reads",
            "../c.cu, which src/m/n.rs reads",
        ];
        assert_eq!(missing, wanted);
    }

    #[test]
    fn a_manifest_that_says_too_little_is_told() {
        let package = serde_json::json!({"name": "a", "description": "b", "license": "MIT", "repository": null, "readme": "README.md",
            "keywords": [], "categories": ["science"]});
        assert_eq!(unsaid(&package), ["a: no repository", "a: no keywords"]);
    }
}
