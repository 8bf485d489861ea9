//! What it costs to have elastic buffers grow, and what they waste.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use gpuvm::{ElasticBuffer, Grown, Vm};
use gpuvm_gpu::{Gpu, GpuError, Piece};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::bench::driver::{Benchmark, Run};
use crate::bench::machine::{Machine, must_be_right, size};
use crate::bench::report::{Report, Row, Times, Unit};
use crate::error::CliError;

/// Elastic buffers.
#[derive(Debug, Args)]
pub struct ElasticArgs {
    /// Growths of each kind to time.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub growths: u64,

    /// Buffers whose waste is measured; their sizes are log-uniform from 1/20 of a handle to 32, which is 0.1 to 64 MiB on NVIDIA GPUs.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub buffers: u64,
}

/// Handles that one buffer of a row grows to at most.
const HANDLES: u64 = 32;
/// How long memory ahead of a buffer is waited for.
const AHEAD_LIMIT: Duration = Duration::from_secs(10);

impl Benchmark for ElasticArgs {
    const NAME: &'static str = "elastic";
    const DIRECT: bool = true;

    fn measure(run: &Run<'_, Self>, machine: Machine, report: &mut Report) -> Result<(), CliError> {
        let bench = Bench {
            vm: &machine.vm,
            handle: machine.vm.elastic_stats().handles.handle_bytes,
            growths: run.growths,
            repeat: run.repeat,
        };
        let bare = bench.bare(machine.gpu())?;
        let ceiling = bare.runs.clone();
        let rows = [
            bench.first_growths("grow, on demand, new handle", true)?,
            bench.first_growths("grow, on demand, handle used before", false)?,
            bench.premapped("grow by 1/16 of a handle, pre-mapped", bench.handle / 16)?,
            bench.premapped("grow by a handle, pre-mapped", bench.handle)?,
        ];
        for (key, row) in ["on_demand", "on_demand_reused", "premapped", "premapped_handle"]
            .iter()
            .zip(&rows)
        {
            report.first.insert(format!("{key}_us_p50"), row.figure.into());
        }
        report.first.insert("bare_us_p50".to_owned(), bare.figure.into());
        report.rows.push(bare);
        let beside = |row: Row| row.ceiling("a bare handle is made, mapped and opened", &ceiling);
        report.rows.extend(rows.map(beside));
        report.rows.push(bench.without_rests()?);
        let many = bench.many(run.buffers)?;
        let wasted = many.more.get(WASTED).copied().unwrap_or(f64::NAN);
        report.first.insert("wasted_percent".to_owned(), wasted.into());
        report.rows.push(many);
        Ok(())
    }
}

/// What the row of many buffers has besides.
const WASTED: &str = "wasted %";

struct Bench<'a> {
    vm: &'a Vm,
    /// Bytes of a handle.
    handle: u64,
    growths: u64,
    repeat: u32,
}

fn us(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

impl Bench<'_> {
    /// What the driver takes for a handle alone.
    fn bare(&self, gpu: &Arc<dyn Gpu>) -> Result<Row, CliError> {
        let refused = |source: GpuError| CliError::Memory {
            bytes: self.growths * self.handle,
            source,
        };
        self.row("a handle is made, mapped and opened", |_| {
            let mut verified = 0;
            let space = gpu.reserve(self.growths * self.handle, &[]).map_err(refused)?;
            let (mut times, mut pieces) = (Vec::new(), Vec::<Arc<dyn Piece>>::new());
            for i in 0..self.growths {
                let began = Instant::now();
                let piece = gpu.piece().map_err(refused)?;
                space.place(&[(i * self.handle, Arc::clone(&piece))]).map_err(refused)?;
                times.push(us(began.elapsed()));
                pieces.push(piece);
            }
            for i in 0..self.growths {
                let (at, mut found) = (space.addr() + i * self.handle, [0; 8]);
                gpu.write(at, &i.to_ne_bytes()).map_err(refused)?;
                gpu.read(at, &mut found).map_err(refused)?;
                verified += check("a handle of the driver's", i, u64::from_ne_bytes(found))?;
            }
            Ok((times, verified))
        })
    }

    /// First growths of new buffers, which nothing could foresee: of new handles, or of such as the pool has.
    fn first_growths(&self, name: &str, new: bool) -> Result<Row, CliError> {
        let words = self.handle / 8;
        self.row(name, |bench| {
            bench.vm.trim(u64::MAX);
            if !new {
                // Handles that were used before.
                let before = bench.vm.elastic::<u64>(bench.growths * words);
                drop(before.length(bench.growths * words).build()?);
            }
            let (mut times, mut verified, mut buffers) = (Vec::new(), 0, Vec::new());
            for i in 0..bench.growths {
                let buffer = bench.vm.elastic_buffer::<u64>(words)?;
                let grown = buffer.grow(words)?;
                times.push(us(grown.took));
                verified += ends(&buffer, i)?;
                buffers.push(buffer);
            }
            Ok((times, verified))
        })
    }

    /// Growths by this many bytes whose memory was pre-mapped.
    fn premapped(&self, name: &str, step: u64) -> Result<Row, CliError> {
        let words = step / 8;
        self.row(name, |bench| {
            let (mut times, mut verified) = (Vec::new(), 0);
            while (times.len() as u64) < bench.growths {
                let most = HANDLES * bench.handle / 8;
                let buffer = bench.vm.elastic_buffer::<u64>(most)?;
                buffer.grow(words)?;
                while buffer.len() + words <= most && (times.len() as u64) < bench.growths {
                    ahead(&buffer, words)?;
                    let grown: Grown = buffer.grow(words)?;
                    if grown.premapped {
                        times.push(us(grown.took));
                    }
                }
                verified += ends(&buffer, buffer.len())?;
            }
            Ok((times, verified))
        })
    }

    /// Growths one after the other, as fast as can be: some find their memory pre-mapped.
    fn without_rests(&self) -> Result<Row, CliError> {
        let words = self.handle / 16 / 8;
        let mut premapped = 0;
        let row = self.row("grow by 1/16 of a handle, without rests", |bench| {
            let most = bench.growths * words;
            let buffer = bench.vm.elastic_buffer::<u64>(most)?;
            let mut times = Vec::new();
            for _ in 0..bench.growths {
                let grown = buffer.grow(words)?;
                premapped += u64::from(grown.premapped);
                times.push(us(grown.took));
            }
            Ok((times, ends(&buffer, most)?))
        })?;
        let of = (self.growths * u64::from(self.repeat)) as f64;
        Ok(row.and("pre-mapped %", premapped as f64 / of * 100.0))
    }

    fn row(
        &self,
        name: &str,
        mut run: impl FnMut(&Self) -> Result<(Vec<f64>, u64), CliError>,
    ) -> Result<Row, CliError> {
        let (mut all, mut verified) = (Times::default(), 0);
        for _ in 0..self.repeat {
            let (times, words) = run(self)?;
            all.add(times);
            verified += words;
        }
        Ok(all
            .row(name)
            .with("handle", size(self.handle))
            .verified(verified, "words"))
    }

    /// Buffers of many sizes beside each other: the time of all, and the memory that none of them has an element in.
    fn many(&self, buffers: u64) -> Result<Row, CliError> {
        let (mut times, mut verified, mut wasted, mut held) = (Vec::new(), 0, 0.0, 0);
        for run in 0..self.repeat {
            self.vm.trim(u64::MAX);
            let rng = &mut ChaCha8Rng::seed_from_u64(u64::from(run));
            let mut sizes = || {
                let (least, most) = (self.handle as f64 / 20.0, self.handle as f64 * 32.0);
                let bytes = least * (most / least).powf(rng.random::<f64>());
                (bytes / 8.0) as u64
            };
            let lengths: Vec<u64> = (0..buffers).map(|_| sizes()).collect();
            let began = Instant::now();
            let made = lengths
                .iter()
                .map(|length| self.vm.elastic::<u64>(*length).length(*length).build());
            let made: Vec<ElasticBuffer<u64>> = made.collect::<Result<_, _>>()?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
            for (i, buffer) in (0..).zip(&made) {
                write_ends(buffer, i)?;
            }
            for (i, buffer) in (0..).zip(&made) {
                verified += read_ends(buffer, i)?;
            }
            let stats = self.vm.elastic_stats();
            (wasted, held) = (
                f64::max(wasted, stats.wasted() * 100.0),
                stats.handles.held * self.handle,
            );
        }
        Ok(Row::new("buffers of many sizes, all made", Unit::Milliseconds, times)
            .with("handle", size(self.handle))
            .with("buffers", buffers)
            .and(WASTED, wasted)
            .and("held MiB", held as f64 / f64::from(1 << 20))
            .verified(verified, "words"))
    }
}

/// Waits until this many elements are mapped ahead.
fn ahead(buffer: &ElasticBuffer<u64>, words: u64) -> Result<(), CliError> {
    let began = Instant::now();
    while buffer.capacity() < buffer.len() + words {
        if began.elapsed() > AHEAD_LIMIT {
            return Err(CliError::Options(
                "nothing is mapped ahead of an elastic buffer on this GPU: its memory is short, or it follows a seed"
                    .to_owned(),
            ));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

/// Whether a word is what was written: 1 word.
fn check(what: &str, expected: u64, found: u64) -> Result<u64, CliError> {
    must_be_right(u64::from(expected != found), 1, what)?;
    Ok(1)
}

fn write_ends(buffer: &ElasticBuffer<u64>, value: u64) -> Result<(), CliError> {
    buffer.write(0, &[value])?;
    Ok(buffer.write(buffer.len() - 1, &[!value])?)
}

fn read_ends(buffer: &ElasticBuffer<u64>, value: u64) -> Result<u64, CliError> {
    let (mut first, mut last) = ([0], [0]);
    buffer.read(buffer.len() - 1, &mut last)?;
    let last = check("an elastic buffer", !value, last[0])?;
    if buffer.len() == 1 {
        return Ok(last);
    }
    buffer.read(0, &mut first)?;
    Ok(last + check("an elastic buffer", value, first[0])?)
}

/// Writes and reads a buffer's first and last words.
fn ends(buffer: &ElasticBuffer<u64>, value: u64) -> Result<u64, CliError> {
    write_ends(buffer, value)?;
    read_ends(buffer, value)
}
