//! `gpuvm ptx`.

use std::io;

use crate::args::PtxArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::stdout;

/// Rewrites a file, and prints what was done.
pub fn run(args: &PtxArgs) -> Result<(), CliError> {
    let path = args.input.clone();
    let ptx = std::fs::read(&path).map_err(|source| CliError::ReadPtx {
        path: path.clone(),
        source,
    })?;
    let layout = args.page_size.touches(args.touches);
    let rewritten = gpuvm_ptx::rewrite(&ptx, &layout).map_err(|source| CliError::RewritePtx { path, source })?;
    if let Some(path) = &args.output {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => CliError::OutputExists { path: path.clone() },
            _ => CliError::WritePtx {
                path: path.clone(),
                source,
            },
        };
        let output = Output::create_file(path, args.force).map_err(failed)?;
        let written = output.finish(|out| out.write_all(rewritten.text.as_bytes()));
        written.map_err(failed)?;
    }
    let (changed, report) = (rewritten.report.changed(), &rewritten.report);
    stdout::print(report)?;
    Ok(stdout::print_line(format_args!(
        "{changed} accesses look their page up"
    ))?)
}
