//! Machines that have an RDMA device: virtual ones, or this one.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::Error;
use crate::executor::Executor;
use crate::job::{Job, Jobs, Output};
use crate::native;
use crate::options::Options;
use crate::protocol::{Event, Request};
use crate::qemu::{Disks, Plug, Qemu, Wire};

/// Why a machine is gone whose power was cut.
pub(crate) const KILLED: &str = "it was killed";

/// Why one is gone that was stopped.
const OVER: &str = "its time was over";

/// How long a request may take to be taken by a machine.
const REQUEST: Duration = Duration::from_secs(30);

/// A machine with an RDMA device. Commands run there as root in virtual machines, as the caller in native mode, with
/// the caller's working folder, and see the caller's file system; in virtual machines what they write is gone with
/// the machine. Dropping it ends it and all its commands.
pub struct Machine {
    device: native::Device,
    options: Options,
    now: Mutex<Now>,
}

/// What is another one after each start.
#[derive(Clone)]
struct Now {
    jobs: Arc<Jobs>,
    /// `None` is this machine itself.
    qemu: Option<Arc<Qemu>>,
    started_in: Duration,
    /// It is not started again.
    is_over: bool,
}

impl Machine {
    /// A machine whose RDMA device reaches itself: this one if it has a device (see [`native::device`]), else a
    /// virtual one.
    ///
    /// # Errors
    /// As [`Machine::boot`] and [`native::device`].
    pub fn get(options: &Options) -> Result<Self, Error> {
        match native::device()? {
            Some(device) => Ok(Self::this_one(options, device)),
            None => Self::boot(options),
        }
    }

    /// A virtual machine whose RDMA device rxe0 is on a network device that reaches itself.
    ///
    /// # Errors
    /// [`Error::MissingProgram`], [`Error::NoKernel`], [`Error::Boot`], [`Error::File`], [`Error::Setting`].
    pub fn boot(options: &Options) -> Result<Self, Error> {
        Starting::begin(options, None, None)?.finish(options)
    }

    /// Two virtual machines with a cable between their network devices; `name` is added to by "1" and "2". The first has the disks.
    ///
    /// # Errors
    /// As [`Machine::boot`].
    pub fn boot_two(options: &Options) -> Result<[Self; 2], Error> {
        let wire = Wire::new()?;
        let of = |end: usize| Options {
            name: format!("{}{}", options.name, end + 1),
            ..options.clone()
        };
        let (first, second) = (
            of(0),
            Options {
                disks_mib: Vec::new(),
                ..of(1)
            },
        );
        let starting = (
            Starting::begin(
                &first,
                Some(Plug {
                    wire: wire.clone(),
                    end: 0,
                }),
                None,
            )?,
            Starting::begin(&second, Some(Plug { wire, end: 1 }), None)?,
        );
        let first = starting.0.finish(&first)?;
        Ok([first, starting.1.finish(&second)?])
    }

    /// Cuts the power and starts the machine again: same address, same cable, same disks.
    ///
    /// # Errors
    /// [`Error::Native`], [`Error::KernelFault`] of the kernel before, [`Error::Gone`] where its time is over, and as
    /// [`Machine::boot`].
    pub fn boot_again(&self) -> Result<(), Error> {
        self.check_kernel()?;
        self.kill()?;
        let before = self.qemu();
        let plug = before.as_ref().and_then(|qemu| qemu.plug());
        let disks = before.as_ref().map(|qemu| qemu.disks());
        drop(before);
        let again = Starting::begin(&self.options, plug, disks)?.finish(&self.options)?;
        let mut now = self.now.lock();
        if now.is_over {
            return Err(Error::Gone {
                machine: self.options.name.clone(),
                why: OVER.to_owned(),
            });
        }
        *now = again.now.into_inner();
        Ok(())
    }

    /// This machine itself.
    pub(crate) fn this_one(options: &Options, device: native::Device) -> Self {
        let (events, queue) = channel();
        let executor = Executor::new(events);
        let ask = move |request: &Request| {
            executor.handle(request.clone());
            Ok(())
        };
        let jobs = Jobs::new(&options.name, environment(&device.name), Box::new(ask));
        // Weak: the executor ends, and kills what runs, with the last holder of the jobs.
        let noted = Arc::downgrade(&jobs);
        thread::spawn(move || {
            for event in queue {
                let Some(jobs) = noted.upgrade() else { break };
                jobs.take(event);
            }
        });
        Self::new(options, device, jobs, None, Duration::ZERO)
    }

    fn new(
        options: &Options,
        device: native::Device,
        jobs: Arc<Jobs>,
        qemu: Option<Arc<Qemu>>,
        started_in: Duration,
    ) -> Self {
        let now = Now {
            jobs,
            qemu,
            started_in,
            is_over: false,
        };
        Self {
            device,
            options: options.clone(),
            now: Mutex::new(now),
        }
    }

    fn jobs(&self) -> Arc<Jobs> {
        self.now.lock().jobs.clone()
    }

    fn qemu(&self) -> Option<Arc<Qemu>> {
        self.now.lock().qemu.clone()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Its RDMA device, such as "rxe0"; commands find it in `GPUVM_TEST_RDMA`.
    pub fn device(&self) -> &str {
        &self.device.name
    }

    /// The IPv4 address of its RDMA device.
    pub fn address(&self) -> Ipv4Addr {
        self.device.address
    }

    /// Whether it is a virtual one.
    pub fn is_virtual(&self) -> bool {
        self.now.lock().qemu.is_some()
    }

    /// Why nothing can run on it until it is started again: it was killed, or has gone by itself.
    pub(crate) fn why_gone(&self) -> Option<String> {
        self.jobs().why_gone()
    }

    /// How long its last start took, from QEMU's to the agent's first word.
    pub fn started_in(&self) -> Duration {
        self.now.lock().started_in
    }

    /// Runs a shell command (bash) to its end. What it leaves in the background is killed with it.
    ///
    /// # Errors
    /// [`Error::CommandTimeout`] (the command is killed then), [`Error::Gone`]. A status other than 0 is none: see
    /// [`Output::success`].
    pub fn run(&self, command: &str, limit: Duration) -> Result<Output, Error> {
        self.jobs().start(command, false)?.wait(limit)
    }

    /// Starts a shell command (bash).
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn spawn(&self, command: &str) -> Result<Job, Error> {
        self.jobs().start(command, false)
    }

    /// Starts a shell command (bash) that has a [`Job::input`].
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn spawn_with_input(&self, command: &str) -> Result<Job, Error> {
        self.jobs().start(command, true)
    }

    /// Ends a virtual machine at once, as a power cut would: nothing in it can say goodbye.
    ///
    /// # Errors
    /// [`Error::Native`].
    pub fn kill(&self) -> Result<(), Error> {
        let native = || Error::Native {
            what: "a power cut",
            device: self.device.name.clone(),
        };
        self.qemu().ok_or_else(native)?.kill();
        self.jobs().all_gone(KILLED);
        Ok(())
    }

    /// Ends all that runs on it, virtual or not, for good.
    pub(crate) fn stop(&self) {
        self.now.lock().is_over = true;
        if self.kill().is_err() {
            let jobs = self.jobs();
            jobs.kill_all();
            jobs.all_gone(OVER);
        }
    }

    /// The last lines of [`Machine::console`].
    pub fn console_tail(&self) -> String {
        crate::job::tail(self.console().lines())
    }

    /// What the kernel of a virtual machine wrote to its console; nothing in native mode.
    pub fn console(&self) -> String {
        self.qemu().map(|qemu| qemu.console()).unwrap_or_default()
    }

    /// Fails where the kernel of a virtual machine reported a fault of its own: an oops, a lockup.
    ///
    /// # Errors
    /// [`Error::KernelFault`].
    pub fn check_kernel(&self) -> Result<(), Error> {
        self.qemu().map_or(Ok(()), |qemu| qemu.check())
    }
}

/// How often QEMU may crash while a machine starts.
const CRASHES_MAX: u32 = 2;

/// A machine between the start of QEMU and the agent's first word.
struct Starting {
    qemu: Arc<Qemu>,
    listener: std::os::unix::net::UnixListener,
    since: Instant,
    end: usize,
}

impl Starting {
    fn begin(options: &Options, plug: Option<Plug>, disks: Option<Arc<Disks>>) -> Result<Self, Error> {
        let since = Instant::now();
        let end = plug.as_ref().map_or(0, |plug| plug.end);
        let disks = match disks {
            Some(disks) => disks,
            None => Disks::new(&options.disks_mib)?,
        };
        let (qemu, listener) = Qemu::start(options, plug, disks)?;
        Ok(Self {
            qemu,
            listener,
            since,
            end,
        })
    }

    /// Waits for the machine. An emulator that crashes has said nothing about what is tested: it is started again, and
    /// that is told.
    fn finish(self, options: &Options) -> Result<Machine, Error> {
        let mut starting = self;
        for _ in 0..CRASHES_MAX {
            let (qemu, plug, disks) = (starting.qemu.clone(), starting.qemu.plug(), starting.qemu.disks());
            match starting.finish_once(options) {
                Err(error) => {
                    let Some(how) = qemu.crashed() else { return Err(error) };
                    eprintln!("softroce: {how} while {} started; it is started again", options.name);
                }
                started => return started,
            }
            drop(qemu);
            starting = Self::begin(options, plug, Some(disks))?;
        }
        starting.finish_once(options)
    }

    fn finish_once(self, options: &Options) -> Result<Machine, Error> {
        let (qemu, until) = (self.qemu, self.since + options.boot_limit);
        let failed = |why: String| Error::Boot {
            machine: options.name.clone(),
            limit: options.boot_limit,
            why: qemu.ended().unwrap_or(why),
            log: crate::job::tail(qemu.console().lines()),
        };
        let stream = qemu.accept(&self.listener, until).map_err(failed)?;
        let unusable = |error: std::io::Error| failed(format!("its port cannot be used: {error}"));
        stream.set_nonblocking(false).map_err(unusable)?;
        stream.set_write_timeout(Some(REQUEST)).map_err(unusable)?;
        let reader = stream.try_clone().map_err(unusable)?;
        let writer = Mutex::new(stream);
        let ask = move |request: &Request| {
            let mut text = serde_json::to_string(request)?;
            text.push('\n');
            let mut port = writer.lock();
            port.write_all(text.as_bytes()).inspect_err(|_| {
                // Half a line may be out: nothing that follows would be understood.
                let _ = port.shutdown(Shutdown::Both);
            })
        };
        let device = native::Device {
            name: "rxe0".into(),
            address: Ipv4Addr::new(10, 9, 0, if self.end == 1 { 2 } else { 1 }),
        };
        let jobs = Jobs::new(&options.name, environment(&device.name), Box::new(ask));
        let (first, first_word) = channel();
        let (noted, watched) = (jobs.clone(), Arc::downgrade(&qemu));
        thread::spawn(move || {
            for line in BufReader::new(reader).lines().map_while(Result::ok) {
                match serde_json::from_str::<Event>(&line) {
                    Ok(event @ (Event::Ready | Event::Broken { .. })) => drop(first.send(event)),
                    Ok(event) => noted.take(event),
                    Err(error) => eprintln!("softroce: {} said what is no event: {error}", noted.machine),
                }
            }
            // The machine closes its port before QEMU's end can be seen.
            let why = (0..20).find_map(|_| {
                thread::sleep(Duration::from_millis(10));
                watched.upgrade().and_then(|qemu| qemu.ended())
            });
            noted.all_gone(&why.unwrap_or_else(|| "it has closed its port".to_owned()));
        });
        match first_word.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Event::Broken { reason }) => Err(failed(reason)),
            Ok(_) => Ok(Machine::new(
                options,
                device,
                jobs,
                Some(qemu.clone()),
                self.since.elapsed(),
            )),
            Err(RecvTimeoutError::Timeout) => Err(failed("its agent has not said anything".to_owned())),
            Err(RecvTimeoutError::Disconnected) => Err(failed("it has closed its port".to_owned())),
        }
    }
}

/// What commands find in their environment: what the caller's has of meaning to tests, and the device.
fn environment(device: &str) -> Vec<(String, String)> {
    const NAMES: [&str; 9] = [
        "HOME",
        "PATH",
        "CXX",
        "CC",
        "LD_LIBRARY_PATH",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "TERM",
        "XDG_CACHE_HOME",
    ];
    const FAMILIES: [&str; 4] = ["GPUVM_", "RUST_", "CARGO_PKG", "PROPTEST_"];
    let kept =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let kept = kept
        .filter(|(name, _)| NAMES.contains(&name.as_str()) || FAMILIES.iter().any(|family| name.starts_with(family)));
    kept.filter(|(name, _)| name != "GPUVM_TEST_RDMA")
        .chain([("GPUVM_TEST_RDMA".to_owned(), device.to_owned())])
        .collect()
}
