//! The file of a result, which one rank writes.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use gpuvm_workloads::apps::{Column, Format, with_ids};
use gpuvm_workloads::graph::{Graph, GraphSpec};

use crate::{ClusterError, Ranks};

/// The file of a result: as `gpuvm run` writes it, in the format that its name says. All ranks make one; rank 0 writes it.
#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    format: Format,
}

impl ResultFile {
    /// Looks whether it can be written, before the work is done. It must not be the graph.
    ///
    /// # Errors
    /// [`ClusterError::Format`]; [`ClusterError::Options`] for the graph itself; [`ClusterError::Output`] on rank 0.
    pub fn new(path: &Path, graph: &GraphSpec, ranks: &dyn Ranks) -> Result<Self, ClusterError> {
        let format = Format::of(path)?;
        let path = path.to_owned();
        if ranks.place().rank != 0 {
            return Ok(Self { path, format });
        }
        let is = |of: &Path| std::fs::canonicalize(of).ok();
        if let GraphSpec::File(graph) = graph
            && is(&path).is_some_and(|path| is(graph) == Some(path))
        {
            let what = format!("--output {} is the graph itself; name another file", path.display());
            return Err(ClusterError::Options(what));
        }
        let own = Self { path, format };
        if own.is_replaced() {
            drop(own.begin().map_err(own.failed())?);
        }
        Ok(own)
    }

    /// Writes the rank of each vertex, by the vertices' ids in the graph's file. It appears under its name when it is whole.
    ///
    /// # Errors
    /// [`ClusterError::Output`]: there is no file then.
    pub fn write(&self, graph: &Graph, ranks: Vec<f32>) -> Result<(), ClusterError> {
        let columns = with_ids(graph, vec![Column::new("rank", ranks)]);
        let written = match self.is_replaced() {
            true => self.begin().and_then(|mut file| {
                self.fill(&columns, file.as_file_mut())?;
                file.as_file().sync_all()?;
                file.persist(&self.path).map(drop).map_err(|error| error.error)
            }),
            false => {
                let file = std::fs::OpenOptions::new().append(true).open(&self.path);
                file.and_then(|mut file| self.fill(&columns, &mut file))
            }
        };
        written.map_err(self.failed())
    }

    /// Whether it is a regular file, or none yet: no device or pipe, which must not be replaced.
    fn is_replaced(&self) -> bool {
        std::fs::metadata(&self.path).map_or(true, |known| known.is_file())
    }

    /// Another file in its folder, which goes when it is dropped.
    fn begin(&self) -> io::Result<tempfile::NamedTempFile> {
        use std::os::unix::fs::PermissionsExt;
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // As any new file: the process's mask takes its share.
        let mode = std::fs::Permissions::from_mode(0o666);
        tempfile::Builder::new()
            .prefix(".gpuvm-")
            .suffix(".tmp")
            .permissions(mode)
            .tempfile_in(folder)
    }

    fn fill(&self, columns: &[Column], file: &mut std::fs::File) -> io::Result<()> {
        let mut out = io::BufWriter::with_capacity(1 << 16, file);
        self.format.write(columns, &mut out)?;
        out.flush()
    }

    fn failed(&self) -> impl FnOnce(io::Error) -> ClusterError {
        let path = self.path.clone();
        move |source| ClusterError::Output { path, source }
    }
}
