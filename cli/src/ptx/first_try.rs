//! `gpuvm ptx --run`: one launch of a kernel on the simulated GPU, over arrays whose pages are in frames, at home, or both.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gpuvm::sim::{Mode, SimGpu, SimOptions};
use gpuvm::{Arg, ElementType, Kernel, LaunchConfig, Module, RawBuffer, RawRegion, SimulatedGpu, Transport, Vm};

use crate::error::CliError;
use crate::ptx::given::{Array, Given, number_for};
use crate::stdout;

/// A kernel of this module reads one word of each page that is to have a frame: it is there for the next launch.
const TOUCH: &str = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry touch(.param .u64 at, .param .u64 step, .param .u64 count)
{
	.reg .pred %p;
	.reg .b32 %r<5>;
	.reg .b64 %rd<6>;
	ld.param.u64 %rd1, [at];
	ld.param.u64 %rd2, [step];
	ld.param.u64 %rd3, [count];
	mov.u32 %r1, %ctaid.x;
	mov.u32 %r2, %ntid.x;
	mov.u32 %r3, %tid.x;
	mad.lo.u32 %r4, %r1, %r2, %r3;
	cvt.u64.u32 %rd4, %r4;
	setp.ge.u64 %p, %rd4, %rd3;
	@%p ret;
	mad.lo.u64 %rd5, %rd4, %rd2, %rd1;
	ld.volatile.global.u8 %r1, [%rd5];
	ret;
}
";
/// Longest a launch takes.
const LIMIT: Duration = Duration::from_secs(120);
/// Elements of each array that are printed.
const SHOWN: usize = 8;
/// Most threads of a launch whose races are looked for: they take turns on one thread.
const RACING_THREADS_MAX: u64 = 1 << 16;
/// Races that are printed.
const RACES_SHOWN: usize = 5;

/// How a kernel is run.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Run this kernel on the simulated GPU, over arrays of its own, and print what they hold then and which races there were.
    #[arg(long, value_name = "KERNEL")]
    pub run: Option<String>,

    /// Blocks in x, y and z.
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = parse_shape, default_value = "1", requires = "run")]
    grid: Shape,

    /// Threads of a block in x, y and z.
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = parse_shape, default_value = "32", requires = "run")]
    block: Shape,

    /// An argument, in the kernel's order: an array as TYPE:COUNT or TYPE:COUNT=FILL with zeros, index or random (f32:1024=index), a number, or
    /// null for a pointer that is not used.
    #[arg(long = "arg", value_name = "ARGUMENT", allow_hyphen_values = true, requires = "run")]
    given: Vec<Given>,

    /// Dynamic shared memory of a block.
    #[arg(long, value_name = "BYTES", default_value_t = 0, requires = "run")]
    shared: u32,

    /// Which pages of the arrays are in frames: none, every other one, or all.
    #[arg(long, value_name = "SHARE", default_value = "half", requires = "run")]
    pages: Share,

    /// The seed of arrays that are filled at random, and of the order in which threads run where races are looked for.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "run")]
    seed: u64,
}

/// Blocks, or threads of a block.
#[derive(Clone, Copy, Debug)]
struct Shape([u32; 3]);

fn parse_shape(text: &str) -> Result<Shape, String> {
    let numbers = text.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>();
    match numbers.as_deref() {
        Ok(&[x]) => Ok(Shape([x, 1, 1])),
        Ok(&[x, y]) => Ok(Shape([x, y, 1])),
        Ok(&[x, y, z]) => Ok(Shape([x, y, z])),
        _ => Err("give one to three numbers, such as 4 or 4,2".to_owned()),
    }
}

/// Which pages are in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Share {
    None,
    Half,
    All,
}

impl Share {
    /// Each page of this many has a frame.
    fn one_of(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Half => Some(2),
            Self::All => Some(1),
        }
    }
}

impl RunArgs {
    fn config(&self) -> LaunchConfig {
        LaunchConfig::grid(self.grid.0, self.block.0).dynamic_shared(self.shared)
    }

    fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.given.iter().filter_map(|given| match given {
            Given::Array(array) => Some(array),
            _ => None,
        })
    }

    /// The bytes of those arguments that are no arrays.
    fn numbers(&self, kernel: &Kernel) -> Result<Vec<Vec<u8>>, CliError> {
        let info = kernel.info();
        if info.params.len() != self.given.len() {
            let params: Vec<&str> = info.params.iter().map(|param| &*param.type_name).collect();
            return Err(CliError::Options(format!(
                "`{}` takes {} arguments ({}), and --arg gives {}",
                info.name,
                params.len(),
                params.join(", "),
                self.given.len()
            )));
        }
        let number = |(at, (given, param)): (usize, (&Given, _))| match given {
            Given::Array(_) => Ok(Vec::new()),
            Given::Null => Ok(vec![0; 8]),
            Given::Number(text) => number_for(text, param)
                .map_err(|reason| CliError::Options(format!("argument {} of `{}`: {reason}", at + 1, info.name))),
        };
        std::iter::zip(&self.given, &info.params)
            .enumerate()
            .map(number)
            .collect()
    }
}

/// The arguments of a launch, of which arrays come from `arrays`.
fn arguments<'a>(given: &[Given], numbers: &'a [Vec<u8>], mut arrays: impl Iterator<Item = Arg<'a>>) -> Vec<Arg<'a>> {
    let one = |(given, bytes): (&Given, &'a Vec<u8>)| match given {
        Given::Array(_) => arrays.next(),
        Given::Null => Some(Arg::value(ElementType::U64, bytes)),
        Given::Number(_) => Some(Arg::value(ElementType::structure("a number", bytes.len(), 1), bytes)),
    };
    std::iter::zip(given, numbers).filter_map(one).collect()
}

/// Runs the kernel, and prints what came of it.
///
/// # Errors
/// Arguments that do not fit, text that the simulated GPU does not run, a launch that fails.
pub fn run(args: &RunArgs, name: &str, file: &str, ptx: &[u8], page_bytes: u64) -> Result<(), CliError> {
    let pages: u64 = args
        .arrays()
        .map(|array| (array.count * array.element.bytes() as u64).div_ceil(page_bytes))
        .sum();
    let builder = |frames: u64| {
        let builder = Vm::builder().page_size(page_bytes).frame_memory(frames * page_bytes);
        builder.transport(Transport::Direct).launch_deadline(LIMIT)
    };
    // Frames for all, and one for what a part of a page is rounded to.
    let vm = builder(pages + 16).gpu(SimulatedGpu::new()).build()?;
    let kernel = load(&vm, file, ptx)?.kernel(name)?;
    let numbers = args.numbers(&kernel)?;
    let mut regions: Vec<(&Array, RawRegion)> = Vec::new();
    for array in args.arrays() {
        let region = vm.raw_region(array.element.element());
        regions.push((array, region.from_bytes(&array.filled(args.seed))?));
    }
    if let Some(reason) = kernel.at_home() {
        stdout::print_line(format_args!("all pages are used at home: {reason}"))?;
    } else if let Some(step) = args.pages.one_of() {
        touch(&vm, regions.iter().map(|(_, region)| region), step, page_bytes)?;
    }
    let all = arguments(
        &args.given,
        &numbers,
        regions.iter().map(|(_, region)| Arg::from(region)),
    );
    kernel.launch_raw(args.config(), &all)?.sync()?;
    let fetched = vm.stats()?.pages_fetched;
    stdout::print_line(format_args!("`{name}` ran; {fetched} of {pages} pages were in frames"))?;
    for (number, (array, region)) in regions.iter().enumerate() {
        let (bytes, each) = (
            SHOWN.min(array.count as usize) * array.element.bytes(),
            array.element.bytes(),
        );
        let mut first = vec![0; bytes];
        region.read_bytes(0, &mut first)?;
        let shown: Vec<String> = first.chunks_exact(each).map(|one| array.element.shown(one)).collect();
        let more = if array.count > SHOWN as u64 { ", .." } else { "" };
        stdout::print_line(format_args!(
            "array {}, {array}: {}{more}",
            number + 1,
            shown.join(", ")
        ))?;
    }
    let threads = args.grid.0.iter().chain(&args.block.0).map(|count| u64::from(*count));
    match threads.product::<u64>() {
        ..=RACING_THREADS_MAX => races(args, name, file, ptx, page_bytes),
        _ => Ok(stdout::print_line(format_args!(
            "races were not looked for: the launch has more than {RACING_THREADS_MAX} threads"
        ))?),
    }
}

/// Loads the text. What the simulated GPU does not run has its line there, and in the error that behind the rewriting.
fn load(vm: &Vm, file: &str, ptx: &[u8]) -> Result<Module, CliError> {
    vm.load_ptx(file, ptx).map_err(|source| match line_of(ptx, &source) {
        Some(line) => CliError::NotSimulated {
            path: file.into(),
            line,
            source,
        },
        None => CliError::Vm(source),
    })
}

/// The line of a statement that an error quotes, in the text that was given.
fn line_of(ptx: &[u8], error: &dyn Error) -> Option<usize> {
    let text = std::str::from_utf8(ptx).ok()?;
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let at = causes.find_map(|error| {
        let said = error.to_string();
        let mut quoted = said
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|quoted| quoted.ends_with(';'));
        quoted.find_map(|statement| text.find(statement))
    })?;
    Some(1 + text[..at].matches('\n').count())
}

/// Brings pages to frames: one of `step` of each array, for the launch behind this one.
fn touch<'a>(
    vm: &Vm,
    regions: impl Iterator<Item = &'a RawRegion>,
    step: u64,
    page_bytes: u64,
) -> Result<(), CliError> {
    let kernel = vm.load_ptx("touch.ptx", TOUCH.as_bytes())?.kernel("touch")?;
    for region in regions {
        let count = region.pages().div_ceil(step);
        let numbers = [step * page_bytes, count].map(u64::to_ne_bytes);
        let [step, count_bytes] = numbers.each_ref().map(|bytes| Arg::value(ElementType::U64, bytes));
        let config = LaunchConfig::new(u32::try_from(count.div_ceil(64)).unwrap_or(u32::MAX), 64);
        let launch = kernel.launch_raw(config, &[Arg::from(region), step, count_bytes]);
        launch?.sync()?;
    }
    Ok(())
}

/// Runs it once more, on one thread in the order that the seed says, over memory that is not paged, and prints the data races.
fn races(args: &RunArgs, name: &str, file: &str, ptx: &[u8], page_bytes: u64) -> Result<(), CliError> {
    let options = SimOptions {
        find_races: true,
        ..SimOptions::default()
    };
    let bytes: u64 = args
        .arrays()
        .map(|array| array.count * array.element.bytes() as u64)
        .sum();
    let gpu = SimGpu::builder().memory_bytes(bytes + (64 << 20));
    let gpu = Arc::new(gpu.mode(Mode::Seeded(args.seed)).options(options).build()?);
    let vm = Vm::builder().page_size(page_bytes).frame_memory(16 * page_bytes);
    let vm = vm
        .transport(Transport::Direct)
        .launch_deadline(LIMIT)
        .gpu(Arc::clone(&gpu))
        .build()?;
    let kernel = vm.load_ptx(file, ptx)?.kernel(name)?;
    let numbers = args.numbers(&kernel)?;
    let mut buffers: Vec<(&Array, RawBuffer)> = Vec::new();
    for array in args.arrays() {
        let buffer = vm.raw_buffer(array.element.element(), array.count)?;
        buffer.write_bytes(&array.filled(args.seed))?;
        buffers.push((array, buffer));
    }
    let all = arguments(
        &args.given,
        &numbers,
        buffers.iter().map(|(_, buffer)| Arg::from(buffer)),
    );
    kernel.launch_raw(args.config(), &all)?.sync()?;
    let (found, count) = gpu.races();
    stdout::print_line(match count {
        0 => "no data races".to_owned(),
        1 => "1 data race:".to_owned(),
        _ => format!("{count} data races:"),
    })?;
    let place = |address: u64| {
        let of_it = |(_, (array, buffer)): &(usize, &(&Array, RawBuffer))| {
            (buffer.addr()..buffer.addr() + array.count * array.element.bytes() as u64).contains(&address)
        };
        let (number, (array, buffer)) = buffers.iter().enumerate().find(of_it)?;
        let element = (address - buffer.addr()) / array.element.bytes() as u64;
        Some(format!("element {element} of array {}: ", number + 1))
    };
    for race in found.iter().take(RACES_SHOWN) {
        let place = place(race.second.address).unwrap_or_default();
        stdout::print_line(format_args!("  {place}{race}"))?;
    }
    Ok(())
}
