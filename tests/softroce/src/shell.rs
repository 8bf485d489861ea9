//! `softroce shell`.

use std::io::BufRead;
use std::process::ExitCode;
use std::time::Duration;

use softroce::{Error, Input, Job, Line, Machine, Options, Stream};

use crate::ShellArgs;

pub(crate) fn run(args: &ShellArgs, limit: Duration) -> Result<ExitCode, Error> {
    if args.commands.len() > usize::from(args.machines) {
        let (commands, machines) = (args.commands.len(), args.machines);
        return Err(Error::Check(format!(
            "{commands} commands for {machines} machines: give at most one -c for each"
        )));
    }
    let options = Options {
        disks_mib: args.disks.clone(),
        ..args.machine.options()
    };
    let machines = if args.machines == 2 {
        Machine::boot_two(&options)?.into()
    } else {
        vec![Machine::boot(&options)?]
    };
    for machine in &machines {
        let (name, address, seconds) = (machine.name(), machine.address(), machine.started_in().as_secs_f32());
        eprintln!("softroce: machine {name} ({address}) is up after {seconds:.1} s");
    }
    let result = if args.commands.is_empty() {
        interactive(&machines)
    } else {
        commands(&machines, args, limit)
    };
    if args.console {
        for machine in &machines {
            eprintln!("softroce: console of {}:\n{}", machine.name(), machine.console());
        }
    }
    // A fault of the kernel explains what else went wrong, so it comes first.
    machines.iter().try_for_each(Machine::check_kernel)?;
    let code = result?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

fn show(line: &Line) {
    match line.stream {
        Stream::Stdout => println!("{}", line.text),
        Stream::Stderr => eprintln!("{}", line.text),
    }
}

/// Runs the last command to its end, and those before it in the machines before it meanwhile.
fn commands(machines: &[Machine], args: &ShellArgs, limit: Duration) -> Result<i32, Error> {
    let [background @ .., last] = &args.commands[..] else {
        return Ok(0);
    };
    let mut jobs = Vec::new();
    for (machine, command) in machines.iter().zip(background) {
        let mut job = machine.spawn(command)?;
        if let Some(text) = &args.after {
            job.wait_for(text, limit)?;
        }
        jobs.push((machine, job));
    }
    let code = machines[background.len()].spawn(last)?.follow(limit, show);
    for (machine, job) in jobs {
        job.terminate()?;
        let output = job.wait(Duration::from_secs(10))?;
        for line in &output.lines {
            println!("{}: {}", machine.name(), line.text);
        }
        println!("{}: exit status {}", machine.name(), output.code);
    }
    code
}

/// Passes standard input to a shell in each machine, line by line; "@2" alone turns to the second.
fn interactive(machines: &[Machine]) -> Result<i32, Error> {
    let forever = Duration::from_secs(365 * 86400);
    let mut shells = Vec::new();
    for machine in machines {
        shells.push(machine.spawn_with_input("exec bash 2>&1")?);
    }
    let inputs: Vec<Input> = shells.iter().map(Job::input).collect();
    // Not joined: it may wait for a line that never comes.
    std::thread::spawn(move || {
        let mut at = 0;
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match line
                .trim()
                .strip_prefix('@')
                .and_then(|number| number.parse::<usize>().ok())
            {
                Some(number) if (1..=inputs.len()).contains(&number) => at = number - 1,
                _ => drop(inputs[at].write(&format!("{line}\n"))),
            }
        }
        inputs.iter().for_each(|input| drop(input.end()));
    });
    let mut code = 0;
    for shell in &mut shells {
        code = shell.follow(forever, show)?;
    }
    Ok(code)
}
