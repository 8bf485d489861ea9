//! Pages of a file larger than the memory before it, beside bare reads of the same file by io_uring at the same depth.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use clap::Args;
use gpuvm::{Buffer, LaunchConfig, Module};
use tempfile::TempPath;

use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{Machine, Tally, must_be_right, pattern, shuffled, size};
use crate::bench::report::{Report, Row, Runs, Unit};
use crate::error::CliError;
use crate::sizes::parse_bytes;

/// Files larger than memory.
#[derive(Debug, Args)]
pub struct FilesArgs {
    /// Where the file is, which goes with the run: on the disk that is to be measured, with room for --data.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub dir: PathBuf,

    /// Bytes of the file.
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = parse_bytes)]
    pub data: u64,

    /// Bytes of the file cache in host memory, which holds blocks of the file.
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = parse_bytes)]
    pub file_cache: u64,

    /// The file cache is in GPU memory: blocks come there past the host's memory by GPUDirect Storage. The file has a name then, which stays in
    /// --dir if the run is ended by a signal.
    #[arg(long)]
    pub file_cache_on_gpu: bool,

    /// Page sizes.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "4KiB,64KiB", value_parser = parse_bytes)]
    pub page_size: Vec<u64>,

    /// Pages that are asked for at a time: lanes of the kernel, which ask for one each, and bare reads. Rounded up to a multiple of --block-lanes, for both.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub depth: u32,

    /// Lanes of a block. Lanes of one warp of a GPU go on together, so each waits for the slowest: fewer lanes a block keep more requests under way, by more warps.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub block_lanes: u32,

    /// Pages that are read in one run. Without it: all of them, 65536 at most.
    #[arg(long, value_name = "N")]
    pub pages: Option<u64>,
}

const SOURCE: &str = include_str!("files.cu");
const KERNEL: &str = "read_next";
/// Pages that a run reads at most unless it is said.
const PAGES_USUAL: u64 = 65536;

impl Benchmark for FilesArgs {
    const NAME: &'static str = "files";

    fn measure(run: &Run<'_, Self>, probe: Machine, report: &mut Report) -> Result<(), CliError> {
        drop(probe);
        let (file, name) = made(&run.dir, run.data, run.file_cache_on_gpu)?;
        // A file without a name leaves nothing behind, however the run ends: this is its path as long as it is open.
        let unnamed = || PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let path = name.as_ref().map_or_else(unnamed, |name| name.to_path_buf());
        for &page_bytes in &run.page_size {
            let bench = Bench::new(run, &path, page_bytes)?;
            for (name, order) in bench.orders() {
                report.rows.push(bench.row(name, &order)?);
            }
        }
        Ok(())
    }
}

/// A file that holds the pattern, without a name unless one is needed.
fn made(dir: &Path, bytes: u64, named: bool) -> Result<(File, Option<TempPath>), CliError> {
    let failed = |source| CliError::Output {
        path: dir.to_owned(),
        source,
    };
    let (mut file, name) = match named {
        // cuFile takes no file without a name.
        true => {
            let (file, name) = tempfile::NamedTempFile::new_in(dir).map_err(failed)?.into_parts();
            (file, Some(name))
        }
        false => (tempfile::tempfile_in(dir).map_err(failed)?, None),
    };
    let part = 1 << 20;
    let mut words = vec![0u64; part];
    let mut first = 0;
    while first * 8 < bytes {
        for (index, word) in (first..).zip(&mut words) {
            *word = pattern(index);
        }
        let here = (bytes - first * 8).min(8 * part as u64);
        file.write_all(&bytemuck::cast_slice(&words)[..here as usize])
            .map_err(failed)?;
        first += part as u64;
    }
    file.sync_all().map_err(failed)?;
    Ok((file, name))
}

struct Bench<'a> {
    args: &'a Run<'a, FilesArgs>,
    path: &'a Path,
    machine: Machine,
    module: Module,
    tally: Tally,
    page_bytes: u64,
    pages: u64,
    /// Pages of one run.
    touched: u64,
    /// Pages that are asked for at a time, by lanes and by bare reads alike.
    depth: u32,
}

impl<'a> Bench<'a> {
    fn new(args: &'a Run<'a, FilesArgs>, path: &'a Path, page_bytes: u64) -> Result<Self, CliError> {
        let pages = args.data / page_bytes.max(1);
        let touched = args.pages.unwrap_or(PAGES_USUAL).min(pages);
        if touched == 0 || pages > u64::from(u32::MAX >> 1) {
            let page = size(page_bytes);
            return Err(CliError::Options(format!(
                "the file has {pages} pages of {page}, of which {touched} are read: it must have 1 to 2147483647"
            )));
        }
        // Frames for what is asked for at a time, and some that are kept free.
        let depth = args.depth.next_multiple_of(args.block_lanes);
        let frames = 4 * u64::from(depth);
        let builder = args
            .machine
            .builder(page_bytes, None)?
            .frame_memory(frames * page_bytes);
        let builder = match args.file_cache_on_gpu {
            true => builder.file_cache_on_gpu(args.file_cache),
            false => builder.file_cache(args.file_cache),
        };
        let machine = Machine::of(builder, page_bytes)?;
        Ok(Self {
            args,
            path,
            module: machine.compile("bench/files.cu", SOURCE, KERNEL)?,
            tally: Tally::new(&machine)?,
            machine,
            page_bytes,
            pages,
            touched,
            depth,
        })
    }

    /// In which order pages are read.
    fn orders(&self) -> [(&'static str, Vec<u32>); 2] {
        let cut = |mut order: Vec<u32>| {
            order.truncate(self.touched as usize);
            order
        };
        [
            ("random", cut(shuffled(self.pages, 7))),
            ("sequential", cut((0..self.pages as u32).collect())),
        ]
    }

    fn row(&self, name: &str, order: &[u32]) -> Result<Row, CliError> {
        let order_there = self.machine.upload(order)?;
        let (mut rates, mut bare) = (Vec::new(), Vec::new());
        let (mut reads, mut bytes) = (0.0, 0.0);
        // By turns, since the disk is shared with others.
        for _ in 0..self.args.repeat {
            let before = self.machine.vm.file_stats().unwrap_or_default();
            rates.push(self.touched as f64 / self.run(&order_there)? / 1e6);
            let after = self.machine.vm.file_stats().unwrap_or_default();
            reads = (after.reads - before.reads) as f64;
            bytes = (after.read_bytes - before.read_bytes) as f64;
            bare.push(self.touched as f64 / self.bare(order)? / 1e6);
        }
        let figure = Runs(rates.clone()).median();
        Ok(Row::new("files", Unit::MegaPages, rates)
            .with("page", size(self.page_bytes))
            .with("data", size(self.args.data))
            .with("memory", self.memory())
            .with("order", name)
            .with("depth", self.depth)
            .with("block lanes", self.args.block_lanes)
            .with("touched", self.touched)
            .and("GB/s", figure * self.page_bytes as f64 / 1e3)
            .and("reads", reads)
            .and(
                "bytes read of those asked for %",
                bytes * 100.0 / (self.touched * self.page_bytes) as f64,
            )
            .ceiling("bare io_uring", &Runs(bare))
            .verified(self.touched, "pages"))
    }

    /// The file cache, and what reads into it.
    fn memory(&self) -> String {
        let place = if self.args.file_cache_on_gpu {
            " of the GPU's"
        } else {
            ""
        };
        let engine = self.machine.vm.file_engine().unwrap_or_default();
        format!("{}{place} by {engine}", size(self.args.file_cache))
    }

    /// Reads the pages by nothing but io_uring; the seconds that it took.
    fn bare(&self, order: &[u32]) -> Result<f64, CliError> {
        let offsets: Vec<u64> = order.iter().map(|page| u64::from(*page) * self.page_bytes).collect();
        let mut wrong = 0;
        let took = gpuvm_files::read_bare(
            self.path,
            &offsets,
            self.page_bytes as u32,
            self.depth,
            |place, page| {
                let (words, _) = page.as_chunks::<8>();
                wrong += u64::from(u64::from_ne_bytes(words[0]) != pattern(offsets[place] / 8));
            },
        );
        let took = took.map_err(|source| CliError::Output {
            path: self.path.to_owned(),
            source,
        })?;
        must_be_right(wrong, self.touched, "the bare reads")?;
        Ok(took.as_secs_f64())
    }

    /// Reads the pages once, cold; the seconds that it took.
    fn run(&self, order: &Buffer<u32>) -> Result<f64, CliError> {
        // Made anew, so that neither frames nor the file cache hold any page of it.
        let region = self.machine.vm.region::<u64>().name("file").map_file(self.path)?;
        let kernel = self.module.kernel(KERNEL)?;
        let config = LaunchConfig::new(self.depth / self.args.block_lanes, self.args.block_lanes);
        let args = (&region, order, self.touched, self.machine.page_words, self.tally.arg());
        let (seconds, _) = self.tally.run(&kernel, config, args, self.touched)?;
        region.close()?;
        Ok(seconds)
    }
}
