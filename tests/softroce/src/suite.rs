//! Runs scenarios, each on machines of its own, and reports one line for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::machine::{Machine, Options};
use crate::native;

/// Something that must work, on one machine or on two.
pub struct Scenario {
    /// Its name on the command line: lower case, words joined by `_`.
    pub name: &'static str,
    /// What it shows, in one sentence.
    pub what: &'static str,
    /// How long it may take once its machines are up; they are killed then.
    pub limit: Duration,
    /// What it does.
    pub run: Run,
}

/// What a scenario does, and on how many machines.
#[derive(Clone, Copy)]
pub enum Run {
    /// On one machine whose RDMA device reaches itself. In native mode it is this machine.
    One(fn(&Machine) -> Result<(), Error>),
    /// On one virtual machine, also where this one has an RDMA device.
    OneVirtual(fn(&Machine) -> Result<(), Error>),
    /// On one virtual machine with empty NVMe disks of so many MiB.
    Disks(&'static [u32], fn(&Machine) -> Result<(), Error>),
    /// On two virtual machines, 10.9.0.1 and 10.9.0.2.
    Two(fn(&Machine, &Machine) -> Result<(), Error>),
}

/// How a scenario ended.
#[derive(Debug)]
pub enum Outcome {
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
        /// The ends of the consoles of its machines.
        consoles: String,
    },
}

/// Runs one scenario. With `only_virtual`, this machine's own RDMA device is not used.
pub fn run(scenario: &Scenario, options: &Options, only_virtual: bool) -> Outcome {
    let failed = |error| Outcome::Failed {
        error,
        consoles: String::new(),
    };
    let device = match native::device() {
        Ok(device) => device.filter(|_| !only_virtual),
        Err(_) if only_virtual => None,
        Err(error) => return failed(error),
    };
    let machines = match (scenario.run, device) {
        (Run::One(_), Some(device)) => Ok(vec![Machine::this_one(options, device)]),
        (Run::OneVirtual(_) | Run::Disks(..) | Run::Two(_), Some(device)) => {
            let why = format!(
                "it needs virtual machines, and {} of this machine is used; --vm runs it",
                device.name
            );
            return Outcome::Skipped { why };
        }
        (Run::One(_) | Run::OneVirtual(_), None) => Machine::boot(options).map(|machine| vec![machine]),
        (Run::Disks(disks, _), None) => {
            let options = Options {
                disks_mib: disks.to_vec(),
                ..options.clone()
            };
            Machine::boot(&options).map(|machine| vec![machine])
        }
        (Run::Two(_), None) => Machine::boot_two(options).map(Vec::from),
    };
    let machines = match machines {
        Ok(machines) => machines,
        Err(error) => return failed(error),
    };
    let result = limited(scenario, &machines);
    // A fault of the kernel explains what else went wrong, so it comes first.
    let faults: Result<(), Error> = machines.iter().try_for_each(Machine::check_kernel);
    match faults.and(result) {
        Ok(()) => Outcome::Passed,
        Err(error) => {
            let consoles = machines.iter().filter(|machine| machine.is_virtual());
            let consoles =
                consoles.map(|machine| format!("console of {}:\n{}\n", machine.name(), machine.console_tail()));
            Outcome::Failed {
                error,
                consoles: consoles.collect(),
            }
        }
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
            (Run::One(run) | Run::OneVirtual(run) | Run::Disks(_, run), [machine]) => run(machine),
            (Run::Two(run), [first, second]) => run(first, second),
            _ => unreachable!("as many machines were made as the scenario asks for"),
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
pub fn run_all(scenarios: &[&Scenario], options: &Options, only_virtual: bool) -> bool {
    let started = Instant::now();
    let mut counts = [0_usize; 3];
    for scenario in scenarios {
        let since = Instant::now();
        let outcome = run(scenario, options, only_virtual);
        let (name, seconds) = (scenario.name, since.elapsed().as_secs_f32());
        match &outcome {
            Outcome::Passed => println!("ok       {name:<24} {seconds:6.1} s"),
            Outcome::Skipped { why } => println!("skipped  {name:<24} {why}"),
            Outcome::Failed { error, consoles } => {
                println!("FAILED   {name:<24} {seconds:6.1} s  {}", crate::error::chain(error));
                print!("{consoles}");
                println!("repeat it with: softroce suite {name}");
            }
        }
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
    failed == 0
}

#[cfg(test)]
mod tests {
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
            run: Run::One(run),
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
