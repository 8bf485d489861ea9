//! Compiled modules and their kernels.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use gpuvm_gpu::{CompileOptions, KernelInfo, ParamKind, Source, Stream};
use gpuvm_layouts as layout;
use gpuvm_ptx::{AccessBases, QUIET};
use parking_lot::Mutex;

use crate::{
    args::{Arg, KernelArgs, Placed},
    calling::{CALLED_BYTES, CALLED_MAX, Calling},
    device_code::DeviceCode,
    error::{Doing, Error, Result},
    given::Given,
    gpu::{Job, Named, PagedGpu},
    launch::{self, InFlight, LaunchConfig, Memory, Table},
    launch_state::StateSlot,
    launched::{Launch, StreamHandle},
    region::Series,
    texts::AtHome,
    unchanged::Unchanged,
};

/// A compiled source.
#[derive(Clone)]
pub struct Module {
    gpu: Arc<PagedGpu>,
    module: Arc<dyn gpuvm_gpu::Module>,
    /// What it is compiled of; none for what its user compiled.
    of: Option<Arc<Compiled>>,
    /// Of PTX.
    ptx: Option<OfPtx>,
}

/// What is known of a text of PTX.
#[derive(Clone)]
struct OfPtx {
    /// Its kernels that use all pages at home, with the reason.
    at_home: Arc<AtHome>,
    /// What runs over arrays whose pages come by faults, and over plain memory; none of a source that looks up as rewritten kernels do.
    forms: Option<(Arc<Calling>, Arc<Unchanged>)>,
}

/// Whether all arrays among a launch's arguments lie as plain memory. `writes`: by which of them it may write.
fn all_plain(placed: &[Placed<'_>], writes: impl Fn(usize) -> bool) -> bool {
    placed.iter().enumerate().all(|(at, one)| one.is_plain(writes(at)))
}

/// Whether they may, when no page comes or goes any more.
fn all_may_be_plain(placed: &[Placed<'_>], writes: impl Fn(usize) -> bool) -> bool {
    placed.iter().enumerate().all(|(at, one)| one.may_be_plain(writes(at)))
}

/// A launch is about to begin over its arrays as plain memory, or that marks what it writes.
fn expect_written(placed: &[Placed<'_>], writes: impl Fn(usize) -> bool, as_plain: bool) {
    let written = placed.iter().enumerate().filter(|(at, _)| writes(*at));
    written.for_each(|(_, one)| one.expect_written(as_plain));
}

/// A source, of which a form is compiled when a launch wants it.
struct Compiled {
    source: Source,
    kernels: Vec<String>,
    options: CompileOptions,
    /// By [`Form`].
    forms: [Mutex<Option<Arc<dyn gpuvm_gpu::Module>>>; FORMS],
}

/// The forms of a kernel's text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A page that has no frame is a fault.
    Faulting,
    /// Of arrays that frames hold together, as those to come, pages of which are looked up. It marks each page that is used at home.
    Fits,
    /// Of others: it can mark a sample of them, and is slower by that where all is in frames.
    Crowded,
    /// Of arrays whose pages all have frames: nothing that is read is marked, which is faster.
    Complete,
    /// Of arrays whose frames follow each other as their pages do: plain memory.
    Plain,
}

/// How many there are.
const FORMS: usize = 5;

impl Form {
    /// That in which a source is compiled first, since most launches will want it.
    fn first(gpu: &PagedGpu) -> Self {
        match gpu.looks_up_by_default() {
            true => Self::Fits,
            false => Self::Faulting,
        }
    }

    /// How a source is compiled in it.
    fn options(self, options: &CompileOptions) -> CompileOptions {
        let mut options = options.clone();
        if self != Self::Faulting {
            let number = (self as u32).to_string();
            options.defines.push(("GPUVM_LOOKS_UP".to_owned(), Some(number)));
        }
        options
    }
}

/// How a source is compiled in each form of launches that look pages up.
pub(crate) fn looked_up_options(options: &CompileOptions) -> impl Iterator<Item = CompileOptions> {
    let forms = [Form::Fits, Form::Crowded, Form::Complete, Form::Plain];
    forms.into_iter().map(|form| form.options(options))
}

impl Compiled {
    fn module(&self, gpu: &PagedGpu, form: Form) -> Result<Arc<dyn gpuvm_gpu::Module>> {
        let mut module = self.forms[form as usize].lock();
        if let Some(module) = &*module {
            return Ok(Arc::clone(module));
        }
        let options = form.options(&self.options);
        let kernels: Vec<&str> = self.kernels.iter().map(String::as_str).collect();
        let compiled = gpu.compile(&self.source, &kernels, &options);
        let compiled = compiled.map_err(|error| match error {
            // It compiled in the other form: who reads this is to know what has changed.
            Error::Gpu { doing, source } if form == Form::Faulting && Form::first(gpu) != form => Error::Gpu {
                doing: format!(
                    "{doing} once more, for a launch whose arrays are not all looked up (`Region::effective` says why)"
                ),
                source,
            },
            error => error,
        })?;
        *module = Some(Arc::clone(&compiled));
        Ok(compiled)
    }

    fn kernel(&self, gpu: &PagedGpu, name: &str, form: Form) -> Result<Arc<dyn gpuvm_gpu::Kernel>> {
        let kernel = self.module(gpu, form)?.kernel(name);
        kernel.doing(|| format!("looking up kernel `{name}`"))
    }
}

impl Module {
    /// What its user compiled.
    pub(crate) fn loaded(gpu: Arc<PagedGpu>, module: Arc<dyn gpuvm_gpu::Module>) -> Self {
        Self {
            gpu,
            module,
            of: None,
            ptx: None,
        }
    }

    /// What came as PTX.
    pub(crate) fn of_ptx(
        gpu: Arc<PagedGpu>,
        module: Arc<dyn gpuvm_gpu::Module>,
        at_home: AtHome,
        forms: Option<(Arc<Calling>, Arc<Unchanged>)>,
    ) -> Self {
        let at_home = Arc::new(at_home);
        Self {
            ptx: Some(OfPtx { at_home, forms }),
            ..Self::loaded(gpu, module)
        }
    }

    pub(crate) fn compile(
        gpu: Arc<PagedGpu>,
        source: Source,
        kernels: &[&str],
        options: &CompileOptions,
    ) -> Result<Self> {
        let of = Compiled {
            source,
            kernels: kernels.iter().map(|&name| name.to_owned()).collect(),
            options: options.clone(),
            forms: Default::default(),
        };
        let module = of.module(&gpu, Form::first(&gpu))?;
        Ok(Self {
            gpu,
            module,
            of: Some(Arc::new(of)),
            ptx: None,
        })
    }

    /// The kernel that was named so when the source was compiled; of PTX also by its name in the text.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`] with the names that are there.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let kernel = self
            .module
            .kernel(name)
            .doing(|| format!("looking up kernel `{name}`"))?;
        // Kernels without loads have one form, as sources that look up as rewritten kernels do.
        let of_ptx = self.ptx.as_ref();
        let quiet = of_ptx.and_then(|_| self.module.kernel(&format!("{QUIET}{}", kernel.info().name)).ok());
        let at_home = of_ptx.and_then(|ptx| ptx.at_home.get(&kernel.info().name).cloned());
        let (calling, unchanged) = of_ptx.and_then(|ptx| ptx.forms.clone()).unzip();
        Ok(Kernel {
            gpu: Arc::clone(&self.gpu),
            label: launch::label(&kernel.info().name),
            kernel,
            quiet,
            of: self.of.clone(),
            ptx: self.ptx.is_some(),
            calling,
            unchanged,
            as_it_is: OnceLock::new(),
            only_faults: OnceLock::new(),
            at_home: at_home.map(Into::into),
            forms: Default::default(),
        })
    }
}

/// A kernel on one GPU of a virtual memory.
#[derive(Clone)]
pub struct Kernel {
    gpu: Arc<PagedGpu>,
    label: Arc<str>,
    kernel: Arc<dyn gpuvm_gpu::Kernel>,
    of: Option<Arc<Compiled>>,
    /// It came as PTX.
    ptx: bool,
    calling: Option<Arc<Calling>>,
    unchanged: Option<Arc<Unchanged>>,
    /// As it was written, once a launch has wanted it so.
    as_it_is: OnceLock<Arc<dyn gpuvm_gpu::Kernel>>,
    /// Set where its text does not compile for launches that look pages up.
    only_faults: OnceLock<()>,
    /// Why it uses all pages at home, if it does.
    at_home: Option<Arc<str>>,
    /// Of one that was rewritten: its form for launches whose pages all have frames.
    quiet: Option<Arc<dyn gpuvm_gpu::Kernel>>,
    /// By [`Form`], of a source.
    forms: [OnceLock<Arc<dyn gpuvm_gpu::Kernel>>; FORMS],
}

impl Kernel {
    /// Its name and parameters.
    pub fn info(&self) -> &KernelInfo {
        self.kernel.info()
    }

    /// Of one that came as PTX: why its launches use all pages at their home, if they do; over regions that cannot be looked up they are refused. An instruction of its accesses memory and cannot look pages up,
    /// such as a bulk copy. Pages that are in frames leave them before such a launch.
    pub fn at_home(&self) -> Option<&str> {
        self.at_home.as_deref()
    }

    /// Refuses one that its user compiled with other headers, or without what this virtual memory needs.
    pub(crate) fn check_code(&self) -> Result<()> {
        let Some((layout_version, features)) = self.info().compiled_with else {
            return Ok(());
        };
        let code = DeviceCode {
            layout_version,
            features,
        };
        code.fits(&self.info().name, self.gpu.features() & layout::FEATURES_ALL)
    }

    /// Enqueues a launch on the default stream of the kernel's GPU and returns at once, unless it names a region that launches on another
    /// GPU use: before it reads what may have been written there, and before it writes what is used there, it waits until those launches
    /// have ended, at their deadlines at the latest, and has their dirty pages written back. Launches that only read wait for no other
    /// readers. A thread that uses one of its regions meanwhile from another thread waits as well.
    ///
    /// # Errors
    /// [`crate::Error::Arguments`], [`crate::Error::OtherGpu`] for memory that belongs to another GPU, [`crate::Error::Spans`],
    /// [`crate::Error::Gpu`] for a shape that the GPU cannot launch. For regions of other GPUs also: as for a region that is made on this
    /// GPU; [`crate::Error::Fault`] when another GPU's dirty pages cannot be written back, and [`crate::Error::WritesLost`] when that GPU
    /// is lost.
    pub fn launch(&self, config: LaunchConfig, args: impl KernelArgs) -> Result<Launch> {
        self.launch_raw(config, &args.args())
    }

    /// [`launch`](Self::launch) with arguments by bytes and type at run time.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn launch_raw(&self, config: LaunchConfig, args: &[Arg<'_>]) -> Result<Launch> {
        self.enqueue(&self.gpu.stream, &config, args)
    }

    /// A stream that others made and use, for launches of this kernel: as [`crate::VmGpu::borrow_stream`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn borrow_stream(&self, stream: u64) -> Result<StreamHandle> {
        // SAFETY: passed on from the caller.
        unsafe { StreamHandle::borrowed(&self.gpu, stream) }
    }

    /// Has its GPU's launches that are enqueued from now on, on the stream `on` or where none is named, run behind the work that a stream of others has now.
    ///
    /// # Errors
    /// [`crate::Error::Arguments`] for a stream `on` of another GPU; [`crate::Error::Gpu`] for one of others that is captured, and on the simulated GPU.
    ///
    /// # Safety
    /// The stream of others is live, and of the GPU's primary context.
    pub unsafe fn follow(&self, on: Option<&StreamHandle>, others: u64) -> Result<()> {
        let own = match on {
            Some(on) => on.on_or(&self.gpu, &self.info().name)?,
            None => &self.gpu.stream,
        };
        // SAFETY: passed on from the caller.
        let followed = unsafe { own.follow(others) };
        self.gpu
            .map_device_lost(followed.doing(|| "waiting for a stream of another library".into()))
    }

    /// Enqueues a launch on `stream`.
    ///
    /// # Errors
    /// As [`launch`](Self::launch); [`crate::Error::Arguments`] for a stream of another GPU as well.
    pub fn launch_on(&self, stream: &StreamHandle, config: LaunchConfig, args: impl KernelArgs) -> Result<Launch> {
        self.launch_raw_on(stream, config, &args.args())
    }

    /// [`launch_on`](Self::launch_on) with arguments by bytes and type at run time.
    ///
    /// # Errors
    /// As [`launch_on`](Self::launch_on).
    pub fn launch_raw_on(&self, stream: &StreamHandle, config: LaunchConfig, args: &[Arg<'_>]) -> Result<Launch> {
        self.enqueue(stream.on_or(&self.gpu, &self.info().name)?, &config, args)
    }

    /// Enqueues it in a series, whose region is its first argument, an array of words of `word` bytes; the others are `args`. False once the series
    /// has ended: then another is to be begun.
    ///
    /// # Errors
    /// [`crate::Error::Gpu`]; [`crate::Error::Arguments`] for a kernel that does not come from source.
    ///
    /// # Safety
    /// `stream` is a live stream of the GPU's primary context; on the simulated GPU it does not matter. The kernel waits for nothing, and stores to the region
    /// only where the series may. What `args` name lives until its stream has come past it.
    pub unsafe fn launch_in(
        &self,
        series: &Series,
        stream: u64,
        config: &LaunchConfig,
        word: u64,
        args: &[&[u8]],
    ) -> Result<bool> {
        if self.of.is_none() {
            return Err(Error::Arguments {
                kernel: self.info().name.clone(),
                reason: "kernels of a series come from source".into(),
            });
        }
        let kernel = self.form(match (series.is_complete(), series.fits()) {
            (true, _) => Form::Complete,
            (false, true) => Form::Fits,
            (false, false) => Form::Crowded,
        })?;
        // SAFETY: passed on from the caller.
        unsafe { series.launch(stream, kernel, config, word, args) }
    }

    fn enqueue(&self, stream: &Arc<dyn Stream>, config: &LaunchConfig, args: &[Arg<'_>]) -> Result<Launch> {
        let given: Vec<Given<'_>> = args.iter().map(Arg::give).collect();
        self.check(&given)?;
        let label = &self.label;
        let _span = self.gpu.span(|| format!("launch of {label}"));
        let placed = args.iter().map(|argument| argument.place_on(&self.gpu));
        let placed: Vec<Placed<'_>> = placed.collect::<Result<_>>()?;
        let mut named = Named::default();
        for (given, param) in given.into_iter().zip(&self.info().params) {
            let is_const = matches!(param.kind, ParamKind::PagedArrayConst | ParamKind::BroadcastConst);
            let writes = !(is_const || given.kind.is_read_only());
            named.memories.extend(given.memory.map(|memory| (memory, writes)));
        }
        if self.ptx {
            return self.enqueue_ptx(stream, config, &placed, named);
        }
        named.pageless = !placed.iter().any(|placed| placed.looks_up().is_some());
        if let Some(in_flight) = self.enqueue_resident(stream, config, &placed, &named)? {
            return Ok(Launch::new(Arc::clone(&self.gpu), in_flight));
        }
        let args = |vm| placed.iter().map(|placed| placed.bytes(vm)).collect();
        let job = match self.looking_up(&placed)? {
            Some(job) => job,
            None if named.pageless => Job::Kernel(&self.kernel, Box::new(args)),
            None => Job::Kernel(self.form(Form::Faulting)?, Box::new(args)),
        };
        named.looks_up = matches!(job, Job::LookingUp(..));
        let in_flight = self.gpu.enqueue(stream, job, config, named, label);
        let in_flight = self.gpu.map_device_lost(in_flight)?;
        Ok(Launch::new(Arc::clone(&self.gpu), in_flight))
    }

    /// Whether some of a launch's arrays are looked up while all of their pages have frames, and only then, and all of those seem to have.
    fn seem_resident(&self, placed: &[Placed<'_>]) -> bool {
        let pages: u64 = placed.iter().map(Placed::pages).sum();
        pages <= u64::from(self.gpu.frame_count())
            && placed.iter().any(|placed| placed.looks_up() == Some(false))
            && placed.iter().all(|placed| placed.seems_resident() != Some(false))
    }

    /// A launch of a source over arrays of which some are looked up while all of their pages have frames, and only then. None where it is another
    /// launch, or they have not.
    fn enqueue_resident(
        &self,
        stream: &Arc<dyn Stream>,
        config: &LaunchConfig,
        placed: &[Placed<'_>],
        named: &Named,
    ) -> Result<Option<Arc<InFlight>>> {
        if self.of.is_none() || self.only_faults.get().is_some() || !self.seem_resident(placed) {
            return Ok(None);
        }
        // Of others some pages may be at home.
        let form = match placed.iter().any(|placed| placed.looks_up() == Some(true)) {
            true => Form::Fits,
            false => Form::Complete,
        };
        let kernel = match self.form(form) {
            Ok(kernel) => kernel,
            Err(error) => {
                // It compiled in the other form, which serves.
                let _ = self.only_faults.set(());
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "{} looks no pages up",
                    self.label
                );
                return Ok(None);
            }
        };
        let params = &self.info().params;
        let choose = |state: &StateSlot| {
            expect_written(placed, |at| params[at].kind == ParamKind::PagedArray, false);
            let args = placed.iter().map(|placed| placed.looked_up_bytes(state, false));
            (kernel, args.collect())
        };
        let named = Named {
            memories: named.memories.clone(),
            looks_up: true,
            ..Named::default()
        };
        let job = Job::LookingUp(&self.kernel, Box::new(choose));
        let begun = self.gpu.try_enqueue(stream, job, config, named, &self.label);
        self.gpu.map_device_lost(begun)
    }

    fn enqueue_ptx(
        &self,
        stream: &Arc<dyn Stream>,
        config: &LaunchConfig,
        placed: &[Placed<'_>],
        named: Named,
    ) -> Result<Launch> {
        let may_look_up = self.at_home.is_none() && self.calling.as_ref().is_none_or(|calling| calling.is_free());
        if may_look_up && self.seem_resident(placed) {
            let memories = named.memories.clone();
            if let Some(launch) = self.look_up_ptx(stream, config, placed, memories)? {
                return Ok(launch);
            }
        }
        if let Some(kernel) = self.called(placed)? {
            return self.enqueue_called(&kernel, stream, config, placed, named);
        }
        let launch = self.look_up_ptx(stream, config, placed, named.memories)?;
        launch.ok_or_else(|| PagedGpu::have_left(&self.label))
    }

    /// A launch of one that came as PTX and looks pages up, or has them at home; none where some of its memory cannot be looked up now.
    fn look_up_ptx(
        &self,
        stream: &Arc<dyn Stream>,
        config: &LaunchConfig,
        placed: &[Placed<'_>],
        memories: Vec<(Arc<dyn Memory>, bool)>,
    ) -> Result<Option<Launch>> {
        let bytes = self.ptx_bytes(placed, self.at_home.is_some())?;
        let pageless = !placed.iter().any(|placed| placed.looks_up().is_some());
        let named = Named {
            memories,
            pageless,
            looks_up: !pageless,
            by: self.at_home.as_ref().map_or(Table::Entries, |_| Table::Home),
            ..Named::default()
        };
        let as_it_is = self.as_it_is(placed)?;
        let choose = |_: &StateSlot| {
            if let Some((kernel, bases)) = as_it_is.filter(|(_, bases)| all_plain(placed, |at| bases.writes(at))) {
                expect_written(placed, |at| bases.writes(at), true);
                let own = placed
                    .iter()
                    .zip(bytes)
                    .map(|(placed, bytes)| placed.plain_bytes().unwrap_or(bytes));
                return (kernel, own.collect());
            }
            expect_written(placed, |at| !placed[at].is_read_only(), false);
            let quiet = self.quiet.as_ref().filter(|_| placed.iter().all(Placed::is_complete));
            (quiet.unwrap_or(&self.kernel), bytes)
        };
        let job = Job::LookingUp(&self.kernel, Box::new(choose));
        let in_flight = self.gpu.try_enqueue(stream, job, config, named, &self.label);
        let in_flight = self.gpu.map_device_lost(in_flight)?;
        Ok(in_flight.map(|in_flight| Launch::new(Arc::clone(&self.gpu), in_flight)))
    }

    /// Of one that came as PTX: itself as it was written, and what its accesses are based on, where a launch may run it over plain memory and all
    /// arrays may lie so.
    fn as_it_is(&self, placed: &[Placed<'_>]) -> Result<Option<(&Arc<dyn gpuvm_gpu::Kernel>, &AccessBases)>> {
        let name = &self.info().name;
        let Some((unchanged, bases)) = self
            .unchanged
            .as_ref()
            .and_then(|unchanged| Some((unchanged, unchanged.bases(name)?)))
        else {
            return Ok(None);
        };
        let which = |is: fn(&Placed<'_>) -> bool| {
            let those = (0..).zip(placed).filter(|(_, placed)| is(placed));
            those.fold(0, |all, (at, _)| all | 1 << at)
        };
        let arrays = which(|placed| placed.looks_up().is_some());
        let allowed = arrays != 0
            && bases.allow(arrays, which(|placed| placed.is_address()))
            && bases.writes & which(|placed| placed.is_read_only()) == 0
            && all_may_be_plain(placed, |at| bases.writes(at));
        if !allowed {
            return Ok(None);
        }
        if self.as_it_is.get().is_none() {
            // Another thread may have been faster: both are the same.
            let _ = self.as_it_is.set(unchanged.kernel(name)?);
        }
        Ok(self.as_it_is.get().map(|kernel| (kernel, bases)))
    }

    fn ptx_bytes(&self, placed: &[Placed<'_>], at_home: bool) -> Result<Vec<Vec<u8>>> {
        let mut bytes = Vec::with_capacity(placed.len());
        for (position, placed) in (1..).zip(placed) {
            let own = placed.ptx_bytes(at_home)?;
            bytes.push(own.map_err(|reason| self.refused(format!("argument {position}: {reason}")))?);
        }
        Ok(bytes)
    }

    fn refused(&self, reason: String) -> Error {
        Error::Arguments {
            kernel: self.info().name.clone(),
            reason,
        }
    }

    /// Of one that came as PTX: its form that calls for pages, if a launch needs that.
    fn called(&self, placed: &[Placed<'_>]) -> Result<Option<Arc<dyn gpuvm_gpu::Kernel>>> {
        let fetched = placed.iter().find_map(Placed::why_not_looked_up);
        let why = |reason: &str| match fetched {
            Some((region, because)) => self.refused(format!(
                "region `{region}` was given, whose pages cannot be looked up: {because}; and {reason}"
            )),
            None => self.refused(reason.to_owned()),
        };
        let Some(calling) = &self.calling else {
            return match fetched {
                Some(_) => Err(why("this kernel does nothing else")),
                None => Ok(None),
            };
        };
        if !calling.calls(fetched.is_some()).map_err(why)? {
            return Ok(None);
        }
        let kernel = calling.kernel(&self.info().name)?;
        kernel.map(Some).map_err(|reason| why(&reason))
    }

    fn enqueue_called(
        &self,
        kernel: &Arc<dyn gpuvm_gpu::Kernel>,
        stream: &Arc<dyn Stream>,
        config: &LaunchConfig,
        placed: &[Placed<'_>],
        mut named: Named,
    ) -> Result<Launch> {
        let mut bytes = self.ptx_bytes(placed, false)?;
        // A region may be given several times.
        let arrays: BTreeMap<u64, &Placed<'_>> = placed
            .iter()
            .filter_map(|placed| Some((placed.called(0)?.base, placed)))
            .collect();
        if arrays.len() > CALLED_MAX {
            return Err(self.refused(format!(
                "{} regions were given, and launches over regions whose pages come by faults take {CALLED_MAX}",
                arrays.len()
            )));
        }
        named.pageless = arrays.is_empty();
        let args = |vm| {
            let head = layout::CalledHead {
                count: arrays.len() as u64,
                reserved: 0,
            };
            let mut last = bytemuck::bytes_of(&head).to_vec();
            for called in arrays.values().filter_map(|placed| placed.called(vm)) {
                last.extend(bytemuck::bytes_of(&called));
            }
            last.resize(CALLED_BYTES, 0);
            bytes.push(last);
            bytes
        };
        let in_flight = self
            .gpu
            .enqueue(stream, Job::Kernel(kernel, Box::new(args)), config, named, &self.label);
        let in_flight = self.gpu.map_device_lost(in_flight)?;
        Ok(Launch::new(Arc::clone(&self.gpu), in_flight))
    }

    /// A launch of it that looks up where pages are, if it may; none of what its user compiled.
    fn looking_up<'a>(&'a self, placed: &'a [Placed<'_>]) -> Result<Option<Job<'a>>> {
        let looks_up = placed.iter().filter_map(Placed::looks_up).reduce(|all, one| all && one);
        if looks_up != Some(true) || self.of.is_none() {
            return Ok(None);
        }
        let pages: u64 = placed.iter().map(Placed::pages).sum();
        let fits = pages <= u64::from(self.gpu.frame_count());
        let marking = self.form(if fits { Form::Fits } else { Form::Crowded })?;
        let params = &self.info().params;
        let writes = move |at: usize| params[at].kind == ParamKind::PagedArray;
        let is_complete = || placed.iter().all(Placed::is_complete);
        // Compiled here, since nothing waits for it, and chosen when no page comes or goes any more.
        let ready = match (all_may_be_plain(placed, writes), is_complete()) {
            (true, _) => Some(Form::Plain),
            (false, true) => Some(Form::Complete),
            (false, false) => None,
        };
        let ready = ready.map(|form| Ok((form, self.form(form)?))).transpose()?;
        let choose = move |state: &StateSlot| {
            let serves = |form: Form| match form {
                Form::Plain => all_plain(placed, writes),
                _ => is_complete(),
            };
            let (form, kernel) = ready.filter(|(form, _)| serves(*form)).unwrap_or((Form::Fits, marking));
            let as_plain = form == Form::Plain;
            expect_written(placed, writes, as_plain);
            let args = placed.iter().map(|placed| placed.looked_up_bytes(state, as_plain));
            (kernel, args.collect())
        };
        Ok(Some(Job::LookingUp(&self.kernel, Box::new(choose))))
    }

    /// Its form, which is compiled now if it was not; what its user compiled has one.
    fn form(&self, form: Form) -> Result<&Arc<dyn gpuvm_gpu::Kernel>> {
        let kernel = &self.forms[form as usize];
        if let (Some(of), None) = (&self.of, kernel.get()) {
            // Another thread may have been faster: both are the same.
            let _ = kernel.set(of.kernel(&self.gpu, &self.info().name, form)?);
        }
        Ok(kernel.get().unwrap_or(&self.kernel))
    }

    /// Checks arguments against the kernel's parameters and its GPU.
    fn check(&self, given: &[Given<'_>]) -> Result<()> {
        let info = self.info();
        let refuse = |reason: String| {
            Err(Error::Arguments {
                kernel: info.name.clone(),
                reason,
            })
        };
        if given.len() != info.params.len() {
            return refuse(format!(
                "{} arguments were given, it takes {}",
                given.len(),
                info.params.len()
            ));
        }
        for (position, (given, param)) in (1..).zip(given.iter().zip(&info.params)) {
            let fits = match self.ptx {
                true => given.kind.fits_bytes(param),
                false => given.kind.fits(param),
            };
            if let Err(reason) = fits {
                return refuse(format!("argument {position}: {reason}"));
            }
            given.is_for(&self.gpu, &info.name, position)?;
        }
        Ok(())
    }
}
