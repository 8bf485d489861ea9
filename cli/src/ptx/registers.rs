//! Registers of kernels, as CUDA's assembler counts them.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The assembler's name.
const PTXAS: &str = "ptxas";

/// What a kernel takes once it is machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of registers that a thread stores to local memory.
    pub spilled: u32,
}

/// Why an assembler said nothing.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// It did not run.
    #[error("{} cannot be run", program.display())]
    NotRun {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It does not take the text.
    #[error("{} rejects the PTX {which}: {said}", program.display())]
    Refused {
        /// The program.
        program: PathBuf,
        /// As it was given, or rewritten.
        which: &'static str,
        /// Its first complaint.
        said: String,
    },
    /// The text could not be handed over.
    #[error("cannot write a file for {PTXAS}; set TMPDIR to a folder that can be written")]
    Folder(#[from] io::Error),
}

/// The assembler that `$CUDA_HOME` or `$PATH` has.
pub fn find() -> Option<PathBuf> {
    let home = std::env::var_os("CUDA_HOME").filter(|home| !home.is_empty());
    let of_home = home.map(|home| Path::new(&home).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = of_home.into_iter().chain(std::env::split_paths(&path));
    folders
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(PTXAS))
        .find(|program| program.is_file())
}

/// What the kernels of a text take, by their names. `which` text it is goes into errors.
///
/// # Errors
/// [`AssembleError`].
pub fn used(program: &Path, which: &'static str, text: &str) -> Result<HashMap<String, Used>, AssembleError> {
    let folder = tempfile::tempdir()?;
    let input = folder.path().join("kernels.ptx");
    std::fs::write(&input, text)?;
    let mut command = Command::new(program);
    // Functions of other modules, such as printf, are linked later.
    command.args(["-c", "-v"]).arg(format!("-arch={}", target(text)));
    command.arg("-o").arg(folder.path().join("kernels.cubin")).arg(&input);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|source| AssembleError::NotRun {
        program: program.to_owned(),
        source,
    })?;
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    if output.status.success() {
        return Ok(counted(&said));
    }
    let mut lines = said.lines().filter(|line| !line.trim().is_empty());
    let complaint = lines
        .clone()
        .find(|line| line.contains("error") || line.contains("fatal"));
    let complaint = complaint.or_else(|| lines.next()).map(|line| {
        // The file is of no use to its reader.
        line.replace(&format!("{}, ", input.display()), "").trim().to_owned()
    });
    Err(AssembleError::Refused {
        program: program.to_owned(),
        which,
        said: complaint.unwrap_or_else(|| output.status.to_string()),
    })
}

/// The architecture that a text is for.
fn target(text: &str) -> &str {
    let behind = text.split_once(".target").map_or("", |(_, behind)| behind.trim_start());
    let end = behind.find(|c: char| !c.is_alphanumeric() && c != '_');
    &behind[..end.unwrap_or(behind.len())]
}

/// What `ptxas -v` says of kernels: `Compiling entry function 'NAME'`, perhaps behind other functions `Function properties for NAME` with
/// bytes that are spilled, and `Used N registers`.
fn counted(said: &str) -> HashMap<String, Used> {
    let number_before = |line: &str, what: &str| -> Option<u32> {
        let (before, _) = line.split_once(what)?;
        before.trim_end().rsplit(' ').next()?.parse().ok()
    };
    let mut found: HashMap<String, Used> = HashMap::new();
    let (mut kernel, mut is_own) = ("", true);
    for line in said.lines() {
        if let Some((_, behind)) = line.split_once("Compiling entry function '") {
            kernel = behind.split('\'').next().unwrap_or_default();
            is_own = true;
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            is_own = name.trim() == kernel;
        } else if let Some(bytes) = number_before(line, " bytes spill stores") {
            if is_own && !kernel.is_empty() {
                found.entry(kernel.to_owned()).or_default().spilled = bytes;
            }
        } else if let Some(registers) = number_before(line, " registers")
            && line.contains("Used ")
            && !kernel.is_empty()
        {
            found.entry(kernel.to_owned()).or_default().registers = registers;
        }
    }
    found
}

/// What a kernel takes before and after.
#[derive(Debug, Clone, Copy)]
pub struct BeforeAndAfter(pub Used, pub Used);

impl fmt::Display for BeforeAndAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(before, after) = self;
        write!(f, "{} before, {} after", before.registers, after.registers)?;
        match before.spilled + after.spilled {
            0 => Ok(()),
            _ => write!(f, "; bytes spilled: {} before, {} after", before.spilled, after.spilled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_and_spills_are_read_from_what_the_assembler_says() {
        let said = "ptxas info    : 32 bytes gmem, 32 bytes cmem[3]\n\
            ptxas info    : Compiling entry function 'one' for 'sm_90'\n\
            ptxas info    : Function properties for one\n    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n\
            ptxas info    : Used 24 registers, used 0 barriers, 8 bytes cumulative stack size\n\
            ptxas info    : Compile time = 3.1 ms\n\
            ptxas info    : Compiling entry function 'two' for 'sm_90'\n\
            ptxas info    : Function properties for helper\n    0 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads\n\
            ptxas info    : Used 7 registers\n";
        let found = counted(said);
        let used = |registers, spilled| Used { registers, spilled };
        assert_eq!((found["one"], found["two"], found.len()), (used(24, 12), used(7, 0), 2));
        let both = BeforeAndAfter(used(7, 0), used(24, 12)).to_string();
        assert_eq!(both, "7 before, 24 after; bytes spilled: 0 before, 12 after");
        assert_eq!(BeforeAndAfter(used(7, 0), used(9, 0)).to_string(), "7 before, 9 after");
        assert!(counted("").is_empty() && counted("Used 3 registers").is_empty());
    }

    #[test]
    fn a_text_names_its_architecture() {
        for (text, name) in [
            (".version 8.0\n.target sm_90a\n", "sm_90a"),
            (".target\tsm_80, debug\n", "sm_80"),
            (".target sm_75", "sm_75"),
            ("", ""),
        ] {
            assert_eq!(target(text), name);
        }
    }
}
