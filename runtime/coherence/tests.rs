//! All that can happen to a page under the rule, with GPUs that run their launches and give pages up whenever they like: every state that
//! can be reached is looked at, once. What each launch must find is what was written last before it was enqueued.

use std::collections::{HashMap, VecDeque};

use super::{Coherence, Copies, Step};

/// A rule with a mistake in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    NoFlushBeforeRead,
    NoFlushBeforeWrite,
    StaleCopiesStay,
    WriterDoesNotWaitForReaders,
    ReaderDoesNotWaitForWriters,
    /// Of the GPU that wrote before, when another one writes.
    StaleMarkIsLost,
    /// A flush beside launches that read counts as one of a GPU at rest.
    FlushedIsClean,
    /// Readers count for nothing.
    ReadersAreForgotten,
}

const ALL: [Broken; 8] = [
    Broken::NoFlushBeforeRead,
    Broken::NoFlushBeforeWrite,
    Broken::StaleCopiesStay,
    Broken::WriterDoesNotWaitForReaders,
    Broken::ReaderDoesNotWaitForWriters,
    Broken::StaleMarkIsLost,
    Broken::FlushedIsClean,
    Broken::ReadersAreForgotten,
];

/// A launch on its stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Launch {
    /// What it must find in the page.
    finds: u8,
    /// What it writes then.
    writes: Option<u8>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct OneGpu {
    /// What its frame holds, and whether that is marked as dirty.
    frame: Option<(u8, bool)>,
    stream: VecDeque<Launch>,
}

/// One page, by numbers that stand for what was written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    home: u8,
    /// Written last, as launches and the host were told to.
    latest: u8,
    gpus: Vec<OneGpu>,
    rule: Coherence,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Launch {
        gpu: usize,
        writes: bool,
    },
    /// The GPU runs the next launch of its stream.
    Run {
        gpu: usize,
    },
    /// The page leaves its frame.
    Evict {
        gpu: usize,
    },
    HostRead,
    HostWrite,
    Discard,
}

impl World {
    fn new(gpus: usize) -> Self {
        Self {
            home: 0,
            latest: 0,
            gpus: vec![OneGpu::default(); gpus],
            rule: Coherence::default(),
        }
    }

    /// A number that stands for nothing yet.
    fn fresh(&self) -> u8 {
        let frames = self.gpus.iter().filter_map(|gpu| gpu.frame.map(|(value, _)| value));
        let launches = self.gpus.iter().flat_map(|gpu| &gpu.stream);
        let values = launches
            .flat_map(|launch| [Some(launch.finds), launch.writes])
            .flatten();
        let most = frames.chain(values).fold(self.home.max(self.latest), u8::max);
        most + 1
    }

    /// Renames the values to the least numbers, so that there are finitely many worlds.
    fn renamed(mut self) -> Self {
        let mut names = HashMap::new();
        let mut rename = |value: &mut u8| {
            let next = names.len() as u8;
            *value = *names.entry(*value).or_insert(next);
        };
        rename(&mut self.home);
        rename(&mut self.latest);
        for gpu in &mut self.gpus {
            if let Some((value, _)) = &mut gpu.frame {
                rename(value);
            }
            for launch in &mut gpu.stream {
                rename(&mut launch.finds);
                launch.writes.as_mut().into_iter().for_each(&mut rename);
            }
        }
        self
    }

    fn evict(&mut self, gpu: usize) {
        if let Some((value, true)) = self.gpus[gpu].frame.take() {
            self.home = value;
        }
    }

    fn flush(&mut self, gpu: usize, beside: bool) {
        if let Some((value, dirty)) = &mut self.gpus[gpu].frame
            && *dirty
        {
            self.home = *value;
            // A reader may hold it.
            *dirty = beside;
        }
    }

    fn run(&mut self, gpu: usize) -> Result<(), String> {
        let home = self.home;
        let OneGpu { frame, stream } = &mut self.gpus[gpu];
        let Some(launch) = stream.pop_front() else {
            return Ok(());
        };
        let (value, _) = *frame.get_or_insert((home, false));
        if value != launch.finds {
            return Err(format!(
                "a launch on GPU {gpu} finds {value} in place of {}",
                launch.finds
            ));
        }
        if let Some(value) = launch.writes {
            *frame = Some((value, true));
        }
        Ok(())
    }

    /// Until none of its launches is left; with `writers`, none that writes.
    fn wait(&mut self, gpu: usize, writers: bool) -> Result<(), String> {
        let awaited = |launch: &Launch| !writers || launch.writes.is_some();
        while self.gpus[gpu].stream.iter().any(awaited) {
            self.run(gpu)?;
        }
        Ok(())
    }

    fn quiesce(&mut self) -> Result<(), String> {
        (0..self.gpus.len()).try_for_each(|gpu| self.wait(gpu, false))
    }

    fn launch(&mut self, gpu: usize, writes: bool, broken: Option<Broken>) -> Result<(), String> {
        let before = self.rule.clone();
        for step in self.rule.before(gpu, writes) {
            match (step, broken) {
                (Step::Wait { .. }, Some(Broken::WriterDoesNotWaitForReaders)) if writes => {}
                (Step::Wait { .. }, Some(Broken::ReaderDoesNotWaitForWriters)) if !writes => {}
                (Step::Flush { gpu }, Some(Broken::NoFlushBeforeRead)) if !writes => self.rule.flushed(gpu, true),
                (Step::Flush { gpu }, Some(Broken::NoFlushBeforeWrite)) if writes => self.rule.flushed(gpu, false),
                (Step::Drop { gpu }, Some(Broken::StaleCopiesStay)) => self.rule.dropped(gpu),
                (Step::Wait { gpu, writers }, _) => self.wait(gpu, writers)?,
                (Step::Flush { gpu }, _) => {
                    let beside = !self.gpus[gpu].stream.is_empty();
                    self.flush(gpu, beside);
                    self.rule.flushed(gpu, beside && broken != Some(Broken::FlushedIsClean));
                }
                (Step::Drop { gpu }, _) => {
                    self.gpus[gpu].frame = None;
                    self.rule.dropped(gpu);
                }
            }
        }
        if writes || broken != Some(Broken::ReadersAreForgotten) {
            self.rule.begin(gpu, writes);
        }
        if broken == Some(Broken::StaleMarkIsLost) && writes {
            let wrote = |other: &usize| *other != gpu && before.of(*other) == Copies::Dirty;
            (0..self.gpus.len())
                .filter(wrote)
                .for_each(|other| self.rule.dropped(other));
        }
        let finds = self.latest;
        let writes = writes.then(|| self.fresh());
        self.latest = writes.unwrap_or(self.latest);
        self.gpus[gpu].stream.push_back(Launch { finds, writes });
        Ok(())
    }

    fn after(&self, action: Action, broken: Option<Broken>) -> Result<Self, String> {
        let mut world = self.clone();
        match action {
            Action::Launch { gpu, writes } => world.launch(gpu, writes, broken)?,
            Action::Run { gpu } => world.run(gpu)?,
            Action::Evict { gpu } => world.evict(gpu),
            Action::HostRead => {
                world.quiesce()?;
                for gpu in 0..world.gpus.len() {
                    // As a region does that knows of writes since its last flush.
                    if world.rule.of(gpu) == Copies::Dirty {
                        world.flush(gpu, false);
                        world.rule.flushed(gpu, false);
                    }
                }
                if world.home != world.latest {
                    return Err(format!("the host finds {} in place of {}", world.home, world.latest));
                }
            }
            Action::HostWrite => {
                world.quiesce()?;
                for gpu in 0..world.gpus.len() {
                    world.evict(gpu);
                    world.rule.dropped(gpu);
                }
                (world.home, world.latest) = (world.fresh(), world.fresh());
            }
            Action::Discard => {
                world.quiesce()?;
                world.gpus.iter_mut().for_each(|gpu| gpu.frame = None);
                world.latest = world.home;
            }
        }
        Ok(world.renamed())
    }

    /// All that can happen, with at most this many launches on a stream.
    fn actions(&self, on_a_stream: usize) -> Vec<Action> {
        let mut actions = vec![Action::HostRead, Action::HostWrite, Action::Discard];
        for (gpu, OneGpu { frame, stream }) in self.gpus.iter().enumerate() {
            if stream.len() < on_a_stream {
                actions.extend([false, true].map(|writes| Action::Launch { gpu, writes }));
            }
            if !stream.is_empty() {
                actions.push(Action::Run { gpu });
            }
            if frame.is_some() {
                actions.push(Action::Evict { gpu });
            }
        }
        actions
    }

    /// What the rule's description promises of its states.
    fn check(&self) -> Result<(), String> {
        let of = |gpu: usize| self.rule.of(gpu);
        let newer = |gpu: &usize| matches!(of(*gpu), Copies::Dirty | Copies::Flushed);
        let running = |gpu: &usize| !self.gpus[*gpu].stream.is_empty();
        let writing = |gpu: &usize| self.gpus[*gpu].stream.iter().any(|launch| launch.writes.is_some());
        let count = |which: &dyn Fn(&usize) -> bool| (0..self.gpus.len()).filter(which).count();
        let dirty = count(&|gpu| of(*gpu) == Copies::Dirty);
        let holds = |what: bool, says: &str| if what { Ok(()) } else { Err(format!("{says}: {self:?}")) };
        holds(count(&newer) <= 1, "one GPU at most is dirty or flushed")?;
        holds(
            dirty == 0 || count(&|gpu| of(*gpu) == Copies::Clean) == 0,
            "clean beside dirty",
        )?;
        holds(count(&writing) == 0 || count(&running) == 1, "a writer is alone")
    }
}

/// Looks at every state; how many there are, or what went wrong and how it came to that.
fn explore(gpus: usize, on_a_stream: usize, broken: Option<Broken>) -> Result<usize, String> {
    let first = World::new(gpus);
    let mut known: HashMap<World, Option<(World, Action)>> = HashMap::from([(first.clone(), None)]);
    let mut next = VecDeque::from([first]);
    while let Some(world) = next.pop_front() {
        for action in world.actions(on_a_stream) {
            let after = world.after(action, broken);
            let checked = after.and_then(|after| match broken {
                None => after.check().map(|()| after),
                Some(_) => Ok(after),
            });
            let after = checked.map_err(|wrong| {
                let mut story = vec![format!("{action:?}: {wrong}")];
                let mut at = &world;
                while let Some(Some((before, action))) = known.get(at) {
                    story.push(format!("{action:?}"));
                    at = before;
                }
                story.reverse();
                story.join("\n")
            })?;
            if !known.contains_key(&after) {
                known.insert(after.clone(), Some((world.clone(), action)));
                next.push_back(after);
            }
        }
    }
    Ok(known.len())
}

#[test]
fn no_order_of_events_shows_a_launch_or_the_host_other_than_what_was_written_last() {
    for (gpus, on_a_stream) in [(1, 2), (2, 3), (3, 2), (4, 2)] {
        let states = explore(gpus, on_a_stream, None).unwrap_or_else(|story| panic!("{gpus} GPUs:\n{story}"));
        assert!(gpus == 1 || states > 500, "{states} states of {gpus} GPUs");
    }
}

#[test]
fn each_mistake_in_the_rule_is_found() {
    for broken in ALL {
        let found = explore(2, 2, Some(broken));
        let story = found.expect_err(&format!("{broken:?}"));
        assert!(story.contains("in place of"), "{broken:?}: {story}");
    }
}

#[test]
fn readers_wait_for_nobody_once_what_was_written_is_home() {
    let mut world = World::new(8);
    world.launch(3, true, None).unwrap();
    // The first reader writes it back, the writer's own GPU among them.
    for gpu in [3, 0, 1, 2, 4, 5, 6, 7] {
        let waits = world.rule.before(gpu, false);
        let expected: &[Step] = match gpu {
            0 => &[Step::Wait { gpu: 3, writers: true }, Step::Flush { gpu: 3 }],
            _ => &[],
        };
        assert_eq!(waits, expected);
        world.launch(gpu, false, None).unwrap();
    }
    // All of them run: none but the writer's end was waited for.
    assert!(world.gpus.iter().all(|gpu| gpu.stream.len() == 1));
}
