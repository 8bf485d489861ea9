//! Decode steps of attention over growing sequences, whose keys and values lie in elastic buffers, in blocks of a pool, in paged arrays, or
//! in buffers with room for all: the same kernels and results, other speed and other memory.

use std::{
    error::Error,
    hash::{DefaultHasher, Hash, Hasher},
    io::{Write, stdout},
    time::Instant,
};

use clap::{Parser, ValueEnum};
use gpuvm::{Advice, Arg, Buffer, CompileOptions, Gpu, Launch, LaunchConfig, Value, Vm};
use gpuvm_tenants::{MemorySize, spell_bytes};

type Outcome<T> = Result<T, Box<dyn Error>>;
/// The kernels' `float4`: a lane's numbers of a head.
type Quad = [f32; 4];
const QUAD: u64 = size_of::<Quad>() as u64;

/// Lanes of a warp, which have a head; threads of a thread block; tokens of a block of the pool.
const LANES: u32 = 32;
const THREADS: u32 = 128;
const BLOCK_TOKENS: u32 = 16;
/// Bytes of a page of the paged arrays.
const PAGE: u64 = 4096;

/// Decode steps of attention over sequences whose keys and values grow by a token a step, held in several forms.
#[derive(Debug, Parser)]
#[command(name = "kv_cache")]
struct Options {
    /// The GPU: sim, cuda:N, cuda:GPU-UUID, or auto.
    #[arg(long, default_value = "auto")]
    gpu: Gpu,
    /// The forms to run.
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "preallocated,elastic,blocks,paged"
    )]
    form: Vec<Form>,
    /// Steps that are timed. Without it: 128, or 4 on the simulated GPU.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    steps: Option<u32>,
    /// Memory for the frames of the paged form: a share of the keys and values of the last step, or a size.
    #[arg(long, default_value = "50%")]
    memory: MemorySize,
}

/// How keys and values lie: a function each, below.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Form {
    Preallocated,
    Elastic,
    Blocks,
    Paged,
}

/// What is run, and where.
struct Bench {
    vm: Vm,
    /// Tokens of each sequence before the first step, the longest first, so that it does not begin last.
    prompts: Vec<u32>,
    steps: u32,
    /// How many sequences there are, the most tokens that one comes to, and quads of a token's keys, or of its values.
    sequences: u32,
    capacity: u32,
    row: u32,
    /// Bytes of the keys and values of the last step.
    used: u64,
    /// Which blocks of the pool each sequence has.
    table: Buffer<u32>,
}

/// What a form did: its row of the table, and a hash of what it computed.
type Done = (String, u64);

/// Keys and values.
fn both<T>(mut make: impl FnMut() -> gpuvm::Result<T>) -> gpuvm::Result<[T; 2]> {
    Ok([make()?, make()?])
}

/// Room for as many tokens as the longest sequence comes to, for every sequence: the ceiling.
fn preallocated(bench: &Bench) -> Outcome<Done> {
    let quads = bench.room(bench.sequences);
    let sides = both(|| bench.vm.buffer::<Quad>(quads))?;
    let part = (bench.sequences, sides.each_ref().map(Arg::from));
    bench.run("preallocated", 2 * quads * QUAD, &[part], |_| Ok(()))
}

/// Two elastic buffers a sequence, which grow each step.
fn elastic(bench: &Bench) -> Outcome<Done> {
    let (vm, all) = (&bench.vm, bench.sequences);
    // They begin without an element, and take no memory.
    let buffer = |_| vm.elastic::<Quad>(bench.room(1)).tag("kv cache").build();
    let sides = both(|| (0..all).map(buffer).collect::<gpuvm::Result<Vec<_>>>())?;
    // A buffer that grows stays where it is, so its address is written once. Kernels find the buffers by it, so that launches do not name
    // them, and gpuvm cannot know what they use: before one shrinks or is dropped the launches that use it have to have ended.
    let tables = both(|| vm.buffer::<u64>(all.into()))?;
    for (table, side) in tables.iter().zip(&sides) {
        table.write(&side.iter().map(|buffer| buffer.pointer()).collect::<Vec<_>>())?;
    }
    bench.run("elastic", 0, &[(all, tables.each_ref().map(Arg::from))], |step| {
        for (buffer, prompt) in sides.iter().flat_map(|side| side.iter().zip(&bench.prompts)) {
            buffer.ensure(u64::from(prompt + step) * u64::from(bench.row))?;
        }
        Ok(())
    })
}

/// Blocks of some tokens out of a pool of fixed size, and a table that says which ones a sequence has.
fn blocks(bench: &Bench) -> Outcome<Done> {
    let needed = |prompt: &u32, step: u32| (prompt + step).div_ceil(BLOCK_TOKENS);
    let blocks: u32 = bench.prompts.iter().map(|prompt| needed(prompt, bench.steps)).sum();
    let quads = u64::from(blocks * BLOCK_TOKENS) * u64::from(bench.row);
    let sides = both(|| bench.vm.buffer::<Quad>(quads))?;
    // In no order, as in a pool that sequences have come to and left for some time.
    let mut free: Vec<u32> = (0..blocks).collect();
    free.sort_unstable_by_key(|block| block.wrapping_mul(0x9e37_79b9));
    let (mut taken, most) = (vec![0; bench.prompts.len()], needed(&bench.capacity, 0) as usize);
    let mut rows = vec![0; taken.len() * most];
    let part = (bench.sequences, sides.each_ref().map(Arg::from));
    bench.run("blocks", 2 * quads * QUAD, &[part], |step| {
        let before = free.len();
        for ((prompt, taken), row) in bench.prompts.iter().zip(&mut taken).zip(rows.chunks_mut(most)) {
            for block in *taken..needed(prompt, step) {
                row[block as usize] = free.pop().ok_or("the pool is empty")?;
            }
            *taken = needed(prompt, step);
        }
        if free.len() < before {
            // It waits for the launches that read the table.
            bench.table.write(&rows)?;
        }
        Ok(())
    })
}

/// Paged arrays, of which GPU memory holds a part: for the sequences that stay in their frames, and for those that do not.
///
/// A step reads everything once, in order: with too few frames for all, each page would have left when its turn comes again. The advice
/// that pages are read once has the clock take frames of such pages, so that the others stay.
fn paged(bench: &Bench) -> Outcome<Done> {
    let (vm, all) = (&bench.vm, bench.sequences);
    let frames = vm.frames() * PAGE;
    let staying = match frames >= bench.used + 4 * PAGE * u64::from(all) {
        true => all,
        // The first are the longest, and the others' pages have to pass through the rest.
        false => (u64::from(all) * frames / bench.used * 5 / 8) as u32,
    };
    let mut arrays = Vec::new();
    for (count, advice) in [(staying, Advice::Normal), (all - staying, Advice::ReadOnce)] {
        if count > 0 {
            let sides = both(|| vm.region::<Quad>().zeroed(bench.room(count)))?;
            sides.iter().try_for_each(|side| side.advise(advice).map(drop))?;
            arrays.push((count, sides));
        }
    }
    let parts = arrays
        .iter()
        .map(|(count, sides)| (*count, sides.each_ref().map(Arg::from)));
    bench.run("paged", frames, &parts.collect::<Vec<_>>(), |_| Ok(()))
}

impl Bench {
    fn new(vm: Vm, options: &Options) -> gpuvm::Result<Self> {
        let simulated = vm.device().capabilities().compute_capability.is_none();
        let (sequences, prompt, steps, heads) = if simulated { (16, 64, 4, 2) } else { (64, 2048, 128, 32) };
        let longer = |n: u32| prompt + prompt * n / (sequences - 1);
        let prompts: Vec<u32> = (0..sequences).rev().map(longer).collect();
        let (steps, row) = (options.steps.unwrap_or(steps), heads * LANES);
        let (tokens, capacity) = (prompts.iter().sum::<u32>() + sequences * steps, 2 * prompt + steps);
        Ok(Self {
            table: vm.buffer(u64::from(sequences * capacity.div_ceil(BLOCK_TOKENS)))?,
            vm,
            prompts,
            steps,
            sequences,
            capacity,
            row,
            used: 2 * u64::from(tokens) * u64::from(row) * QUAD,
        })
    }

    /// Quads of room for the keys of this many sequences, or for their values.
    fn room(&self, sequences: u32) -> u64 {
        u64::from(sequences) * u64::from(self.capacity) * u64::from(self.row)
    }

    /// Runs and times all steps. `parts` are what launches take: how many sequences, their keys and their values. `make_room` makes room for
    /// the tokens of a step, while the one before may run.
    fn run(
        &self,
        form: &str,
        gpu_bytes: u64,
        parts: &[(u32, [Arg<'_>; 2])],
        mut make_room: impl FnMut(u32) -> Outcome<()>,
    ) -> Outcome<Done> {
        let vm = &self.vm;
        let names = ["append", "attend"].map(|kernel| format!("{kernel}<{form}>"));
        let (source, names) = (include_str!("kv_cache.cu"), names.each_ref().map(String::as_str));
        let [append, attend] = vm.kernels("kv_cache.cu", source, names, &CompileOptions::default())?;
        let out = vm.buffer::<Quad>(u64::from(self.sequences * self.row))?;
        let prompts = vm.buffer(self.sequences.into())?;
        prompts.write(&self.prompts)?;
        let begin = |step: u32| {
            let (mut launches, mut first) = (Vec::new(), 0);
            for (count, [keys, values]) in parts {
                let grid = |blocks| LaunchConfig::grid([blocks, *count, 1], [THREADS, 1, 1]);
                let shape = Value([self.capacity, self.row, first]);
                let args = || (keys.clone(), values.clone(), &self.table, &prompts, &out, shape, step);
                launches.push(append.launch(grid(self.row.div_ceil(THREADS)), args()));
                launches.push(attend.launch(grid(self.row / LANES), args()));
                first += count;
            }
            launches
        };
        // Step 0 stores the prompts, and is not timed: the driver loads kernels when they are launched first.
        make_room(0)?;
        end(begin(0))?;
        let (stats, elastic, began) = (vm.stats()?, vm.elastic_stats(), Instant::now());
        make_room(1)?;
        let (mut time, mut hasher, mut found) = (began.elapsed(), DefaultHasher::new(), Vec::new());
        for step in 1..=self.steps {
            let began = Instant::now();
            let launches = begin(step);
            let room = (step < self.steps).then(|| make_room(step + 1)).transpose();
            end(launches)?;
            room?;
            time += began.elapsed();
            found = out.to_vec()?;
            bytemuck::cast_slice::<Quad, u8>(&found).hash(&mut hasher);
        }
        if !self.is_the_cpus(bytemuck::cast_slice(&found)) {
            return Err(format!("{form}: the last step is not what the CPU computes").into());
        }
        let (speed, now) = (
            f64::from(self.sequences * self.steps) / time.as_secs_f64(),
            vm.elastic_stats(),
        );
        let memory = spell_bytes(gpu_bytes + now.handles.held * now.handles.handle_bytes);
        let [premapped, not] = [now.premapped - elastic.premapped, now.on_demand - elastic.on_demand];
        let fetched = vm.stats()?.pages_fetched - stats.pages_fetched;
        let row = format!("{form:<14}{speed:>12.0}{memory:>14}{premapped:>18}{not:>12}{fetched:>16}");
        Ok((row, hasher.finish()))
    }

    /// Whether the first head of the first sequence has in the last step what the CPU computes.
    fn is_the_cpus(&self, found: &[f32]) -> bool {
        // A number of a row, as the kernels draw it: exactly so, since it has 24 bits.
        let drawn = |which: u64, token: u32, index: u64| {
            let hash = u64::from(token) << 20 | which << 18 | index;
            let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((hash ^ hash >> 31) >> 40) as f64 / f64::from(1 << 23) - 1.0
        };
        let (mut sums, mut weights) = ([0.0; 4 * LANES as usize], 0.0);
        for token in 0..self.capacity {
            let product = |i| drawn(0, token, i) * drawn(2, self.capacity - 1, i);
            let dot: f64 = (0..sums.len() as u64).map(product).sum();
            let weight = (dot / (sums.len() as f64).sqrt()).exp();
            weights += weight;
            sums.iter_mut()
                .zip(0..)
                .for_each(|(sum, i)| *sum += weight * drawn(1, token, i));
        }
        // About a hundred roundings of a `float` are let pass.
        (sums.iter().zip(found)).all(|(sum, found)| (sum / weights - f64::from(*found)).abs() <= 1e-5)
    }
}

/// Waits for all launches before it tells the first error: nothing may go while a launch uses it.
fn end(launches: Vec<gpuvm::Result<Launch>>) -> gpuvm::Result<()> {
    let ends: Vec<_> = launches.into_iter().map(|launch| launch?.sync()).collect();
    ends.into_iter().try_for_each(|end| end.map(drop))
}

/// Runs all forms, compares their results, and gives a table.
fn decode(options: &Options) -> Outcome<Vec<String>> {
    let machine = |gpu: &Gpu, frames: u64| {
        let frames = frames.next_multiple_of(PAGE).max(16 * PAGE);
        let builder = Vm::builder().gpu(gpu.clone()).page_size(PAGE);
        Bench::new(builder.frame_memory(frames).build()?, options)
    };
    let bench = machine(&options.gpu, 0)?;
    let (gpu, name) = (Gpu::from(bench.vm.device().clone()), bench.vm.gpu_name());
    let [sequences, most, steps, heads] = [bench.sequences, bench.capacity, bench.steps, bench.row / LANES];
    let mut table = vec![
        format!("{sequences} sequences of up to {most} tokens, {steps} steps, {heads} heads of 128 numbers, on {name}"),
        "form              tokens/s    GPU memory growths premapped   on demand   pages fetched".to_owned(),
    ];
    let mut first = None;
    for &form in &options.form {
        let (row, digest) = match form {
            Form::Preallocated => preallocated(&machine(&gpu, 0)?),
            Form::Elastic => elastic(&machine(&gpu, 0)?),
            Form::Blocks => blocks(&machine(&gpu, 0)?),
            Form::Paged => paged(&machine(&gpu, options.memory.bytes_of(bench.used))?),
        }?;
        table.push(row);
        if *first.get_or_insert(digest) != digest {
            return Err(format!("{form:?}: the results are not those of the first form").into());
        }
    }
    let used = spell_bytes(bench.used);
    table.push(format!(
        "keys and values are {used} at last; all forms have the same bits in every step"
    ));
    Ok(table)
}

fn main() -> Outcome<()> {
    Ok(writeln!(stdout(), "{}", decode(&Options::parse())?.join("\n"))?)
}

#[cfg(test)]
mod tests {
    /// Differences of results are errors, so that it ends tells that there are none.
    #[test]
    fn all_forms_have_the_same_results_and_memory_of_their_own() {
        let run = |words: [&str; 2]| {
            let words = ["kv_cache", "--gpu", "sim"].into_iter().chain(words);
            super::decode(&clap::Parser::try_parse_from(words).unwrap()).unwrap()
        };
        let number = |row: &str, back: usize| row.split_whitespace().nth_back(back).unwrap().parse::<u64>().unwrap();
        let table = run(["--steps", "9"]);
        // Keys and values of 16 sequences, 9 times.
        assert_eq!(number(&table[3], 2) + number(&table[3], 1), 2 * 16 * 9, "{table:?}");
        let fetched = |memory: &str| number(&run(["--form=paged", memory])[2], 0);
        let (all, half) = (fetched("--memory=200%"), fetched("--memory=50%"));
        assert!(half > 4 * all.max(100), "{half}, {all} with frames for all");
    }
}
