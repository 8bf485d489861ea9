//! One QEMU process.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::agent::PORT;
use crate::error::Error;
use crate::kernel::Kernel;
use crate::options::Options;
use crate::tools;

/// A virtual machine. Dropping it kills it.
pub(crate) struct Qemu {
    name: String,
    child: Mutex<Child>,
    /// Sockets and logs, and the cable with its end here; `None` once it is destroyed.
    folder: Mutex<Option<(TempDir, Option<Plug>)>>,
    /// Its disks, which another machine in its place has, too.
    disks: Arc<Disks>,
    console: PathBuf,
    log: PathBuf,
}

/// One end of the cable between two machines.
#[derive(Clone)]
pub(crate) struct Plug {
    pub(crate) wire: Arc<Wire>,
    /// 0 or 1.
    pub(crate) end: usize,
}

/// The cable between two machines: each QEMU sends frames as datagrams to the other's socket.
pub(crate) struct Wire {
    folder: TempDir,
}

impl Wire {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { folder: new_folder()? }))
    }

    fn socket(&self, end: usize) -> String {
        escape(&self.folder.path().join(format!("end{end}")))
    }
}

/// The disks of a machine: NVMe, a file each. What a machine has given to them is there although it is killed.
pub(crate) struct Disks {
    files: Vec<PathBuf>,
    /// Removed with the last machine that has them.
    _folder: Option<TempDir>,
}

impl Disks {
    /// Empty disks of this many MiB each. Their files have holes until they are written.
    pub(crate) fn new(mib: &[u32]) -> Result<Arc<Self>, Error> {
        let folder = (!mib.is_empty()).then(new_folder).transpose()?;
        let mut files = Vec::new();
        for (place, mib) in mib.iter().enumerate() {
            let Some(folder) = &folder else { break };
            let path = folder.path().join(format!("disk{place}"));
            let made = File::create(&path).and_then(|file| file.set_len(u64::from(*mib) << 20));
            made.map_err(Error::file("create", &path))?;
            files.push(path);
        }
        Ok(Arc::new(Self { files, _folder: folder }))
    }

    fn describe(&self, command: &mut Command) {
        for (place, file) in self.files.iter().enumerate() {
            // By the host's page cache: what QEMU has passed on outlives QEMU.
            let path = escape(file);
            command
                .arg("-drive")
                .arg(format!("file={path},if=none,id=disk{place},format=raw,cache=writeback"));
            command
                .arg("-device")
                .arg(format!("nvme,drive=disk{place},serial=disk{place}"));
        }
    }
}

/// How the processor is emulated, and which one.
fn acceleration() -> Result<[&'static str; 2], Error> {
    let name = "GPUVM_SOFTROCE_ACCEL";
    match std::env::var(name).unwrap_or_default().as_str() {
        "" | "tcg" => Ok(["tcg,thread=multi", "max"]),
        "kvm" => {
            let device = Path::new("/dev/kvm");
            let open = File::options().read(true).write(true).open(device);
            open.map_err(Error::file("use", device))?;
            // Where KVM itself runs in a virtual machine, this register may be readable and not writable.
            Ok(["kvm", "host,-arch-capabilities"])
        }
        other => Err(Error::Setting {
            name,
            value: other.to_owned(),
            expected: "it may be tcg or kvm",
        }),
    }
}

/// Folders of sockets are in the system's temporary folder: a socket's path has at most 107 bytes.
fn new_folder() -> Result<TempDir, Error> {
    let folder = tempfile::Builder::new().prefix("softroce-").tempdir();
    folder.map_err(Error::file("create a folder in", std::env::temp_dir()))
}

/// What the machine is made of, besides its kernel, its console and its agent's socket.
fn describe(command: &mut Command, options: &Options, plug: Option<&Plug>, [accelerator, cpu]: [&str; 2]) {
    command.args(["-no-user-config", "-nodefaults", "-no-reboot"]);
    command.args(["-display", "none", "-monitor", "none"]);
    command.args(["-machine", "pc", "-cpu", cpu, "-accel", accelerator]);
    command.arg("-name").arg(format!("softroce-{}", options.name));
    command.arg("-smp").arg(options.cpus.to_string());
    command.arg("-m").arg(format!("{}M", options.memory_mib));
    command.args([
        "-append",
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable",
    ]);
    command
        .args(["-device", "virtio-serial-pci", "-device"])
        .arg(format!("virtserialport,chardev=agent,name={PORT}"));
    command.args([
        "-fsdev",
        "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
    ]);
    command.args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]);
    if let Some(Plug { wire, end }) = plug {
        command.arg("-netdev").arg(format!(
            "dgram,id=wire,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            wire.socket(*end),
            wire.socket(1 - end)
        ));
        command.arg("-device").arg(format!(
            "virtio-net-pci,netdev=wire,host_mtu=4500,mac=52:54:00:09:00:0{}",
            end + 1
        ));
    }
}

impl Qemu {
    /// Starts the machine, at its end of the cable between two.
    pub(crate) fn start(
        options: &Options,
        plug: Option<Plug>,
        disks: Arc<Disks>,
    ) -> Result<(Arc<Self>, UnixListener), Error> {
        let qemu = tools::find("qemu-system-x86_64", "qemu-system-x86")?;
        let setpriv = tools::find("setpriv", "util-linux")?;
        let kernel = Kernel::get()?;
        let folder = new_folder()?;
        let at = |name: &str| folder.path().join(name);
        let agent_socket = at("agent");
        let listener = UnixListener::bind(&agent_socket).map_err(Error::file("listen on", &agent_socket))?;
        listener
            .set_nonblocking(true)
            .map_err(Error::file("listen on", &agent_socket))?;
        let initramfs = at("initramfs");
        let address = if plug.as_ref().is_some_and(|plug| plug.end == 1) {
            "10.9.0.2"
        } else {
            "10.9.0.1"
        };
        settings(options, &kernel, address, &initramfs)?;

        let log = at("qemu.log");
        let log_file = File::create(&log).map_err(Error::file("create", &log))?;
        let error_file = log_file.try_clone().map_err(Error::file("create", &log))?;
        let mut command = Command::new(setpriv);
        // Killed with this process, however that ends.
        command.args(["--pdeathsig", "KILL"]).arg(qemu);
        let console = at("console");
        describe(&mut command, options, plug.as_ref(), acceleration()?);
        disks.describe(&mut command);
        command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&initramfs);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command
            .arg("-chardev")
            .arg(format!("socket,id=agent,path={}", escape(&agent_socket)));
        // Its own group: Ctrl-C in a terminal reaches this process alone, which then kills it.
        command
            .stdin(Stdio::null())
            .stdout(log_file)
            .stderr(error_file)
            .process_group(0);
        let child = spawn(command).map_err(Error::file("start QEMU for", &options.name))?;
        let folder = Mutex::new(Some((folder, plug)));
        let machine = Arc::new(Self {
            name: options.name.clone(),
            child: Mutex::new(child),
            folder,
            disks,
            console,
            log,
        });
        all().lock().push(Arc::downgrade(&machine));
        Ok((machine, listener))
    }

    /// Waits until the machine has connected its port.
    pub(crate) fn accept(&self, listener: &UnixListener, until: Instant) -> Result<UnixStream, String> {
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Ok(stream),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.to_string()),
                Err(_) => {}
            }
            if let Some(how) = self.ended() {
                return Err(how);
            }
            if Instant::now() > until {
                return Err("QEMU did not connect the machine's port".to_owned());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// How the process has ended, if it has.
    pub(crate) fn ended(&self) -> Option<String> {
        let status = self.child.lock().try_wait().ok().flatten()?;
        let said = fs::read_to_string(&self.log).unwrap_or_default();
        Some(format!("QEMU has ended ({status}) {}", said.trim()))
    }

    /// How the process has ended, if by a signal of its own making.
    pub(crate) fn crashed(&self) -> Option<String> {
        let status = self.child.lock().try_wait().ok().flatten()?;
        let crashes = [Signal::SEGV, Signal::BUS, Signal::ABORT, Signal::ILL, Signal::FPE];
        let signal = status.signal()?;
        crashes.iter().find(|crash| crash.as_raw() == signal)?;
        Some(format!("QEMU has crashed (signal {signal})"))
    }

    /// The cable to another machine, and the end that is here.
    pub(crate) fn plug(&self) -> Option<Plug> {
        self.folder.lock().as_ref()?.1.clone()
    }

    /// Its disks.
    pub(crate) fn disks(&self) -> Arc<Disks> {
        self.disks.clone()
    }

    /// Kills the process, as a power cut would end a machine, and waits for its end.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock();
        if let Ok(None) = child.try_wait() {
            // Relaxed: a sum that is printed.
            TICKS_OF_ENDED.fetch_add(ticks(child.id()), Ordering::Relaxed);
        }
        let _ = child.kill();
        let _ = child.wait();
    }

    /// What the kernel wrote to its console.
    pub(crate) fn console(&self) -> String {
        fs::read(&self.console)
            .map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', ""))
            .unwrap_or_default()
    }

    /// Fails where the kernel has reported a fault of its own.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let console = self.console();
        match find_fault(&console) {
            Some((line, log)) => Err(Error::KernelFault {
                machine: self.name.clone(),
                line,
                log,
            }),
            None => Ok(()),
        }
    }

    fn destroy(&self) {
        self.kill();
        self.folder.lock().take();
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// The first line of a console that reports a kernel's fault, and the lines from there on.
fn find_fault(console: &str) -> Option<(String, String)> {
    const FAULTS: [&str; 7] = [
        "BUG:",
        "Oops",
        "soft lockup",
        "hard LOCKUP",
        "Kernel panic",
        "general protection fault",
        "blocked for more than",
    ];
    let at = console
        .lines()
        .position(|line| FAULTS.iter().any(|fault| line.contains(fault)))?;
    let lines: Vec<_> = console
        .lines()
        .skip(at)
        .take(40)
        .map(|line| format!("  {line}"))
        .collect();
    Some((lines[0].trim().to_owned(), lines.join("\n")))
}

/// The machine's own first file system: the kernel's, and behind it a file that says who it is.
fn settings(options: &Options, kernel: &Kernel, address: &str, target: &Path) -> Result<(), Error> {
    let agent = options.agent()?;
    let quote = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let text = format!(
        "agent={}\naddress={}\nname={}\n",
        quote(&agent.to_string_lossy()),
        quote(address),
        quote(&options.name)
    );
    let mut own = crate::initramfs::Archive::new();
    own.file("settings", 0o644, text.as_bytes());
    if !options.disks_mib.is_empty() {
        own.folder("disk_modules");
        crate::kernel::add_modules(&mut own, &kernel.disk_modules, "disk_modules")?;
    }
    let mut bytes = fs::read(&kernel.initramfs).map_err(Error::file("read", &kernel.initramfs))?;
    bytes.extend(own.finish());
    fs::write(target, bytes).map_err(Error::file("write", target))
}

/// QEMU's options are separated by commas; a comma in a value is doubled.
fn escape(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// Starts a process from a thread that lives as long as this process does: the parent-death signal comes at the end
/// of the thread that started it.
fn spawn(command: Command) -> io::Result<Child> {
    type Order = (Command, Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in orders {
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let gone = || io::Error::other("the thread that starts processes is gone");
    let (answer, child) = channel();
    spawner.lock().send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

/// All machines of this process.
fn all() -> &'static Mutex<Vec<Weak<Qemu>>> {
    static ALL: Mutex<Vec<Weak<Qemu>>> = Mutex::new(Vec::new());
    &ALL
}

/// Processor time of machines that have ended.
static TICKS_OF_ENDED: AtomicU64 = AtomicU64::new(0);

/// The processor time that a process has used, in the hundredths of a second that Linux counts; 0 where it has ended.
fn ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name may hold spaces; the 12th and 13th field behind it are the time in user space and in the kernel.
    let behind = stat.rsplit_once(')').map_or("", |(_, behind)| behind);
    let fields = behind.split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// The time that emulation has taken of this machine's processors, of all machines of this process.
pub(crate) fn processor_time() -> Duration {
    let machines = all().lock().iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
    let running: u64 = machines.iter().map(|machine| ticks(machine.child.lock().id())).sum();
    Duration::from_millis(10 * (running + TICKS_OF_ENDED.load(Ordering::Relaxed)))
}

/// Kills all machines of this process and removes their folders; for the end of the process by a signal.
pub fn kill_all_machines() {
    let machines: Vec<_> = all().lock().drain(..).filter_map(|machine| machine.upgrade()).collect();
    for machine in machines {
        machine.destroy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_the_kernel_are_found() {
        let console =
            "[    1.0] fine\n[    2.0] watchdog: BUG: soft lockup - CPU#0 stuck\n[    2.1] Modules linked in\n";
        let (line, log) = find_fault(console).unwrap();
        assert!(line.starts_with("[    2.0]") && log.contains("Modules"));
        assert!(find_fault("[ 1.0] rdma_rxe: loaded\n[ 1.1] rxe0: added dummy0\n").is_none());
    }
}
