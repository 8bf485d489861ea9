//! The command `softroce`.

mod shell;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use softroce::{Error, Options, scenarios};

/// Runs programs that need SoftRoCE in virtual machines, or on this machine where it has a device.
#[derive(Parser)]
#[command(name = "softroce", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs shell commands in one or two virtual machines.
    Shell(ShellArgs),
    /// Runs scenarios, one after the other on the same machines.
    Suite(SuiteArgs),
    /// Lists the scenarios.
    List,
    /// What runs inside a machine.
    #[command(hide = true)]
    Agent {
        /// The network device to put rxe0 on.
        #[arg(long)]
        netdev: String,
    },
}

#[derive(Args)]
struct ShellArgs {
    /// How many machines: 2 have a cable between them, as 10.9.0.1 and 10.9.0.2.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    machines: u8,
    /// A command instead of standard input. Given twice with two machines, the first runs in machine 1 in the
    /// background and is ended when the second, in machine 2, has ended.
    #[arg(short, long = "command", value_name = "COMMAND")]
    commands: Vec<String>,
    /// Starts the second command once the first has written a line with this text.
    #[arg(long, value_name = "TEXT", requires = "commands")]
    after: Option<String>,
    /// Seconds that a command may take.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
    #[command(flatten)]
    machine: MachineArgs,
    /// An NVMe disk for the first machine; may be given several times.
    #[arg(long = "disk", value_name = "MIB")]
    disks: Vec<u32>,
    /// Prints the kernel's console at the end.
    #[arg(long)]
    console: bool,
}

#[derive(Args)]
struct SuiteArgs {
    /// Names from `softroce list`; none means those that it lists without a reason to leave them out.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Runs every scenario.
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Uses virtual machines even where this one has an RDMA device.
    #[arg(long)]
    vm: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Args)]
struct MachineArgs {
    /// Processors of each virtual machine.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// Memory of each virtual machine.
    #[arg(long, default_value_t = 3072, value_name = "MIB", value_parser = clap::value_parser!(u32).range(512..=65536))]
    memory: u32,
}

impl MachineArgs {
    fn options(&self) -> Options {
        Options {
            cpus: self.cpus,
            memory_mib: self.memory,
            ..Options::default()
        }
    }
}

fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("softroce: {}", softroce::chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Agent { netdev } => softroce::serve(&netdev).map(|()| ExitCode::SUCCESS),
        Command::Shell(args) => {
            end_on_signals()?;
            shell::run(&args, Duration::from_secs(args.timeout))
        }
        Command::Suite(args) => {
            end_on_signals()?;
            suite(&args)
        }
        Command::List => {
            for scenario in scenarios::all() {
                let why = scenario
                    .not_by_default
                    .map(|why| format!(" (left out by default: {why})"));
                println!("{:<24} {}{}", scenario.name, scenario.what, why.unwrap_or_default());
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn suite(args: &SuiteArgs) -> Result<ExitCode, Error> {
    let chosen = scenarios::chosen(&args.names, args.all)?;
    if chosen.iter().any(|scenario| scenario.name == scenarios::INDEPENDENT) {
        scenarios::build_ahead();
    }
    let options = Options {
        disks_mib: scenarios::DISKS_MIB.to_vec(),
        ..args.machine.options()
    };
    let passed = softroce::suite::run_all(&chosen, &options, args.vm)?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ctrl-C and SIGTERM end the machines and their folders, too.
fn end_on_signals() -> Result<(), Error> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Error::Check(format!("cannot set up the handling of signals: {error}")))?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            softroce::kill_all_machines();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}
