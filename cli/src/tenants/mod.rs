//! `gpuvm tenants`: who shares a GPU's memory, and on which terms.

pub mod args;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gpuvm_tenants::{
    Changed, Description, Folder, FolderError, GpuKey, Peer, Terms, TermsChange, spell_bytes, tenants,
};
use serde_json::{Value, json};
use signal_hook::iterator::Signals;

use crate::error::CliError;
use crate::output::ending_signals;
use crate::stdout;
use crate::table::table;
use crate::tenants::args::{ListArgs, SetArgs, TenantsArgs, TenantsCommand};

/// How often one who watches looks for signals.
const LOOK: Duration = Duration::from_millis(50);
/// How long a process may take to come down to a lower limit.
const SHRINK: Duration = Duration::from_secs(10);

/// Lists tenants or changes one.
///
/// # Errors
/// A registry that cannot be read, no such process, terms that cannot be, a standard output that is closed.
pub fn run(args: &TenantsArgs) -> Result<(), CliError> {
    let folder = Folder::of_user();
    match &args.command {
        Some(TenantsCommand::Set(args)) => set(&folder, args),
        None => match args.list.watch {
            None => Ok(stdout::print_line(listing(&folder, &args.list)?)?),
            Some(rest) => watch(&folder, &args.list, rest),
        },
    }
}

/// Lists until a signal comes or nothing reads any more.
fn watch(folder: &Folder, args: &ListArgs, rest: Duration) -> Result<(), CliError> {
    /// Erases the screen and begins at its top.
    const ERASE: &str = "\x1b[2J\x1b[H";
    let mut signals = Signals::new(ending_signals()).map_err(CliError::Signals)?;
    let (before, after) = match (args.json, io::stdout().is_terminal()) {
        (true, _) => ("", "\n"),
        (false, true) => (ERASE, "\n"),
        (false, false) => ("", "\n\n"),
    };
    loop {
        let listed = listing(folder, args)?;
        if !stdout::print_to_reader(format_args!("{before}{listed}{after}"))? {
            return Ok(());
        }
        let next = Instant::now() + rest;
        while Instant::now() < next {
            if signals.pending().next().is_some() {
                return Ok(());
            }
            std::thread::sleep(LOOK.min(next.saturating_duration_since(Instant::now())));
        }
    }
}

/// The tenants of a GPU or of all, each with its GPU.
fn found(folder: &Folder, gpu: Option<&GpuKey>) -> Result<Vec<(GpuKey, Peer)>, FolderError> {
    let gpus = match gpu {
        Some(gpu) => vec![gpu.clone()],
        None => folder.gpus()?,
    };
    let mut found = Vec::new();
    for gpu in gpus {
        found.extend(tenants(folder, &gpu)?.into_iter().map(|peer| (gpu.clone(), peer)));
    }
    Ok(found)
}

fn listing(folder: &Folder, args: &ListArgs) -> Result<String, FolderError> {
    let found = found(folder, args.gpu.as_ref())?;
    if args.json {
        let tenants: Vec<Value> = found.iter().map(|(gpu, peer)| as_json(gpu, peer)).collect();
        return Ok(json!({ "folder": folder.path(), "tenants": tenants }).to_string());
    }
    if found.is_empty() {
        return Ok(nobody(folder, args.gpu.as_ref()));
    }
    let headings = [
        "gpu", "pid", "program", "holds", "frames", "buffers", "other", "minimum", "limit", "priority", "since",
    ];
    let rows = found.iter().map(|(gpu, peer)| row(gpu, peer));
    Ok(table(headings, 3..headings.len(), rows).to_string())
}

fn nobody(folder: &Folder, gpu: Option<&GpuKey>) -> String {
    let of = gpu.map_or_else(String::new, |gpu| format!(" of the GPU {gpu}"));
    format!("there are no tenants{of} in {}", folder.path().display())
}

fn row(gpu: &GpuKey, peer: &Peer) -> Vec<String> {
    let first = [gpu.to_string(), peer.pid().to_string()];
    match &peer.answer {
        Ok(description) => {
            let Description {
                program,
                terms,
                holding,
                since,
                ..
            } = description;
            let sizes = [
                holding.total(),
                holding.frames,
                holding.buffers,
                holding.other,
                terms.minimum(),
            ];
            let limit = terms.limit().map_or_else(|| "none".to_owned(), spell_bytes);
            let last = [limit, terms.priority().to_string(), age(*since)];
            let row = first.into_iter().chain([program.clone()]);
            row.chain(sizes.map(spell_bytes)).chain(last).collect()
        }
        Err(why) => first.into_iter().chain([format!("(no answer: {why})")]).collect(),
    }
}

/// How long ago that was.
fn age(since: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_secs());
    match now.saturating_sub(since) {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

fn as_json(gpu: &GpuKey, peer: &Peer) -> Value {
    let (gpu, pid) = (gpu.to_string(), peer.pid());
    match &peer.answer {
        Ok(description) => {
            let Description {
                program,
                terms,
                holding,
                total_bytes,
                since,
            } = description;
            json!({
                "gpu": gpu, "pid": pid, "answers": true, "program": program, "holding_bytes": holding.total(),
                "frames_bytes": holding.frames, "buffers_bytes": holding.buffers, "other_bytes": holding.other,
                "terms": terms_json(terms), "gpu_bytes": total_bytes, "since_unix_seconds": since,
            })
        }
        Err(why) => json!({ "gpu": gpu, "pid": pid, "answers": false, "why": why.to_string() }),
    }
}

fn terms_json(terms: &Terms) -> Value {
    json!({ "minimum_bytes": terms.minimum(), "limit_bytes": terms.limit(), "priority": terms.priority() })
}

fn set(folder: &Folder, args: &SetArgs) -> Result<(), CliError> {
    let pid = args.pid;
    let all = found(folder, args.gpu.as_ref())?;
    let those: Vec<&(GpuKey, Peer)> = all.iter().filter(|(_, peer)| peer.pid() == pid).collect();
    if those.is_empty() {
        let known = known(folder, args.gpu.as_ref(), &all);
        return Err(CliError::NoTenant { pid, known });
    }
    let mut changes = Vec::new();
    let mut failed = None;
    for (gpu, peer) in those {
        match change(args, gpu, peer) {
            Ok(changed) => changes.push((gpu, changed)),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    // What was changed before something failed is told too.
    if !changes.is_empty() {
        stdout::print_line(report(args, &changes))?;
    }
    failed.map_or(Ok(()), Err)
}

fn report(args: &SetArgs, changes: &[(&GpuKey, Changed)]) -> String {
    if !args.json {
        let lines = changes.iter().map(|(gpu, changed)| told(gpu, args.pid, changed));
        return lines.collect::<Vec<String>>().join("\n");
    }
    let changes = changes.iter().map(|(gpu, changed)| {
        json!({
            "gpu": gpu.to_string(), "pid": args.pid, "terms": terms_json(&changed.terms), "gave_bytes": changed.gave,
            "holding_bytes": changed.holding,
        })
    });
    json!({ "changed": changes.collect::<Vec<Value>>() }).to_string()
}

/// Shares are of the memory of the tenant's GPU, which it knows.
fn change(args: &SetArgs, gpu: &GpuKey, peer: &Peer) -> Result<Changed, CliError> {
    let (pid, gpu) = (args.pid, gpu.clone());
    let total = match &peer.answer {
        Ok(description) => description.total_bytes,
        Err(why) => {
            let why = why.to_string();
            return Err(CliError::SilentTenant { pid, gpu, why });
        }
    };
    let change = TermsChange {
        minimum: args.min.map(|minimum| minimum.bytes_of(total)),
        limit: args.limit.map(|limit| limit.change(total)),
        priority: args.priority,
    };
    peer.set(&change, SHRINK)
        .map_err(|source| CliError::TenantTerms { pid, gpu, source })
}

fn told(gpu: &GpuKey, pid: u32, changed: &Changed) -> String {
    let (gave, holding) = (spell_bytes(changed.gave), spell_bytes(changed.holding));
    let mut text = format!(
        "pid {pid} on the GPU {gpu}: {}; it gave up {gave} and holds {holding}",
        changed.terms
    );
    if changed.terms.limit().is_some_and(|limit| changed.holding > limit) {
        text.push_str(", more than its limit; the next tenant that asks gets what is above it");
    }
    text
}

/// Who could have been meant.
fn known(folder: &Folder, gpu: Option<&GpuKey>, all: &[(GpuKey, Peer)]) -> String {
    let names = all.iter().map(|(_, peer)| match &peer.answer {
        Ok(description) => format!("{} ({})", peer.pid(), description.program),
        Err(_) => peer.pid().to_string(),
    });
    let mut names: Vec<String> = names.collect();
    names.dedup();
    match names.is_empty() {
        true => nobody(folder, gpu),
        false => format!("there are {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        for (seconds, text) in [(90, "1 min"), (7200, "2 h"), (172_800, "2 days")] {
            assert_eq!(age(now - seconds), text);
        }
        // Clocks are set back.
        assert_eq!(age(u64::MAX), "0 s");
    }
}
