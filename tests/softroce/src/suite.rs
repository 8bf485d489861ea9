//! Runs scenarios one after the other on the same machines, and reports one line for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::machine::Machine;
use crate::options::Options;
use crate::{clean, native};

/// Something that must work, on one machine or on two.
pub struct Scenario {
    /// Its name on the command line: lower case, words joined by `_`.
    pub name: &'static str,
    /// What it shows, in one sentence.
    pub what: &'static str,
    /// How long it may take once its machines are up; they are killed then.
    pub limit: Duration,
    /// Why it runs only where it is named or all are asked for.
    pub not_by_default: Option<&'static str>,
    /// What it needs of this machine before any machine is started: programs, and kernels that were compiled. A machine keeps the listing
    /// of a folder that it has seen, and would not find what comes later.
    pub prepare: fn() -> Result<(), Error>,
    /// What it does.
    pub run: Run,
}

/// What a scenario does, and on how many machines. They may have run others before. It leaves them as they were, or without power.
#[derive(Clone, Copy)]
pub enum Run {
    /// On one machine whose RDMA device reaches itself. In native mode it is this machine.
    One(fn(&Machine) -> Result<(), Error>),
    /// On one virtual machine, also where this one has an RDMA device.
    OneVirtual(fn(&Machine) -> Result<(), Error>),
    /// On two virtual machines, 10.9.0.1 and 10.9.0.2.
    Two(fn(&Machine, &Machine) -> Result<(), Error>),
}

/// How a scenario ended.
#[derive(Debug)]
enum Outcome {
    /// It holds.
    Passed,
    /// It was not run.
    Skipped {
        /// Why not.
        why: String,
    },
    /// It does not hold.
    Failed {
        /// What went wrong first.
        error: Error,
        /// What its machines had run before it, in order.
        before: Vec<&'static str>,
        /// The ends of the consoles of its machines.
        consoles: String,
    },
}

impl Outcome {
    fn failed(error: Error) -> Self {
        Self::Failed {
            error,
            before: Vec::new(),
            consoles: String::new(),
        }
    }
}

/// Machines that scenarios run on, one after the other: two with a cable between them, or this one.
struct Suite<'a> {
    boot: Box<dyn Fn() -> Result<Vec<Machine>, Error> + 'a>,
    /// The RDMA device of this machine, which is used.
    native: Option<native::Device>,
    /// None before the first scenario, and behind one that has failed.
    machines: Vec<Machine>,
    /// What they have run.
    before: Vec<&'static str>,
}

impl<'a> Suite<'a> {
    /// With `only_virtual`, this machine's own RDMA device is not used.
    fn new(options: &'a Options, only_virtual: bool) -> Result<Self, Error> {
        let native = if only_virtual { None } else { native::device()? };
        let device = native.clone();
        let boot = move || match &device {
            Some(device) => Ok(vec![Machine::this_one(options, device.clone())]),
            None => Machine::boot_two(options).map(Vec::from),
        };
        Ok(Self::of(native, boot))
    }

    fn of(native: Option<native::Device>, boot: impl Fn() -> Result<Vec<Machine>, Error> + 'a) -> Self {
        Self {
            boot: Box::new(boot),
            native,
            machines: Vec::new(),
            before: Vec::new(),
        }
    }

    /// Why a scenario cannot be run, if it cannot.
    fn skips(&self, scenario: &Scenario) -> Option<String> {
        match (&self.native, scenario.run) {
            (Some(device), Run::OneVirtual(_) | Run::Two(_)) => Some(format!(
                "it needs virtual machines, and {} of this machine is used; --vm runs it",
                device.name
            )),
            _ => None,
        }
    }

    /// Runs one scenario, which is prepared.
    fn run(&mut self, scenario: &Scenario) -> Outcome {
        let result = self.make_ready(scenario).and_then(|()| {
            let result = limited(scenario, &self.machines);
            // A fault of the kernel explains what else went wrong, so it comes first.
            let faults: Result<(), Error> = self.machines.iter().try_for_each(Machine::check_kernel);
            faults.and(result)?;
            self.machines.iter().try_for_each(clean::check)
        });
        let Err(error) = result else {
            self.before.push(scenario.name);
            return Outcome::Passed;
        };
        let consoles = self.machines.iter().filter(|machine| machine.is_virtual());
        let consoles = consoles.map(|machine| format!("console of {}:\n{}\n", machine.name(), machine.console_tail()));
        let consoles = consoles.collect();
        self.machines.clear();
        Outcome::Failed {
            error,
            before: std::mem::take(&mut self.before),
            consoles,
        }
    }

    /// Starts machines where there are none, and those again that the scenario needs and one before it has killed.
    fn make_ready(&mut self, scenario: &Scenario) -> Result<(), Error> {
        if self.machines.is_empty() {
            self.machines = (self.boot)()?;
        }
        let needed = if matches!(scenario.run, Run::Two(_)) { 2 } else { 1 };
        let gone = self
            .machines
            .iter()
            .take(needed)
            .filter(|machine| machine.why_gone().is_some());
        gone.into_iter().try_for_each(Machine::boot_again)
    }
}

/// Runs the scenario; kills its machines when its time is over, which ends every wait in it.
fn limited(scenario: &Scenario, machines: &[Machine]) -> Result<(), Error> {
    let over = Arc::new(AtomicBool::new(false));
    let (done, waiting) = channel::<()>();
    let result = thread::scope(|scope| {
        let over = over.clone();
        scope.spawn(move || {
            if waiting.recv_timeout(scenario.limit) == Err(RecvTimeoutError::Timeout) {
                // Relaxed: read after this thread was joined.
                over.store(true, Ordering::Relaxed);
                machines.iter().for_each(Machine::stop);
            }
        });
        let result = match (scenario.run, machines) {
            (Run::One(run) | Run::OneVirtual(run), [machine, ..]) => run(machine),
            (Run::Two(run), [first, second]) => run(first, second),
            _ => unreachable!("two machines were made unless this one is used"),
        };
        drop(done);
        result
    });
    if over.load(Ordering::Relaxed) {
        let (name, limit) = (scenario.name, scenario.limit);
        let first = result
            .err()
            .map_or_else(String::new, |error| format!("; it was at: {error}"));
        return Err(Error::Check(format!(
            "{name} took longer than its limit of {limit:?}{first}"
        )));
    }
    result
}

/// Runs scenarios one after the other and prints a line for each. Returns whether none failed.
///
/// # Errors
/// As [`native::device`].
pub fn run_all(scenarios: &[Scenario], options: &Options, only_virtual: bool) -> Result<bool, Error> {
    let started = Instant::now();
    let mut suite = Suite::new(options, only_virtual)?;
    let prepare = |scenario: &Scenario| match suite.skips(scenario) {
        Some(why) => Err(Outcome::Skipped { why }),
        None => (scenario.prepare)().map_err(Outcome::failed),
    };
    let prepared: Vec<_> = scenarios.iter().map(prepare).collect();
    println!("prepared in {:.0} s", started.elapsed().as_secs_f32());
    let mut counts = [0_usize; 3];
    for (scenario, prepared) in scenarios.iter().zip(prepared) {
        let (since, emulated) = (Instant::now(), crate::qemu::processor_time());
        let outcome = prepared.map_or_else(|not| not, |()| suite.run(scenario));
        let emulated = crate::qemu::processor_time().saturating_sub(emulated);
        report(scenario.name, &outcome, since.elapsed(), emulated);
        counts[match outcome {
            Outcome::Passed => 0,
            Outcome::Skipped { .. } => 1,
            Outcome::Failed { .. } => 2,
        }] += 1;
    }
    let [passed, skipped, failed] = counts;
    println!(
        "{passed} passed, {skipped} skipped, {failed} failed in {:.0} s",
        started.elapsed().as_secs_f32()
    );
    Ok(failed == 0)
}

/// Prints how a scenario ended, and how much time of processors its machines have taken.
fn report(name: &str, outcome: &Outcome, took: Duration, emulated: Duration) {
    let (took, emulated) = (took.as_secs_f32(), emulated.as_secs_f32());
    match outcome {
        Outcome::Passed => println!("ok       {name:<24} {took:6.1} s, {emulated:6.1} s of processors"),
        Outcome::Skipped { why } => println!("skipped  {name:<24} {why}"),
        Outcome::Failed {
            error,
            before,
            consoles,
        } => {
            println!("FAILED   {name:<24} {took:6.1} s  {}", crate::error::chain(error));
            print!("{consoles}");
            println!("repeat it with: softroce suite {name}");
            if !before.is_empty() {
                println!("its machines had run before it: {}", before.join(" "));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// This machine, for commands that need no RDMA device.
    fn here() -> Machine {
        let device = native::Device {
            name: "none".into(),
            address: std::net::Ipv4Addr::LOCALHOST,
        };
        Machine::this_one(&Options::default(), device)
    }

    fn scenario(limit: Duration, run: fn(&Machine) -> Result<(), Error>) -> Scenario {
        Scenario {
            name: "test",
            what: "a test",
            limit,
            not_by_default: None,
            prepare: || Ok(()),
            run: Run::One(run),
        }
    }

    fn named(name: &'static str, run: Run) -> Scenario {
        Scenario {
            name,
            run,
            ..scenario(Duration::from_secs(60), |_| Ok(()))
        }
    }

    #[test]
    fn scenarios_share_machines_until_one_fails() {
        let boots = Cell::new(0);
        let mut suite = Suite::of(None, || {
            boots.set(boots.get() + 1);
            Ok(vec![here(), here()])
        });
        let wrong = |_: &Machine| Err(Error::Check("this is wrong".to_owned()));
        let passes = named(
            "passes",
            Run::One(|machine| machine.run("true", Duration::from_secs(60))?.success().map(drop)),
        );
        let pair = named(
            "pair",
            Run::Two(|first, second| {
                assert!(!std::ptr::eq(first, second));
                Ok(())
            }),
        );
        let fails = named("fails", Run::One(wrong));
        for scenario in [&passes, &pair, &passes] {
            assert!(matches!(suite.run(scenario), Outcome::Passed));
        }
        assert_eq!(boots.get(), 1);
        let Outcome::Failed { error, before, .. } = suite.run(&fails) else {
            panic!("it had to fail");
        };
        assert!(error.to_string().contains("this is wrong"), "{error}");
        assert_eq!(before, ["passes", "pair", "passes"]);
        for _ in 0..2 {
            assert!(matches!(suite.run(&passes), Outcome::Passed));
        }
        assert_eq!((boots.get(), &suite.before[..]), (2, &["passes", "passes"][..]));
    }

    #[test]
    fn a_scenario_that_does_not_end_leaves_fresh_machines() {
        let boots = Cell::new(0);
        let mut suite = Suite::of(None, || {
            boots.set(boots.get() + 1);
            Ok(vec![here()])
        });
        let endless = scenario(Duration::from_millis(300), |machine| {
            machine.run("sleep 1000", Duration::from_secs(1000)).map(drop)
        });
        assert!(matches!(suite.run(&endless), Outcome::Failed { .. }));
        let passes = named(
            "passes",
            Run::One(|machine| machine.run("true", Duration::from_secs(60)).map(drop)),
        );
        assert!(matches!(suite.run(&passes), Outcome::Passed));
        assert_eq!(boots.get(), 2);
    }

    #[test]
    fn machines_that_do_not_start_fail_one_scenario() {
        let boots = Cell::new(0);
        let mut suite = Suite::of(None, || {
            boots.set(boots.get() + 1);
            match boots.get() {
                1 => Err(Error::Check("there is no power".to_owned())),
                _ => Ok(vec![here()]),
            }
        });
        let passes = named("passes", Run::One(|_| Ok(())));
        assert!(matches!(suite.run(&passes), Outcome::Failed { .. }));
        assert!(matches!(suite.run(&passes), Outcome::Passed));
    }

    #[test]
    fn a_machine_that_has_gone_by_itself_is_not_taken_for_killed() {
        let machine = here();
        machine.stop();
        assert!(matches!(clean::check(&machine), Err(Error::Gone { .. })));
    }

    #[test]
    fn what_needs_virtual_machines_is_skipped_where_this_one_is_used() {
        let device = native::Device {
            name: "none".into(),
            address: std::net::Ipv4Addr::LOCALHOST,
        };
        let suite = Suite::of(Some(device), || Ok(vec![here()]));
        for run in [Run::Two(|_, _| Ok(())), Run::OneVirtual(|_| Ok(()))] {
            assert!(suite.skips(&named("virtual", run)).is_some());
        }
    }

    #[test]
    fn commands_behave_on_this_machine() {
        crate::scenarios::commands(&here()).unwrap();
    }

    #[test]
    fn a_scenario_that_does_not_end_is_ended() {
        let endless = scenario(Duration::from_millis(300), |machine| {
            let mut job = machine.spawn("sleep 1000")?;
            job.wait_for("never", Duration::from_secs(1000)).map(drop)
        });
        let error = limited(&endless, &[here()]).unwrap_err().to_string();
        assert!(
            error.contains("limit of 300ms") && error.contains("it was at"),
            "{error}"
        );
    }

    #[test]
    fn an_error_carries_the_end_of_the_output() {
        let machine = here();
        let output = machine.run("seq 1000; exit 7", Duration::from_secs(60)).unwrap();
        assert_eq!(output.lines.len(), 1000);
        let error = output.success().unwrap_err().to_string();
        assert!(
            error.contains("status 7") && error.contains("  1000") && !error.contains("  10\n"),
            "{error}"
        );
    }

    #[test]
    fn commands_end_with_their_machine() {
        let machine = here();
        let mut job = machine.spawn("echo $$; exec sleep 1000").unwrap();
        let id = job.wait_line("a number", |line| line.parse::<u32>().is_ok(), Duration::from_secs(60));
        let process = std::path::Path::new("/proc").join(id.unwrap());
        assert!(process.exists());
        drop((machine, job));
        let ends = Instant::now() + Duration::from_secs(60);
        while process.exists() {
            assert!(Instant::now() < ends, "the command outlives its machine");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
