//! Comparing codecs with what a C program prints of the public headers.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test file uses its part")]

pub mod mlx5_cases;

use std::collections::HashMap;
use std::io::Write as _;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Facts of public headers, a line for each, `name values`: what a C program printed.
pub struct Reference {
    /// The program.
    pub program: Program,
    /// Its recorded output.
    pub record: &'static str,
    /// The headers, which may be missing.
    pub headers: &'static [&'static str],
    /// The package that has them.
    pub package: &'static str,
}

/// A C program.
pub enum Program {
    /// Its path.
    File(&'static str),
    /// Written from the record's names: a constant's value, a structure's size and alignment, a field's offset and size, as many
    /// of them as the record has. For other names: how they begin, and an expression with `{}` for how they go on.
    FromNames(&'static [(&'static str, &'static str)]),
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

    /// The program's text.
    fn source(&self) -> String {
        let others = match self.program {
            Program::File(path) => return std::fs::read_to_string(path).expect("the program"),
            Program::FromNames(others) => others,
        };
        let mut text = "#include <stddef.h>\n#include <stdio.h>\n".to_owned();
        text.extend(self.headers.iter().map(|header| format!("#include <{header}>\n")));
        text.push_str("int main(void) {\n");
        for line in self.record.lines().filter(|line| !line.starts_with('#')) {
            let (name, values) = line.split_once(' ').expect("values after the name");
            let mut expressions = expressions(name, others);
            expressions.truncate(values.split(' ').count());
            let formats = " %lld".repeat(expressions.len());
            let values: String = expressions
                .iter()
                .map(|value| format!(", (long long)({value})"))
                .collect();
            text.push_str(&format!("printf(\"{name}{formats}\\n\"{values});\n"));
        }
        text + "}\n"
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
        match header_output(&self.source(), arguments) {
            Ok(said) => Some(said),
            // Only a missing compiler or header may be skipped; anything else is an error of the C file.
            Err(why)
                if self
                    .headers
                    .iter()
                    .any(|header| why.contains(&format!("{header}: No such file")))
                    || why.contains("not found")
                    || why.contains("no C compiler")
                    || why.contains("does not start") =>
            {
                // Straight to stderr: the test harness hides what `eprintln!` prints when a test passes.
                let text = format!(
                    "\n*** SKIPPED: {test}: a header of {:?} or a C compiler is missing; the codecs were compared with the \
                     record only (install {})\n",
                    self.headers, self.package
                );
                let _ = std::io::stderr().write_all(text.as_bytes());
                None
            }
            Err(why) => panic!("{test}: the C program does not compile:\n{why}"),
        }
    }
}

/// C expressions for the values of a name, in the record's order.
fn expressions(name: &str, others: &[(&str, &str)]) -> Vec<String> {
    let other = others
        .iter()
        .find_map(|(start, expression)| Some((name.strip_prefix(start)?, expression)));
    if let Some((rest, expression)) = other {
        return vec![expression.replace("{}", rest)];
    }
    if name.starts_with(|sign: char| !sign.is_ascii_lowercase()) {
        return vec![name.to_owned()];
    }
    let (outer, field) = name.split_once('.').unwrap_or((name, ""));
    let kind = if outer == "ibv_gid" { "union" } else { "struct" };
    match field {
        "" => vec![format!("sizeof({kind} {outer})"), format!("_Alignof({kind} {outer})")],
        _ => vec![
            format!("offsetof({kind} {outer}, {field})"),
            format!("sizeof((({kind} {outer} *)0)->{field})"),
        ],
    }
}

/// What the C compiler makes of the header; `Err` tells why it makes nothing.
fn header_output(source: &str, arguments: &[String]) -> Result<String, String> {
    // Tests of one process run at one time.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("gpuvm-header-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let (file, program) = (folder.join("reference.c"), folder.join("reference"));
    std::fs::write(&file, source).map_err(|error| error.to_string())?;
    let host = host();
    let compiler = cc::Build::new()
        .cargo_metadata(false)
        .target(&host)
        .host(&host)
        .opt_level(1)
        .out_dir(&folder)
        .try_get_compiler()
        .map_err(|error| format!("no C compiler: {error}"))?;
    let built = compiler.to_command().arg(&file).arg("-o").arg(&program).output();
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

/// Checks that each of a view's setters changes the bytes of the header's field, and no others.
macro_rules! check_fields {
    ($reference:ident, $view:ident, $structure:literal { $($set:ident($ty:ty) = $name:literal)* }) => {$(
        let found = $crate::reference::touched(256, |buffer| {
            $view::new_checked(buffer).expect("its size").$set(<$ty>::MIN)
        });
        let offset = $reference.number(concat!($structure, ".", $name)) as usize;
        let expected: Vec<_> = (offset..offset + size_of::<$ty>()).collect();
        assert_eq!(found, expected, "{}.{}", $structure, $name);
    )*};
}
pub(crate) use check_fields;
