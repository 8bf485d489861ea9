//! A port: a program of somebody else, the substitutions that port its kernels, and how both are run and compared.

use std::fmt;
use std::path::Path;
use std::process::Command;

use super::bench::{Bench, Failure, compiles_for_nvidia};
use super::cut;

/// Where a program is from.
pub struct Source {
    /// Its folder below the one that the user names: the repository's name.
    pub folder: &'static str,
    /// Where to clone it from.
    pub url: &'static str,
    /// The revision that the ports are for.
    pub revision: &'static str,
}

/// One port.
pub struct Port {
    /// Its name; the substitutions are in `NAME.sed` beside this file.
    pub name: &'static str,
    /// Where its program is from.
    pub source: &'static Source,
    /// The program's files that hold kernels and what these use. The last one is ported.
    pub files: &'static [&'static str],
    /// The kernels of the original.
    pub kernels: &'static [&'static str],
    /// The kernels of the port, where they are others.
    pub ported: Option<&'static [&'static str]>,
    /// Macros with the size of the problem, as the programs take them.
    pub sizes: &'static [&'static str],
    /// That size on the simulated GPU, and on a real one.
    pub n: [u32; 2],
    /// Lines of the file that the port changes.
    pub changes: usize,
    /// How far apart two results may be, in percent, where the order of additions is open. 0: not a bit.
    pub tolerance: f64,
    /// The host part.
    pub run: fn(&Bench) -> Result<Vec<f64>, Failure>,
}

/// What came out of one port.
pub struct Row {
    name: &'static str,
    lines: usize,
    changes: usize,
    pages: u64,
    frames: u64,
    faults: u64,
    values: usize,
    /// The largest difference in percent.
    apart: f64,
    /// Whether NVRTC was there, and compiled both.
    for_nvidia: bool,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = match self.apart {
            0.0 => "bit for bit".to_owned(),
            apart => format!("within {apart:.1e} %"),
        };
        write!(
            f,
            "{:<30} {:>3} lines, {:>2} changed, {:>6} values {result}, {} pages in {} frames, {} faults",
            self.name, self.lines, self.changes, self.values, self.pages, self.frames, self.faults
        )?;
        match self.for_nvidia {
            true => f.write_str(", compiled by NVRTC too"),
            false => Ok(()),
        }
    }
}

/// Kernels are text of C++ without its standard library: NVRTC has none.
const PRELUDE: &str = "#ifdef __CUDACC_RTC__
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned char uint8_t;
#endif
#ifndef INT_MAX
#define INT_MAX 2147483647
#endif
";

impl Port {
    /// What most ports have, to be filled in.
    pub const NONE: Self = Self {
        name: "",
        source: &Source {
            folder: "",
            url: "",
            revision: "",
        },
        files: &[],
        kernels: &[],
        ported: None,
        sizes: &[],
        n: [0; 2],
        changes: 0,
        tolerance: 0.0,
        run: |_| Err("a port has a host part".into()),
    };

    /// Ports the program below `folder` and compares both.
    ///
    /// # Errors
    /// A file that is missing, substitutions that do not fit it, either text's errors, results that differ.
    pub fn run(&self, folder: &Path) -> Result<Row, Failure> {
        let (last, headers) = self.files.split_last().ok_or("a port has a file")?;
        let original = self.read(folder, last)?;
        let ported = self.substitute(&folder.join(self.source.folder).join(last))?;
        let changes = self.changes(&original, &ported)?;
        let headers: Vec<String> = headers
            .iter()
            .map(|file| self.read(folder, file))
            .collect::<Result<_, _>>()?;
        let n = self.n[usize::from(std::env::var_os("GPUVM_TEST_GPU").is_some())];

        let (text, lines) = self.text(&headers, &original, self.kernels, n);
        let file = format!("{}.cu", self.name);
        compiles_for_nvidia(&file, &text, self.kernels)?;
        let plain = Bench::new(&file, &text, self.kernels, n, None)?;
        let expected = (self.run)(&plain)?;

        let kernels = self.ported.unwrap_or(self.kernels);
        let (text, _) = self.text(&headers, &ported, kernels, n);
        let frames = (plain.pages() / 4).max(2);
        let file = format!("{}.ported.cu", self.name);
        let for_nvidia = compiles_for_nvidia(&file, &text, kernels)?;
        let paged = Bench::new(&file, &text, kernels, n, Some(frames))?;
        let found = (self.run)(&paged)?;
        let stats = paged.stats()?;
        if stats.evictions == 0 {
            return Err(format!("all {} pages found room: nothing was paged", plain.pages()).into());
        }
        Ok(Row {
            name: self.name,
            lines,
            changes,
            pages: plain.pages(),
            frames,
            faults: stats.faults,
            values: found.len(),
            apart: self.compare(&expected, &found)?,
            for_nvidia,
        })
    }

    fn read(&self, folder: &Path, file: &str) -> Result<String, Failure> {
        let path = folder.join(self.source.folder).join(file);
        std::fs::read_to_string(&path).map_err(|error| {
            let Source { url, revision, .. } = self.source;
            let place = folder.display();
            format!(
                "{}: {error}; `git clone {url}` in {place}, revision {revision}",
                path.display()
            )
            .into()
        })
    }

    /// The file's text after the port's substitutions.
    fn substitute(&self, file: &Path) -> Result<String, Failure> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/ports/{}.sed", self.name));
        let output = Command::new("sed").arg("-Ef").args([script.as_path(), file]).output()?;
        if !output.status.success() {
            return Err(format!("sed: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The lines in which both differ, as many as the port is known to change.
    fn changes(&self, original: &str, ported: &str) -> Result<usize, Failure> {
        // Of its own: another test may compare a port of the same name at this moment.
        let folder = tempfile::tempdir()?;
        let [before, after] = ["original.cu", "ported.cu"].map(|name| folder.path().join(name));
        std::fs::write(&before, original)?;
        std::fs::write(&after, ported)?;
        let output = Command::new("diff").args([&before, &after]).output()?;
        let changes = changed(&String::from_utf8(output.stdout)?);
        if changes != self.changes {
            let (wanted, revision) = (self.changes, self.source.revision);
            return Err(format!(
                "the port changes {changes} lines instead of {wanted}: its program is not of revision {revision}, which it is for"
            )
            .into());
        }
        Ok(changes)
    }

    /// What is compiled, and the lines of its kernels and functions.
    fn text(&self, headers: &[String], file: &str, kernels: &[&str], n: u32) -> (String, usize) {
        let names: Vec<&str> = kernels.iter().map(|name| base_name(name)).collect();
        let parts = headers.iter().map(String::as_str).chain([file]);
        let parts: Vec<_> = parts.map(|text| cut::device(text, &names)).collect();
        let sizes = self.sizes.iter().map(|name| format!("#define {name} {n}\n"));
        let includes = parts.iter().map(|part| part.includes.clone());
        let code = parts.iter().map(|part| part.code.clone());
        let text = includes.chain([PRELUDE.to_owned()]).chain(sizes).chain(code).collect();
        (text, parts.iter().map(|part| part.lines).sum())
    }

    /// The largest difference in percent.
    fn compare(&self, expected: &[f64], found: &[f64]) -> Result<f64, Failure> {
        if expected.is_empty() || expected.len() != found.len() {
            return Err(format!("{} results instead of {}", found.len(), expected.len()).into());
        }
        if expected.iter().all(|value| *value == 0.0) {
            return Err("the original's results are all 0: nothing was computed".into());
        }
        let mut most: f64 = 0.0;
        for (place, (expected, found)) in expected.iter().zip(found).enumerate() {
            let apart = match expected.to_bits() == found.to_bits() {
                true => 0.0,
                false => 100.0 * ((expected - found) / expected).abs(),
            };
            // Not a number is too far away as well.
            let near = apart <= self.tolerance;
            if !near {
                return Err(format!("result {place} is {found}, the original's is {expected}").into());
            }
            most = most.max(apart);
        }
        Ok(most)
    }
}

/// A template's name without its arguments.
fn base_name(kernel: &str) -> &str {
    kernel.split('<').next().unwrap_or(kernel)
}

/// Changed lines of a comparison by `diff`: for each place the lines that went or those that came, whichever are more.
fn changed(diff: &str) -> usize {
    let (mut sum, mut went, mut came) = (0, 0, 0);
    for line in diff.lines() {
        match line.as_bytes().first() {
            Some(b'<') => went += 1,
            Some(b'>') => came += 1,
            Some(b'0'..=b'9') => {
                sum += Ord::max(went, came);
                (went, came) = (0, 0);
            }
            _ => {}
        }
    }
    sum + Ord::max(went, came)
}

#[test]
fn changed_lines_are_counted() {
    assert_eq!(changed(""), 0);
    assert_eq!(changed("3a4\n> one\n7,8c8\n< two\n< three\n---\n> four\n"), 1 + 2);
    assert_eq!(changed("7c8,9\n< two\n---\n> four\n> five\n11d12\n< six\n"), 2 + 1);
}
