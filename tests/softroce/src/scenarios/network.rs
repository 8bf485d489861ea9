//! Two machines and what is between them.

use std::time::Duration;

use super::start::{SHORT, check};
use crate::error::Error;
use crate::machine::Machine;

pub(super) fn rping(server: &Machine, client: &Machine) -> Result<(), Error> {
    exchange(server, client, 10, SHORT)
}

pub(super) fn power_back(server: &Machine, client: &Machine) -> Result<(), Error> {
    exchange(server, client, 2, SHORT)?;
    server.kill()?;
    let address = server.address();
    let refused = client.run(&format!("timeout 5 rping -c -a {address} -C 1"), SHORT)?;
    check(refused.code != 0, || "a machine without power answers".to_owned())?;
    server.boot_again()?;
    exchange(server, client, 2, SHORT)
}

pub(super) fn rping_with_loss(server: &Machine, client: &Machine) -> Result<(), Error> {
    let machines = [server, client];
    netem(machines, "loss 1%")?;
    // Few enough that chance may spare them all: again then.
    for _ in 0..12 {
        exchange(server, client, 40, Duration::from_secs(120))?;
        if dropped(server)? > 0 && dropped(client)? > 0 {
            return whole(machines);
        }
    }
    Err(Error::Check("no packet was lost: netem does nothing".to_owned()))
}

/// Sets what both machines do with the packets they send.
pub(super) fn netem(machines: [&Machine; 2], how: &str) -> Result<(), Error> {
    println!("         {how}:");
    // A new discipline counts from 0.
    on_both(
        machines,
        &format!("tc qdisc del dev eth0 root 2>/dev/null; tc qdisc add dev eth0 root netem limit 100000 {how}"),
    )
}

/// Both machines send their packets as they are.
pub(super) fn whole(machines: [&Machine; 2]) -> Result<(), Error> {
    on_both(machines, "tc qdisc del dev eth0 root")
}

fn on_both(machines: [&Machine; 2], command: &str) -> Result<(), Error> {
    let run = |machine: &Machine| machine.run(command, SHORT)?.success().map(drop);
    machines.into_iter().try_for_each(run)
}

/// Sends this many pings, which the server fetches by RDMA READ and answers by RDMA WRITE; `-V` compares the data.
fn exchange(server: &Machine, client: &Machine, count: u32, limit: Duration) -> Result<(), Error> {
    let address = server.address();
    let mut listening = server.spawn(&format!("stdbuf -oL rping -s -d -a {address} -S 4096 -C {count}"))?;
    listening.wait_for("rdma_listen", SHORT)?;
    let report = client
        .run(&format!("rping -c -v -V -a {address} -S 4096 -C {count}"), limit)?
        .success()?
        .text();
    let pings = report.lines().filter(|line| line.starts_with("ping data:")).count();
    check(pings == count as usize, || {
        format!("{pings} of {count} pings came back:\n{report}")
    })?;
    listening.wait(SHORT)?;
    Ok(())
}

/// Packets that netem has taken away.
pub(super) fn dropped(machine: &Machine) -> Result<u64, Error> {
    let report = machine.run("tc -s qdisc show dev eth0", SHORT)?.success()?.text();
    let mut words = report
        .split(|letter: char| !letter.is_alphanumeric())
        .skip_while(|word| *word != "dropped");
    let count = words.nth(1).and_then(|word| word.parse().ok());
    count.ok_or_else(|| Error::Check(format!("tc reports no drops: {report}")))
}
