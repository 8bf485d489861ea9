//! `gpuvm profile`: what a run did with each page, as text and as JSON.

pub mod report;

use std::io;
use std::path::Path;

use crate::args::ProfileArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::profile::report::ProfileReport;
use crate::stdout;

/// Where a profile goes. Files appear when they are complete.
pub struct Files<'a> {
    json: Option<(&'a Path, Output)>,
    prints_json: bool,
}

impl<'a> Files<'a> {
    /// Begins the file, so that one that cannot be written is known before the work.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn create(args: &'a ProfileArgs) -> Result<Self, CliError> {
        let prints_json = args.json.as_deref() == Some(Path::new("-"));
        let create = |path: &'a Path| {
            let created = Output::create(path).map_err(|source| unwritten(path, source));
            created.map(|output| (path, output))
        };
        Ok(Self {
            json: args.json.as_deref().filter(|_| !prints_json).map(create).transpose()?,
            prints_json,
        })
    }

    /// Whether the profile is printed in the place of the text.
    pub fn prints_json(&self) -> bool {
        self.prints_json
    }

    /// Writes and prints; each also where another cannot be done.
    ///
    /// # Errors
    /// A file that cannot be written, a standard output that is closed or full.
    pub fn finish(self, report: &ProfileReport) -> Result<(), CliError> {
        let json = || Ok::<_, io::Error>(serde_json::to_string(report)?);
        let written = self.json.map_or(Ok(()), |(path, output)| {
            let written = output.finish(|out| writeln!(out, "{}", json()?));
            written.map_err(|source| unwritten(path, source))
        });
        let printed = match self.prints_json {
            true => json().and_then(stdout::print_line),
            false => stdout::print_line(report),
        };
        written?;
        Ok(printed?)
    }
}

fn unwritten(path: &Path, source: io::Error) -> CliError {
    CliError::Unwritten {
        path: path.to_owned(),
        source,
    }
}
