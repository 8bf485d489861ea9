//! Managed memory that is paged, and launches over it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuvm::{CudaGpu, RawRegion, Transport, Vm};

use super::{Pager, Paging, State, Work, borrowed};
use crate::code::{Code, Forms};
use crate::driver::{self, SUCCESS, Status};
use crate::error::chain;
use crate::settings;
use crate::timing::Timing;
use crate::window::Access;

/// Launches of programs end by themselves.
const DEADLINE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Frames change by so many bytes.
const FRAMES_STEP: u64 = 64 << 20;
/// `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` and `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`, and why rewritten kernels meet them.
const OUT_OF_RESOURCES: Status = 701;
const TOO_LARGE: Status = 720;
const TOO_MANY_REGISTERS: &str =
    "looking pages up takes too many registers: give --registers a smaller number, such as 64";

/// The forms of a launch's kernel that look pages up, or why it uses all of them at home.
fn forms_of(code: &Code, work: &Work<'_>, handle: usize) -> (Option<Forms>, Option<Arc<str>>) {
    let function = match (work, code.function(handle)) {
        (Work::Kernel(_), Some(function)) => function,
        (Work::Kernel(_), None) => return (None, Some("its code was not intercepted".into())),
        (Work::Other(_), _) => return (None, Some("its kernels are not looked at".into())),
    };
    let forms = || function.forms(handle).ok_or("the driver refuses its rewritten text");
    match &function.at_home {
        Some(why) => (None, Some(Arc::clone(why))),
        None => forms().map_or_else(|why| (None, Some(why.into())), |forms| (Some(forms), None)),
    }
}

impl State {
    /// Sees to it that the GPU reaches managed memory. Nothing of it is done in a context that is not a GPU's primary one.
    pub fn ready(&mut self) {
        if !matches!(self.pager, Pager::New) || !self.has_memory() {
            return;
        }
        let made = match self.context() {
            (context, Some(gpu)) => self.page(context, gpu),
            (_, None) => {
                Err("the program's context is not its GPU's primary one, which the CUDA runtime uses".to_owned())
            }
        };
        if let Err(why) = made {
            self.give_up(&why);
        }
    }

    /// The current context, and the GPU whose primary one it is.
    fn context(&mut self) -> (usize, Option<i32>) {
        let context = driver::current_context();
        let primary = || driver::current_gpu().and_then(|(gpu, is_primary)| is_primary.then_some(gpu));
        (context, *self.contexts.entry(context).or_insert_with(primary))
    }

    fn page(&mut self, context: usize, gpu: i32) -> Result<(), String> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        gpuvm_gpu::cuda::find_driver_by(driver::find);
        let page = settings::page_bytes();
        let builder = Vm::builder()
            .gpu(CudaGpu::ordinal(gpu.unsigned_abs()))
            .transport(Transport::Direct)
            .page_size(page)
            .launch_deadline(DEADLINE)
            .window_over(memory.window.clone());
        let usable = settings::usable(driver::free_bytes().unwrap_or(0));
        let (frames, frames_max, builder) = match settings::frame_bytes() {
            Some(bytes) => (bytes, bytes, builder.frame_memory(bytes)),
            None => {
                let most = usable.max(FRAMES_STEP);
                let grows = builder.frame_memory(FRAMES_STEP).frame_capacity(most);
                (FRAMES_STEP, most, grows)
            }
        };
        let begun = Instant::now();
        let vm = builder.build().map_err(|error| chain(&error))?;
        self.summary.took("beginning to page", begun);
        let window = vm.window_bytes().map_err(|error| chain(&error))?;
        let paged = memory.slabs.values_mut().try_for_each(|slab| slab.page(&vm));
        self.summary.pages(frames, page);
        self.pager = Pager::Paging(Paging {
            vm,
            context,
            window,
            frames,
            frames_max,
            streams: HashMap::new(),
        });
        paged
    }

    /// Sees to frames for all managed memory, as far as there is GPU memory.
    pub(super) fn grow(&mut self) {
        let (Pager::Paging(paging), Some(memory)) = (&mut self.pager, &self.memory) else {
            return;
        };
        let all = memory.bytes();
        let begun = Instant::now();
        // With some that no page needs, so that all have one.
        let wanted = (all.next_multiple_of(FRAMES_STEP) + FRAMES_STEP).min(paging.frames_max);
        let usable = settings::usable(driver::free_bytes().unwrap_or(0));
        let wanted = wanted.min(paging.frames + usable / FRAMES_STEP * FRAMES_STEP);
        if wanted <= paging.frames {
            return;
        }
        match paging.vm.resize_frames(wanted) {
            Ok(resized) => {
                self.summary.took("taking frames", begun);
                paging.frames = resized.bytes;
                self.summary.pages(resized.bytes, settings::page_bytes());
            }
            Err(error) => self
                .summary
                .note(format!("no more frames are available: {}", chain(&error))),
        }
    }

    /// The error says why nobody pages.
    pub(super) fn launch_paged(
        &mut self,
        work: &Work<'_>,
        handle: usize,
        stream: u64,
        enqueue: &impl Fn(usize) -> Status,
    ) -> Result<Status, String> {
        let (name, context) = (self.name(work), driver::current_context());
        let Pager::Paging(paging) = &mut self.pager else {
            return Err("nobody pages".into());
        };
        if paging.context != context {
            return Err("the program launches in several contexts".into());
        }
        let (forms, at_home) = forms_of(&self.code, work, handle);
        let function = self.code.function(handle);
        let plain = self.code.plain(handle);
        if let (Some(_), Some(loaded)) = (forms, function.and_then(|function| function.loaded.as_ref())) {
            loaded.describe(&paging.window)?;
        }
        let Some(memory) = &mut self.memory else {
            return Ok(enqueue(handle));
        };
        let fits = memory.bytes() <= paging.frames;
        let begun = Instant::now();
        let was_open = memory.slabs.values().any(|slab| slab.access != Access::None);
        memory.slabs.values_mut().try_for_each(|slab| slab.close(fits))?;
        self.summary.took("closing managed memory", begun);
        let regions: Vec<&RawRegion> = memory.slabs.values().filter_map(|slab| slab.region.as_ref()).collect();
        let stream_of = stream;
        let stream = borrowed(&mut paging.streams, &paging.vm, stream)?;
        let status = std::cell::Cell::new(None);
        let timing = &mut self.timing;
        let put = |complete: bool| {
            let form = forms.map_or(plain, |forms| if complete { forms.quiet } else { forms.marking });
            let (put, timed) = Timing::around(stream_of, || enqueue(form));
            match complete {
                true => timing.add(&name, timed),
                false => timing.add(&format!("{name}, marking"), timed),
            }
            status.set(Some(put));
            match put {
                SUCCESS => Ok(()),
                status => Err(format!("CUDA error {status}")),
            }
        };
        let begun = Instant::now();
        // SAFETY: it puts a kernel there that looks pages up in this window, or one that finds them at home.
        let launched = unsafe { paging.vm.launch_over(stream, (&name, at_home.is_some()), &regions, put) };
        self.summary.took(
            if was_open {
                "launching, behind accesses of the host"
            } else {
                "launching"
            },
            begun,
        );
        let launched = launched.map(drop).map_err(|error| chain(&error));
        if forms.is_some() && matches!(status.get(), Some(OUT_OF_RESOURCES | TOO_LARGE)) {
            // As it was written it may run.
            self.code.keep_at_home(handle, TOO_MANY_REGISTERS);
            return self.launch_paged(work, handle, stream_of, enqueue);
        }
        self.launched((&name, at_home), launched, status.get())
    }

    /// What became of a launch of what was paged.
    fn launched(
        &mut self,
        (name, at_home): (&str, Option<Arc<str>>),
        launched: Result<(), String>,
        status: Option<Status>,
    ) -> Result<Status, String> {
        match (launched, status) {
            (Ok(()), Some(SUCCESS)) => {}
            (Err(why), Some(SUCCESS)) => {
                // It runs, and nobody else would wait for it.
                driver::synchronize();
                self.give_up(&why);
                return Ok(SUCCESS);
            }
            // The program's own mistake, or too many registers.
            (_, Some(status)) => {
                self.summary.refused(name, status);
                return Ok(status);
            }
            (Err(why), None) => return Err(why),
            (Ok(()), None) => return Err("nothing was launched".into()),
        }
        match at_home {
            None => self.summary.looked_up(name),
            Some(why) => self.summary.at_home(name, &why),
        }
        Ok(SUCCESS)
    }
}
