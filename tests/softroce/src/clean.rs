//! Whether a machine is as it was before a scenario, so that the next one may use it.

use std::time::Duration;

use crate::error::Error;
use crate::machine::{KILLED, Machine};

/// How long the check may take, with the time that ended processes are given to go.
const CHECK: Duration = Duration::from_secs(60);

/// Prints what is left of a scenario: processes, objects of the RDMA device that belong to one, rules for packets. Kernel threads have no
/// command line; the first process and the agent, this shell's parent, stay.
const LEFT: &str = r#"
left() {
    for process in /proc/[0-9]*; do
        id=${process#/proc/}
        [ $id = 1 ] || [ $id = $PPID ] && continue
        { IFS= read -r -d '' name <$process/cmdline; [ -n "$name" ] && read -r stat <$process/stat; } 2>/dev/null || continue
        set -- ${stat##*) }
        [ "$3" = $$ ] || echo "process $id $name"
    done
    rdma resource show | grep -vE ' cm_id 0 mr 0 ctx 0( |$)'
    tc qdisc show dev eth0 | grep netem
}
PATH=$PATH:/usr/sbin:/sbin
for try in $(seq 50); do
    found=$(left)
    [ -n "$found" ] || exit 0
    sleep 0.2
done
echo "$found"
exit 1
"#;

/// Fails where something of a scenario is left on a virtual machine that has power.
pub(crate) fn check(machine: &Machine) -> Result<(), Error> {
    match machine.why_gone() {
        Some(why) if why == KILLED => return Ok(()),
        Some(why) => {
            return Err(Error::Gone {
                machine: machine.name().to_owned(),
                why,
            });
        }
        None if !machine.is_virtual() => return Ok(()),
        None => {}
    }
    let found = machine.run(LEFT, CHECK)?;
    if found.code == 0 {
        return Ok(());
    }
    Err(Error::Check(format!(
        "it has left something behind on {}; end it in the scenario:\n{}",
        machine.name(),
        found.text()
    )))
}
