//! Comparing codecs with what a C program prints of the public headers.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test file uses its part")]

pub mod mlx5_cases;

use std::collections::HashMap;
use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A C program that prints a line for each fact, `name value`, and its recorded output.
pub struct Reference {
    /// The program's path.
    pub source: &'static str,
    /// Its recorded output.
    pub record: &'static str,
    /// The header that may be missing, and the package that has it.
    pub header: &'static str,
    /// The package that has it.
    pub package: &'static str,
}

impl Reference {
    /// The recorded facts.
    pub fn facts(&self) -> HashMap<&'static str, &'static str> {
        self.record
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once(' '))
            .collect()
    }

    /// A recorded number.
    pub fn number(&self, name: &str) -> u64 {
        let text = self.facts().get(name).copied().unwrap_or_default();
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number in the record"))
    }

    /// Fails unless the headers of this machine, if they and a compiler are there, say what the record says.
    pub fn check_record(&self, test: &str) {
        let Some(said) = self.run(test, &[]) else { return };
        let recorded: Vec<_> = self.record.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(said.lines().collect::<Vec<_>>(), recorded);
    }

    /// What the program says with these arguments; `None`, with a word of it, where the header or a compiler is missing.
    pub fn run(&self, test: &str, arguments: &[String]) -> Option<String> {
        match header_output(self.source, arguments) {
            Ok(said) => Some(said),
            // Only a missing compiler or header may be skipped; anything else is an error of the C file.
            Err(why)
                if why.contains(self.header) && why.contains("No such file")
                    || why.contains("not found")
                    || why.contains("no C compiler")
                    || why.contains("does not start") =>
            {
                // Straight to stderr: the test harness hides what `eprintln!` prints when a test passes.
                let text = format!(
                    "\n*** SKIPPED: {test}: <{}> or a C compiler is missing; the codecs were compared with the recorded \
                     bytes only (install {})\n",
                    self.header, self.package
                );
                let _ = std::io::stderr().write_all(text.as_bytes());
                None
            }
            Err(why) => panic!("{} does not compile:\n{why}", self.source),
        }
    }
}

/// What the C compiler makes of the header; `Err` tells why it makes nothing.
fn header_output(source: &str, arguments: &[String]) -> Result<String, String> {
    // Tests of one process run at one time.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("gpuvm-header-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let program = folder.join("reference");
    let host = host();
    let compiler = cc::Build::new()
        .cargo_metadata(false)
        .target(&host)
        .host(&host)
        .opt_level(1)
        .out_dir(&folder)
        .try_get_compiler()
        .map_err(|error| format!("no C compiler: {error}"))?;
    let built = compiler.to_command().arg(source).arg("-o").arg(&program).output();
    let result = match built {
        Err(error) => Err(format!("the C compiler does not start: {error}")),
        Ok(output) if !output.status.success() => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Ok(_) => Command::new(&program)
            .args(arguments)
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .map_err(|error| error.to_string()),
    };
    let _ = std::fs::remove_dir_all(&folder);
    result
}

fn host() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Bytes that a setter changes.
pub fn touched(bytes: usize, set: impl Fn(&mut [u8])) -> Vec<usize> {
    let mut buffer = vec![0xa5; bytes];
    set(&mut buffer);
    (0..bytes).filter(|i| buffer[*i] != 0xa5).collect()
}

/// Checks that a view's setter changes the bytes of the header's field, and no others.
macro_rules! check_field {
    ($reference:expr, $view:ident, $set:ident, $ty:ty, $structure:literal, $name:literal) => {
        let bytes = 256;
        let found = $crate::reference::touched(bytes, |buffer| {
            $view::new_checked(buffer).expect("its size").$set(<$ty>::MIN)
        });
        let offset = $reference.number(concat!($structure, ".", $name)) as usize;
        let expected: Vec<_> = (offset..offset + size_of::<$ty>()).collect();
        assert_eq!(found, expected, "{}.{}", $structure, $name);
    };
}
pub(crate) use check_field;
