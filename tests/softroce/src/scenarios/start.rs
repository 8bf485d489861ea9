//! The machine itself.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::machine::Machine;

/// How long a command may take that does little; emulated processors are slow.
pub(super) const SHORT: Duration = Duration::from_secs(60);

pub(super) fn device_is_active(machine: &Machine) -> Result<(), Error> {
    let device = machine.device();
    let state = format!("uname -r; cat /sys/class/infiniband/{device}/ports/1/state");
    let state = machine.run(&state, SHORT)?.success()?.text();
    check(state.contains("ACTIVE"), || format!("{device} is not active: {state}"))?;
    let devices = machine
        .run(&format!("ibv_devinfo -d {device}"), SHORT)?
        .success()?
        .text();
    check(devices.contains("PORT_ACTIVE"), || {
        format!("libibverbs does not see {device} active: {devices}")
    })?;
    if machine.is_virtual() {
        let mtu = format!("cat /sys/class/net/$(cat /sys/class/infiniband/{device}/parent)/mtu");
        let mtu = machine.run(&mtu, SHORT)?.success()?.text();
        check(mtu.trim() == "4500", || {
            format!("its network device has an MTU of {mtu}")
        })?;
        let limit = machine.run("ulimit -l", SHORT)?.success()?.text();
        check(limit.trim() == "unlimited", || {
            format!("memory may be locked up to {limit}")
        })?;
        let pages = "cd /proc/sys/vm && echo 8 > nr_hugepages && cat nr_hugepages && echo 0 > nr_hugepages";
        let pages = machine.run(pages, SHORT)?.success()?.text();
        check(pages.trim() == "8", || format!("{pages} of 8 huge pages can be had"))?;
    }
    Ok(())
}

pub(crate) fn commands(machine: &Machine) -> Result<(), Error> {
    let mut endless = machine.spawn("echo started; sleep 1000 & echo $!; wait")?;
    endless.wait_for("started", SHORT)?;
    let child = endless.wait_line("a process id", |line| line.parse::<u32>().is_ok(), SHORT)?;

    let here = machine.run("pwd; echo wrong >&2; printf 'no end of line'; exit 3", SHORT)?;
    check(here.code == 3, || format!("exit 3 came as {}", here.code))?;
    let folder = std::env::current_dir().map_err(Error::file("find", "the working folder"))?;
    let text = here.text();
    for wanted in [&*folder.to_string_lossy(), "wrong", "no end of line"] {
        check(text.lines().any(|line| line == wanted), || {
            format!("no line is {wanted:?}: {text}")
        })?;
    }
    let killed = machine.run("kill -9 $$", SHORT)?;
    check(killed.code == 128 + 9, || {
        format!("a killed shell ended with {}", killed.code)
    })?;

    let echo = machine.spawn_with_input("read line; echo \"<$line>\"; cat")?;
    echo.input().write("a 'b' $c\nrest\n")?;
    echo.input().end()?;
    let text = echo.wait(SHORT)?.success()?.text();
    check(text == "<a 'b' $c>\nrest\n", || format!("input came as {text:?}"))?;

    let since = Instant::now();
    match machine.run("sleep 1000", Duration::from_millis(300)) {
        Err(Error::CommandTimeout { .. }) => {}
        other => return Err(Error::Check(format!("a command without end gave {other:?}"))),
    }
    check(since.elapsed() < SHORT, || "its time limit did not hold".to_owned())?;

    check(!endless.has_ended(), || "a command ended by itself".to_owned())?;
    endless.kill()?;
    let code = endless.wait(SHORT)?.code;
    check(code == 128 + 9, || format!("a killed command ended with {code}"))?;
    // The kernel takes it away a moment after its group was killed.
    let gone = format!(
        "for i in $(seq 100); do [ -e /proc/{child} ] || exit 0; sleep 0.1; done; cat /proc/{child}/stat; exit 1"
    );
    machine.run(&gone, SHORT)?.success()?;
    Ok(())
}

pub(super) fn power_cut(machine: &Machine) -> Result<(), Error> {
    let mut job = machine.spawn("echo up; sleep 1000")?;
    job.wait_for("up", SHORT)?;
    machine.kill()?;
    let since = Instant::now();
    match job.wait(SHORT) {
        Err(Error::Gone { why, .. }) => check(why.contains("killed"), || format!("the reason is {why:?}"))?,
        other => return Err(Error::Check(format!("a job of a killed machine gave {other:?}"))),
    }
    check(since.elapsed() < Duration::from_secs(10), || {
        "the job was waited for".to_owned()
    })?;
    match machine.run("true", SHORT) {
        Err(Error::Gone { .. }) => Ok(()),
        other => Err(Error::Check(format!("a command for a killed machine gave {other:?}"))),
    }
}

/// `Ok` where it holds.
pub(super) fn check(holds: bool, why_not: impl FnOnce() -> String) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Check(why_not())) }
}
