//! `gpuvm ptx`.

mod first_try;
mod given;
mod registers;

use std::collections::HashMap;
use std::io;
use std::path::Path;

use gpuvm_ptx::{EmbeddedPtx, Rewritten, best, embedded, is_binary, rewrite};

use crate::args::PtxArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::stdout;
pub use first_try::RunArgs;
pub use registers::AssembleError;
use registers::{BeforeAndAfter, Used};

/// Rewrites a file, and prints what was done.
pub fn run(args: &PtxArgs) -> Result<(), CliError> {
    let path = &args.input;
    let bytes = std::fs::read(path).map_err(|source| CliError::ReadPtx {
        path: path.clone(),
        source,
    })?;
    if let Some(kernel) = &args.kernel.run {
        let page_bytes = 1 << args.page_size.page_shift();
        return first_try::run(&args.kernel, kernel, &path.display().to_string(), &bytes, page_bytes);
    }
    let texts = texts(args, bytes)?;
    if texts.len() > 1 && args.output.is_some() {
        return Err(CliError::SeveralTexts {
            path: path.clone(),
            texts: texts.len(),
        });
    }
    let layout = args.page_size.touches(args.touches);
    let rewritten = texts.iter().map(|(_, text)| rewrite(text, &layout));
    let rewritten = rewritten.collect::<Result<Vec<_>, _>>();
    let rewritten = rewritten.map_err(|source| CliError::RewritePtx {
        path: path.clone(),
        source,
    })?;
    if let (Some(output), [one]) = (&args.output, &rewritten[..]) {
        write(output, args.force, one)?;
    }
    let mut changed = 0;
    for ((architecture, text), rewritten) in std::iter::zip(&texts, &rewritten) {
        if let Some(architecture) = architecture {
            stdout::print_line(format_args!("PTX for {architecture}"))?;
        }
        print(args, text, rewritten)?;
        changed += rewritten.report.changed();
    }
    Ok(stdout::print_line(format_args!(
        "{changed} accesses look their page up"
    ))?)
}

/// A text, and the architecture that it was compiled for where the file says so.
type Text = (Option<String>, Vec<u8>);

/// The texts of a file: it is one, or it is a program, a library, an object or a fat binary, which has one of each source file for the GPU
/// that was asked for, or the newest.
fn texts(args: &PtxArgs, bytes: Vec<u8>) -> Result<Vec<Text>, CliError> {
    if !is_binary(&bytes) {
        return Ok(vec![(None, bytes)]);
    }
    let path = || args.input.clone();
    let found = embedded(&bytes).map_err(|source| CliError::FatBinary { path: path(), source })?;
    let chosen = |texts: &Vec<EmbeddedPtx>| match args.architecture {
        Some(architecture) => best(texts, architecture).cloned(),
        None => texts.iter().max_by_key(|text| text.architecture).cloned(),
    };
    let texts: Vec<_> = found
        .iter()
        .filter_map(chosen)
        .map(|text| (Some(format!("compute_{}", text.architecture)), text.text))
        .collect();
    let mut architectures: Vec<u32> = found.iter().flatten().map(|text| text.architecture).collect();
    architectures.sort_unstable();
    architectures.dedup();
    match texts.is_empty() {
        true => Err(CliError::NoPtx {
            path: path(),
            architectures,
        }),
        false => Ok(texts),
    }
}

fn write(path: &Path, force: bool, rewritten: &Rewritten) -> Result<(), CliError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists => CliError::OutputExists { path: path.to_owned() },
        _ => CliError::WritePtx {
            path: path.to_owned(),
            source,
        },
    };
    let output = Output::create_file(path, force).map_err(failed)?;
    let written = output.finish(|out| out.write_all(rewritten.text.as_bytes()));
    written.map_err(failed)
}

/// What was done with each function of a text, and what its kernels take before and after.
fn print(args: &PtxArgs, text: &[u8], rewritten: &Rewritten) -> Result<(), CliError> {
    let asked = args.ptxas.as_deref();
    let program = asked.map(Path::to_owned).or_else(registers::find);
    let counted = program.map(|program| -> Result<_, AssembleError> {
        let text = String::from_utf8_lossy(text);
        let before = registers::used(&program, "as it was given", &text)?;
        Ok((
            before,
            registers::used(&program, "that was rewritten", &rewritten.text)?,
        ))
    });
    let (counted, why_not) = match counted.transpose() {
        Ok(Some(counted)) => (counted, None),
        Ok(None) => {
            let none = "no ptxas in $CUDA_HOME/bin or in $PATH; name one by --ptxas";
            (Default::default(), Some(none.to_owned()))
        }
        Err(source) if asked.is_some() => return Err(CliError::Registers(source)),
        Err(error) => (Default::default(), Some(error.to_string())),
    };
    let (before, after): (HashMap<String, Used>, HashMap<String, Used>) = counted;
    for function in &rewritten.report.functions {
        stdout::print(function)?;
        let both = before.get(&function.name).zip(after.get(&function.name));
        if let Some((before, after)) = both.filter(|_| function.is_entry) {
            let both = BeforeAndAfter(*before, *after);
            stdout::print_line(format_args!("  {:<37}{both}", "registers"))?;
        }
    }
    match why_not {
        Some(why_not) => Ok(stdout::print_line(format_args!("registers are not known: {why_not}"))?),
        None => Ok(()),
    }
}
