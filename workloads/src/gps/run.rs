//! One application in one form: made, run, measured, compared.

use std::time::Instant;

use gpuvm::{Arg, Launch, Vm};

use super::array::Shared;
use super::{About, App, Case, Elements, Form, Measured, On, Part, Plan, Worker, refuse};
use crate::apps::{AppError, Line, Step, compare_by};

/// An application, and its result on one GPU once there is one.
pub struct Single<A: App> {
    app: A,
    about: About,
    expected: Option<(u32, Vec<A::Word>)>,
}

impl<A: App> Single<A> {
    /// An application that has not run.
    pub fn new(app: A) -> Self {
        Self {
            about: app.about(),
            app,
            expected: None,
        }
    }
}

impl<A: App> Case for Single<A> {
    fn name(&self) -> &'static str {
        self.about.name
    }

    fn input(&self) -> String {
        self.about.input.clone()
    }

    fn is_small(&self) -> bool {
        self.about.is_small
    }

    fn run(&mut self, vm: &Vm, form: Form, plan: Plan) -> Result<Measured, AppError> {
        let count = if form == Form::One { 1 } else { vm.gpus().len() };
        if self.about.parts_max < count as u64 {
            let (name, most) = (self.about.name, self.about.parts_max);
            return refuse(format!(
                "{name} has work for {most} GPUs, not for {count}; give it a larger input"
            ));
        }
        let mut running = Running::new((&self.app, &self.about), vm, form, count)?;
        running.warm_up(vm)?;
        let before = running.sent()?;
        let mut times = Vec::new();
        for _ in 0..plan.repeat {
            let begun = Instant::now();
            running.iterate(plan.iterations)?;
            times.push(begun.elapsed());
        }
        let timed = u64::from(plan.iterations) * u64::from(plan.repeat);
        let sent = (running.sent()? - before) / timed.max(1);
        let (done, found) = (running.iterations, running.result()?);
        let read = running.read()?;
        drop(running);
        Ok(Measured {
            verified: self.compare(form, done, found)?,
            times,
            sent,
            read,
        })
    }
}

impl<A: App> Single<A> {
    /// With the processor's result, or with that of one GPU after as many iterations; how many values.
    fn compare(&mut self, form: Form, iterations: u32, found: Vec<A::Word>) -> Result<u64, AppError> {
        let app = &self.app;
        if form == Form::One {
            let mut compared = 0;
            if self.about.is_small {
                let expected = app.reference(iterations);
                compared = compare_by(self.about.name, &found, &expected, |one, other| app.alike(one, other))?;
            }
            self.expected = Some((iterations, found));
            return Ok(compared);
        }
        match &self.expected {
            Some((as_many, expected)) if *as_many == iterations => {
                compare_by(self.about.name, &found, expected, |one, other| {
                    bytemuck::bytes_of(one) == bytemuck::bytes_of(other)
                })
            }
            _ => refuse(format!(
                "{form} is compared with {}, which runs as often before it",
                Form::One
            )),
        }
    }
}

/// An application whose arrays are made. Launches have ended before any of it goes.
struct Running<'a, A: App> {
    app: &'a A,
    about: &'a About,
    form: Form,
    parts: Vec<Part>,
    launches: Launches,
    /// From each GPU's memory to others'.
    copies: Vec<Line>,
    workers: Vec<Worker<'a>>,
    arrays: Vec<Shared<A::Word>>,
    /// Iterations that have run.
    iterations: u32,
}

impl<'a, A: App> Running<'a, A> {
    fn new((app, about): (&'a A, &'a About), vm: &Vm, form: Form, count: usize) -> Result<Self, AppError> {
        let arrays = (0..about.lengths.len()).map(|array| Shared::new(vm, form, count, &app.initial(array)));
        let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<Part> = Part::all(count).collect();
        let workers = vm.gpus().iter().zip(&parts).map(|(gpu, part)| {
            let part = *part;
            app.worker(&On { gpu, part, form })
        });
        let workers = workers.collect::<Result<_, _>>()?;
        let copies = match form {
            Form::Copies => {
                let line = |gpu: &gpuvm::VmGpu| Line::of(&**gpu.device());
                vm.gpus().iter().map(line).collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        };
        Ok(Self {
            launches: Launches((0..count).map(|_| None).collect()),
            app,
            about,
            form,
            parts,
            copies,
            workers,
            arrays,
            iterations: 0,
        })
    }

    /// Runs iterations until all arrays have been read and written in each way, so that nothing is met for the first time later.
    fn warm_up(&mut self, vm: &Vm) -> Result<(), AppError> {
        let cycle = self.about.cycle;
        if self.form != Form::Broadcast {
            return self.iterate(cycle);
        }
        let mut outcome = Ok(());
        let tracked = vm.track(|| {
            outcome = self.iterate(cycle);
            Ok(())
        });
        outcome.and(tracked.map_err(AppError::vm(Step::Run)))
    }

    fn iterate(&mut self, count: u32) -> Result<(), AppError> {
        for _ in 0..count {
            for step in 0..self.about.steps {
                self.step(step)?;
            }
            self.iterations += 1;
        }
        self.launches.sync()
    }

    /// A step on each GPU in turn. With several GPUs the next one begins when it has ended on all of them.
    fn step(&mut self, step: usize) -> Result<(), AppError> {
        for (gpu, worker) in self.workers.iter().enumerate() {
            let shared: Vec<Arg<'_>> = self.arrays.iter().map(|array| array.arg(gpu)).collect();
            let launch = worker(step, self.iterations, &shared);
            self.launches.0[gpu] = Some(launch.map_err(AppError::vm(Step::Run))?);
        }
        match self.form {
            // Its stream orders them.
            Form::One => Ok(()),
            Form::Broadcast | Form::Peer | Form::Managed => self.launches.sync(),
            Form::Copies => {
                self.launches.sync()?;
                self.exchange(step)
            }
        }
    }

    /// Copies what a step has made to those who read it.
    fn exchange(&mut self, step: usize) -> Result<(), AppError> {
        for &part in &self.parts {
            let mut spans = Vec::new();
            for &reader in self.parts.iter().filter(|reader| **reader != part) {
                let read = self.app.read_by(step, self.iterations, part, reader);
                let span = |elements: &Elements| self.arrays[elements.array].span(elements, part.place, reader.place);
                spans.extend(read.iter().filter_map(span).filter(|span| span.bytes > 0));
            }
            // SAFETY: spans lie in arrays that go after these copiers, which wait for their copies when they go; memory of GPUs was
            // allocated for each other's engines. Launches have ended, and the host holds no reference to device memory.
            unsafe { self.copies[part.place].submit(&spans) }?;
        }
        // They take microseconds: a rest would be what is measured.
        self.copies
            .iter()
            .try_for_each(|copies| copies.arrive(std::thread::yield_now))
    }

    /// Bytes that have gone to other GPUs so far.
    fn sent(&self) -> Result<u64, AppError> {
        let copied: u64 = self.copies.iter().map(Line::bytes).sum();
        let stored = self.arrays.iter().map(Shared::sent);
        Ok(copied + stored.sum::<Result<u64, _>>()?)
    }

    /// Bytes that others read of what is written in an iteration, on average over a cycle.
    fn read(&self) -> Result<u64, AppError> {
        let mut bytes = 0;
        let cycle = self.about.cycle;
        for (iteration, step) in (0..cycle).flat_map(|n| (0..self.about.steps).map(move |step| (n, step))) {
            for elements in self.app.written(step, iteration, Part::WHOLE) {
                bytes += self.arrays[elements.array].held_besides(&elements.range)?;
            }
        }
        let needed: u64 = self.copies.iter().map(Line::bytes).sum();
        match self.form {
            Form::Copies => Ok(needed / u64::from(self.iterations.max(1))),
            _ => Ok(bytes / u64::from(cycle.max(1))),
        }
    }

    /// The result, each part of it where it was made.
    fn result(&self) -> Result<Vec<A::Word>, AppError> {
        let array = self.app.result(self.iterations);
        // Its first values are those of who never writes them.
        let mut values = self.app.initial(array);
        let last = self.iterations.saturating_sub(1);
        for (step, &part) in (0..self.about.steps).flat_map(|step| self.parts.iter().map(move |part| (step, part))) {
            for elements in self.app.written(step, last, part) {
                if elements.array == array {
                    let (first, end) = (elements.range.start, elements.range.end);
                    let out = &mut values[first as usize..end as usize];
                    self.arrays[array].read(first, part.place, out)?;
                }
            }
        }
        Ok(values)
    }
}

/// The last launch on each GPU, behind all others of its stream.
struct Launches(Vec<Option<Launch>>);

impl Launches {
    /// Waits for all; the first error.
    fn sync(&mut self) -> Result<(), AppError> {
        let mut outcome = Ok(());
        for launch in self.0.iter_mut().filter_map(Option::take) {
            outcome = outcome.and(launch.sync().map(drop));
        }
        outcome.map_err(AppError::vm(Step::Run))
    }
}

impl Drop for Launches {
    fn drop(&mut self) {
        // After an error: nothing may use memory that goes.
        let _ = self.sync();
    }
}
