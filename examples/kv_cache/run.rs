//! Runs a form, and times its steps.

use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use gpuvm::{Arg, Buffer, CompileOptions, ElementType, Gpu, Kernel, Launch, LaunchConfig, Vm};

use crate::{
    args::Plan,
    cache::{Cache, Form, Four, Part, blocks_max},
    error::Problem,
    paged::frame_bytes,
};

const SOURCE: &str = include_str!("kv_cache.cu");
/// Threads of a block: `32 * kWarps` of the kernels.
const THREADS: u32 = 128;

/// What the kernels are told of the sizes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Shape {
    heads: u32,
    quads: u32,
    capacity: u32,
    block_tokens: u32,
    blocks: u32,
    first: u32,
}

/// What a form did.
pub struct Outcome {
    /// The form.
    pub form: Form,
    /// The time of all steps in each run.
    pub times: Vec<Duration>,
    /// Bytes that sequences held after the last step.
    pub held_bytes: u64,
    /// Bytes of GPU memory that were taken for keys and values.
    pub gpu_bytes: u64,
    /// Growths of elastic buffers in the steps of the last run.
    pub growths: Growths,
    /// Pages that were fetched in the steps of the last run.
    pub pages_fetched: u64,
    /// What the last step computed: rows of all sequences.
    pub results: Vec<Four>,
    /// A hash of what all steps computed, for each four numbers of a row.
    pub digests: Vec<u64>,
}

/// Growths that had to map memory or to wait for it, and others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growths {
    /// Only a length moved.
    pub foreseen: u64,
    /// The caller waited for memory.
    pub unforeseen: u64,
}

impl Outcome {
    /// The median of the runs.
    pub fn time(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        // Of an even number, the later one in the middle.
        times.get(times.len() / 2).copied().unwrap_or_default()
    }

    /// Whether the results are those of another form, or of another run, bit for bit.
    ///
    /// # Errors
    /// [`Problem::Differs`].
    pub fn check_beside(&self, other: &Self) -> Result<(), Problem> {
        let bits = |four: &Four| four.map(f32::to_bits);
        let results = self.results.iter().zip(&other.results).map(|(a, b)| bits(a) == bits(b));
        let digests = self.digests.iter().zip(&other.digests).map(|(a, b)| a == b);
        for (what, same) in [
            ("the last step", results.collect::<Vec<_>>()),
            ("all steps", digests.collect()),
        ] {
            if let Some(first) = same.iter().position(|same| !same) {
                return Err(Problem::Differs {
                    found: format!("{}, {what}", self.form),
                    expected: other.form,
                    wrong: same.iter().filter(|same| !**same).count(),
                    of: same.len(),
                    first,
                });
            }
        }
        Ok(())
    }
}

/// A virtual memory for a form, whose frames the others do not need.
pub fn machine(gpu: Gpu, form: Form, plan: &Plan) -> Result<Vm, Problem> {
    let builder = Vm::builder().gpu(gpu).page_size(plan.page_bytes);
    let frames = match form {
        Form::Paged => frame_bytes(plan),
        _ => 16 * plan.page_bytes,
    };
    Ok(builder.frame_memory(frames).build()?)
}

/// Runs a form as often as the plan says.
///
/// # Errors
/// What the runtime says, or [`Problem::Differs`] where two runs have other results.
pub fn run(vm: &Vm, form: Form, plan: &Plan) -> Result<Outcome, Problem> {
    let kernels = Kernels::new(vm, form)?;
    let once = || Bench::new(vm, form, plan, &kernels)?.measure();
    let mut outcome = once()?;
    for _ in 1..plan.repeat {
        let mut next = once()?;
        next.check_beside(&outcome)?;
        next.times.append(&mut outcome.times);
        outcome = next;
    }
    Ok(outcome)
}

struct Kernels {
    append: Kernel,
    attend: Kernel,
}

impl Kernels {
    fn new(vm: &Vm, form: Form) -> Result<Self, Problem> {
        let names = ["append", "attend"].map(|kernel| format!("{kernel}<{}>", form.way()));
        let names = [names[0].as_str(), names[1].as_str()];
        let [append, attend] = vm.kernels("kv_cache.cu", SOURCE, names, &CompileOptions::default())?;
        Ok(Self { append, attend })
    }
}

/// A run of a form.
struct Bench<'a> {
    vm: &'a Vm,
    form: Form,
    plan: &'a Plan,
    kernels: &'a Kernels,
    cache: Box<dyn Cache + 'a>,
    prompts: Buffer<u32>,
    results: Buffer<Four>,
    digests: Buffer<u64>,
}

impl<'a> Bench<'a> {
    fn new(vm: &'a Vm, form: Form, plan: &'a Plan, kernels: &'a Kernels) -> Result<Self, Problem> {
        let prompts = vm.buffer(plan.prompts.len() as u64)?;
        prompts.write(&plan.prompts)?;
        let results = u64::from(plan.sequences()) * plan.row();
        Ok(Self {
            cache: form.make(vm, plan)?,
            prompts,
            results: vm.buffer(results)?,
            digests: vm.buffer(results)?,
            vm,
            form,
            plan,
            kernels,
        })
    }

    fn measure(mut self) -> Result<Outcome, Problem> {
        // Not timed: the driver loads kernels when they are launched first.
        self.cache.make_room(0)?;
        let prompts = self.launch(0);
        ended(prompts)?;
        let (growths, stats) = (self.growths(), self.vm.stats()?);
        let began = Instant::now();
        self.cache.make_room(1)?;
        let mut time = began.elapsed();
        for step in 1..=self.plan.steps {
            self.cache.between_steps()?;
            let began = Instant::now();
            let launches = self.launch(step);
            // Room for the next step, while this one runs.
            let room = match step < self.plan.steps {
                true => self.cache.make_room(step + 1),
                false => Ok(()),
            };
            // Also after an error: nothing may go while a launch uses it.
            ended(launches)?;
            time += began.elapsed();
            room?;
        }
        let (before, after) = (growths, self.growths());
        Ok(Outcome {
            form: self.form,
            times: vec![time],
            held_bytes: self.cache.held_bytes(),
            gpu_bytes: self.cache.gpu_bytes(),
            growths: Growths {
                foreseen: after.foreseen - before.foreseen,
                unforeseen: after.unforeseen - before.unforeseen,
            },
            pages_fetched: self.vm.stats()?.pages_fetched - stats.pages_fetched,
            results: self.results.to_vec()?,
            digests: self.digests.to_vec()?,
        })
    }

    fn growths(&self) -> Growths {
        let stats = self.vm.elastic_stats();
        Growths {
            foreseen: stats.foreseen,
            unforeseen: stats.unforeseen,
        }
    }

    /// Begins to store the keys and values of a step, and to attend to those that there are; step 0 has those of the prompts.
    fn launch(&self, step: u32) -> Vec<gpuvm::Result<Launch>> {
        let parts = self.cache.parts();
        let stores = parts.iter().map(|part| self.append(part, step));
        let reads = parts.iter().map(|part| self.attend(part, step));
        stores.chain(reads).collect()
    }

    fn shape(&self, part: &Part<'_>) -> Shape {
        Shape {
            heads: self.plan.heads,
            quads: self.plan.head_size / 4,
            capacity: self.plan.capacity(),
            block_tokens: self.plan.block_tokens,
            blocks: blocks_max(self.plan),
            first: part.sequences.start,
        }
    }

    fn append(&self, part: &Part<'_>, step: u32) -> gpuvm::Result<Launch> {
        let blocks = self.plan.row().div_ceil(u64::from(THREADS)) as u32;
        let shape = self.shape(part);
        let args = [
            part.keys.clone(),
            part.values.clone(),
            part.table.clone(),
            Arg::from(&self.prompts),
            value(&shape),
            value(&step),
        ];
        self.kernels.append.launch_raw(grid(blocks, part), &args)
    }

    fn attend(&self, part: &Part<'_>, step: u32) -> gpuvm::Result<Launch> {
        let (shape, scale) = (self.shape(part), 1.0 / (self.plan.head_size as f32).sqrt());
        let args = [
            part.keys.clone(),
            part.values.clone(),
            part.table.clone(),
            Arg::from(&self.prompts),
            Arg::from(&self.results),
            Arg::from(&self.digests),
            value(&shape),
            value(&scale),
            value(&step),
        ];
        self.kernels.attend.launch_raw(grid(self.plan.heads, part), &args)
    }
}

fn grid(blocks: u32, part: &Part<'_>) -> LaunchConfig {
    LaunchConfig::grid([blocks, part.sequences.len() as u32, 1], [THREADS, 1, 1])
}

fn value<T: Pod>(value: &T) -> Arg<'_> {
    Arg::value(ElementType::of::<T>(), bytemuck::bytes_of(value))
}

/// Waits for all launches, and tells the first error then.
fn ended(launches: Vec<gpuvm::Result<Launch>>) -> Result<(), Problem> {
    let ends: Vec<gpuvm::Result<()>> = launches
        .into_iter()
        .map(|launch| launch.and_then(|launch| launch.sync().map(drop)))
        .collect();
    Ok(ends.into_iter().collect::<gpuvm::Result<()>>()?)
}
