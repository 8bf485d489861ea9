//! What each kernel takes, from the file `budgets.tsv`: a line for each kernel in each form of the device library, with its registers for
//! each compute capability, and behind a stroke the bytes that it spills. `./test budgets` writes it anew.
//!
//! Registers are given to threads by eights, and the chain of functions of the fault path costs most of them: a hit does not need them, but
//! a thread that may fault has them. Kernels that want the multiprocessor full say so with `__launch_bounds__(threads, blocks)`; then the
//! fault path keeps what does not fit in local memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;

use super::{Form, declared, kernel_files, root, text};

/// Compute capabilities: the oldest that is supported, the first with asynchronous copies to shared memory, and the one that is measured on.
pub const ARCHITECTURES: [u32; 3] = [75, 80, MEASURED];
/// The one whose budgets are kept in every run; those of the others where `GPUVM_TEST_NIGHT` is set.
pub const MEASURED: u32 = 90;
/// Registers above its line that a kernel may take: the step by which threads get them.
const REGISTERS_MORE: u32 = 8;

/// What a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub registers: u32,
    /// Stores and loads together.
    pub spilled_bytes: u32,
}

impl Taken {
    /// What is wrong with a kernel that takes `self`, where its line says `budget`. A quarter more may be spilled: the compiler moves that much
    /// between revisions that change nothing in speed.
    pub fn exceeds(self, budget: Taken) -> Option<String> {
        let spill = match budget.spilled_bytes {
            0 => 0,
            bytes => bytes + bytes / 4 + 64,
        };
        let over = self.registers > budget.registers + REGISTERS_MORE || self.spilled_bytes > spill;
        over.then(|| format!("{self} in place of {budget}"))
    }

    fn read(cell: &str) -> Result<Self, std::num::ParseIntError> {
        let (registers, spilled) = cell.split_once('/').unwrap_or((cell, "0"));
        Ok(Self {
            registers: registers.parse()?,
            spilled_bytes: spilled.parse()?,
        })
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.spilled_bytes {
            0 => write!(f, "{}", self.registers),
            bytes => write!(f, "{}/{bytes}", self.registers),
        }
    }
}

/// A file of kernels in one form, compiled once a compute capability.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit {
    /// From the root of the repository.
    pub path: String,
    /// Macros and their values, with blanks between.
    pub defines: String,
    pub form: Form,
}

impl Unit {
    /// Whether it is one of tests or of the simulator, which `GPUVM_TEST_NIGHT` compiles: no user runs them on an NVIDIA GPU.
    pub fn is_test(&self) -> bool {
        ["tests/", "simulate/"]
            .iter()
            .any(|folder| self.path.starts_with(folder))
    }

    /// Whether it is one of those that `GPUVM_TEST_QUICK` leaves out.
    pub fn is_application(&self) -> bool {
        let folders = ["python/ops/", "workloads/src/apps/", "workloads/src/gps/"];
        folders.iter().any(|folder| self.path.starts_with(folder))
    }

    /// Macros and their values.
    pub fn defines(&self) -> impl Iterator<Item = (&str, &str)> {
        self.defines.split(' ').filter_map(|one| one.split_once('='))
    }

    /// Whether a macro is defined.
    pub fn has(&self, name: &str) -> bool {
        self.defines().any(|(one, _)| one == name)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({:?})", self.path, self.defines, self.form)
    }
}

/// A line: a kernel of a unit.
pub struct Line {
    pub unit: Unit,
    /// The kernel, with arguments where it is a template.
    pub kernel: String,
    /// By [`ARCHITECTURES`]; none where it is not compiled for that one.
    pub budgets: [Option<Taken>; 3],
}

impl Line {
    fn read(line: &str) -> Option<Self> {
        let cells: Vec<&str> = line.split('\t').collect();
        let [path, defines, form, kernel, ref budgets @ ..] = cells[..] else {
            return None;
        };
        let taken = |at: usize| match budgets.get(at)? {
            &"-" => Some(None),
            cell => Taken::read(cell).ok().map(Some),
        };
        Some(Self {
            unit: Unit {
                path: path.to_owned(),
                defines: defines.to_owned(),
                form: Form::ALL.into_iter().find(|known| known.name() == form)?,
            },
            kernel: kernel.to_owned(),
            budgets: [taken(0)?, taken(1)?, taken(2)?],
        })
    }
}

fn file() -> PathBuf {
    root().join("gpu_kernels/tests/nvrtc/budgets.tsv")
}

const HEAD: &str = "file\tdefines\tform\tkernel\tsm_75\tsm_80\tsm_90\n";

/// All lines, in their order.
pub fn lines() -> Vec<Line> {
    let path = file();
    let all = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let rest = all.strip_prefix(HEAD).expect("the names of the columns");
    let line = |(at, text)| Line::read(text).unwrap_or_else(|| panic!("{}:{}: {text}", path.display(), at + 2));
    rest.lines().enumerate().map(line).collect()
}

/// What kernels took, by unit, kernel and compute capability.
pub type Found = Mutex<BTreeMap<(Unit, String, u32), Taken>>;

/// Writes the file with what was found in place of what it said, without kernels that are gone, and with those that are new.
pub fn renew(found: &Found) {
    let found = found.lock().expect("no thread panics with it");
    let mut out = HEAD.to_owned();
    for line in lines().iter().filter(|line| is_declared(line)) {
        let cells = ARCHITECTURES.iter().zip(line.budgets).map(|(architecture, budget)| {
            let key = (line.unit.clone(), line.kernel.clone(), *architecture);
            let taken = budget.map(|budget| found.get(&key).copied().unwrap_or(budget));
            taken.map_or("-".to_owned(), |taken| taken.to_string())
        });
        let (unit, cells) = (&line.unit, cells.collect::<Vec<_>>().join("\t"));
        out.push_str(&format!(
            "{}\t{}\t{}\t{}\t{cells}\n",
            unit.path,
            unit.defines,
            unit.form.name(),
            line.kernel
        ));
    }
    for (path, kernel) in missing() {
        for form in [Form::Direct, Form::Queued] {
            // To be measured.
            out.push_str(&format!("{path}\t\t{}\t{kernel}\t-\t-\t0\n", form.name()));
        }
    }
    std::fs::write(file(), out).unwrap_or_else(|error| panic!("{}: {error}", file().display()));
}

fn plain_name(kernel: &str) -> &str {
    kernel.split('<').next().unwrap_or(kernel)
}

fn is_declared(line: &Line) -> bool {
    root().join(&line.unit.path).exists() && declared(&text(&line.unit.path)).contains(plain_name(&line.kernel))
}

/// Kernels of the repository that have no line, with their files.
pub fn missing() -> Vec<(String, String)> {
    let mut files = BTreeSet::new();
    kernel_files(&root(), &mut files);
    let lines = lines();
    let known: BTreeSet<(&str, &str)> = lines
        .iter()
        .map(|line| (line.unit.path.as_str(), plain_name(&line.kernel)))
        .collect();
    let kernels = files.into_iter().flat_map(|path| {
        let names = declared(&text(&path)).into_iter();
        names.map(move |name| (path.clone(), name)).collect::<Vec<_>>()
    });
    kernels
        .filter(|(path, name)| !known.contains(&(path.as_str(), name.as_str())))
        .collect()
}

/// Lines of kernels that are no more.
pub fn gone() -> Vec<String> {
    let lines = lines();
    let gone = lines.iter().filter(|line| !is_declared(line));
    gone.map(|line| format!("{} {}", line.unit, line.kernel)).collect()
}
