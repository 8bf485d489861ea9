//! `gpuvm profile`: what a run did with each page, as text, as JSON, as heat maps.

mod heat;
pub mod report;

use std::io;
use std::path::Path;

use gpuvm::Profile;

use crate::args::ProfileArgs;
use crate::error::CliError;
use crate::output::Output;
use crate::profile::report::ProfileReport;
use crate::stdout;

/// Where a profile goes. Files appear when they are complete.
pub struct Files<'a> {
    json: Option<(&'a Path, Output)>,
    svg: Option<(&'a Path, Output)>,
    prints_json: bool,
}

impl<'a> Files<'a> {
    /// Begins the files, so that one that cannot be written is known before the work.
    ///
    /// # Errors
    /// A file that cannot be written, or both in one.
    pub fn create(args: &'a ProfileArgs) -> Result<Self, CliError> {
        let prints_json = args.json.as_deref() == Some(Path::new("-"));
        if args.json.is_some() && args.json == args.svg {
            return Err(CliError::Options("--json and --svg name one file; name two".to_owned()));
        }
        let create = |path: &'a Path| {
            let created = Output::create(path).map_err(|source| unwritten(path, source));
            created.map(|output| (path, output))
        };
        Ok(Self {
            json: args.json.as_deref().filter(|_| !prints_json).map(create).transpose()?,
            svg: args.svg.as_deref().map(create).transpose()?,
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
    pub fn finish(self, report: &ProfileReport, profile: &Profile) -> Result<(), CliError> {
        let json = || Ok::<_, io::Error>(serde_json::to_string(report)?);
        let written = self.json.map_or(Ok(()), |(path, output)| {
            let written = output.finish(|out| writeln!(out, "{}", json()?));
            written.map_err(|source| unwritten(path, source))
        });
        let drawn = self.svg.map_or(Ok(()), |(path, output)| {
            let drawn = output.finish(|out| svg::write(out, &heat::draw(report, profile)));
            drawn.map_err(|source| unwritten(path, source))
        });
        let printed = match self.prints_json {
            true => json().and_then(stdout::print_line),
            false => stdout::print_line(report),
        };
        written?;
        drawn?;
        Ok(printed?)
    }
}

fn unwritten(path: &Path, source: io::Error) -> CliError {
    CliError::Plot {
        path: path.to_owned(),
        source,
    }
}
