//! `gpuvm serve`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use gpuvm_memory_node::{Backing, MemoryNode, Metrics, NodeEvent, ServeOptions};
use gpuvm_tenants::spell_bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use signal_hook::flag::register_conditional_shutdown;
use signal_hook::iterator::Signals;

use crate::args::ServeArgs;
use crate::error::CliError;
use crate::output::ending_signals;
use crate::secret::read_secret;
use crate::stdout;

/// How often the program looks for signals.
const LOOK: Duration = Duration::from_millis(100);

/// Serves until a signal asks for the end; a second one ends the process at once.
///
/// # Errors
/// What kept the node from serving; a line that could not be printed, told once the node has stopped.
pub fn run(args: &ServeArgs) -> Result<(), CliError> {
    let ending = ending_signals();
    let mut signals = Signals::new(&ending).map_err(CliError::Signals)?;
    let printer = Arc::new(Printer::new(args.json));
    let mut options = options(args)?;
    let events = Arc::clone(&printer);
    options.on_event = Some(Arc::new(move |event: &NodeEvent| events.print(&event_line(event))));
    let node = Arc::new(MemoryNode::start(options).map_err(CliError::Serve)?);
    let metrics = match args.metrics {
        None => None,
        Some(address) => {
            // A weak hold: the requests of the last moment do not keep the node from stopping.
            let counted = Arc::downgrade(&node);
            let text = move || {
                counted
                    .upgrade()
                    .map_or_else(String::new, |node| node.metrics().to_prometheus())
            };
            let served = gpuvm::metrics::serve_text(address, text);
            Some(served.map_err(|source| CliError::Metrics { address, source })?)
        }
    };
    let address = node.local_addr();
    let device = node.device().unwrap_or("all devices");
    let bytes = node.memory_bytes();
    let at = metrics.map_or_else(String::new, |address| format!(", metrics at http://{address}/metrics"));
    let ready = Line {
        text: format!("serving {} on {address} ({device}){at}", spell_bytes(bytes)),
        json: json!({ "event": "ready", "address": address, "device": node.device(), "memory_bytes": bytes, "metrics": metrics }),
    };
    printer.print(&ready);
    while signals.pending().next().is_none() {
        if !node.is_running() {
            return Err(CliError::NodeEnded);
        }
        std::thread::sleep(LOOK);
    }
    for signal in ending {
        let at_once = Arc::new(AtomicBool::new(true));
        register_conditional_shutdown(signal, 128 + signal, at_once).map_err(CliError::Signals)?;
    }
    // A request for metrics may hold the node for a moment.
    let mut node = node;
    let counted = loop {
        match Arc::try_unwrap(node) {
            Ok(node) => break node.stop(),
            Err(held) => node = held,
        }
        std::thread::sleep(LOOK);
    };
    printer.print(&summary(&counted));
    Ok(printer.finish()?)
}

fn options(args: &ServeArgs) -> Result<ServeOptions, CliError> {
    let memory = match (&args.file, args.huge_pages) {
        (Some(path), _) => Backing::File(path.clone(), args.memory),
        (None, true) => Backing::HugePages(args.memory),
        (None, false) => Backing::Plain(args.memory),
    };
    Ok(ServeOptions {
        device: args.device.clone(),
        bind: args.listen,
        capacity_per_client: args.client_capacity,
        secret: args.secret_file.as_deref().map(read_secret).transpose()?,
        allow: args.allow.clone(),
        clients_max: args.clients,
        ..ServeOptions::new(memory)
    })
}

/// A line for people and for machines.
struct Line {
    text: String,
    json: Value,
}

/// Prints what happens. A standard output that is closed or full is no reason to stop serving, but is told at once and in
/// the exit status.
struct Printer {
    json: bool,
    /// The first line that was lost, as an error.
    lost: Mutex<Option<io::Error>>,
}

impl Printer {
    fn new(json: bool) -> Self {
        Self {
            json,
            lost: Mutex::default(),
        }
    }

    fn print(&self, line: &Line) {
        let printed = match self.json {
            true => stdout::print_line(&line.json),
            false => stdout::print_line(&line.text),
        };
        let Err(error) = printed else { return };
        // A panic elsewhere leaves the value whole.
        let mut lost = self.lost.lock();
        if lost.is_none() {
            tell(&format!(
                "warning: what this node prints is lost, and it goes on serving: {error}\n"
            ));
            *lost = Some(error);
        }
    }

    fn finish(&self) -> io::Result<()> {
        let lost = self.lost.lock().take();
        lost.map_or(Ok(()), Err)
    }
}

/// Says it on the standard error, where that is open.
fn tell(text: &str) {
    let _ = io::Write::write_all(&mut io::stderr().lock(), text.as_bytes());
}

fn event_line(event: &NodeEvent) -> Line {
    match event {
        NodeEvent::Joined { name, address } => Line {
            text: format!("joined: '{name}' from {address}"),
            json: json!({ "event": "joined", "name": name, "address": address }),
        },
        NodeEvent::Left {
            name,
            address,
            why,
            grants,
            bytes,
        } => Line {
            text: format!(
                "left: '{name}' from {address}: {why}; {grants} grants taken back, {}",
                spell_bytes(*bytes)
            ),
            json: json!({
                "event": "left", "name": name, "address": address, "why": why, "grants": grants, "bytes": bytes
            }),
        },
        NodeEvent::Refused { address, reason } => Line {
            text: format!("refused: {address}: {reason}"),
            json: json!({ "event": "refused", "address": address, "reason": reason.to_string() }),
        },
    }
}

fn summary(counted: &Metrics) -> Line {
    let refusals: u64 = counted.refusals_total.values().sum();
    Line {
        text: format!(
            "stopped: {} clients so far, {} disconnected, {} were lost; {} grants, {} of them taken back; {refusals} refusals",
            counted.clients_total,
            counted.goodbyes_total,
            counted.losses_total,
            counted.grants_total,
            counted.grants_revoked_total
        ),
        json: json!({
            "event": "stopped",
            "clients": counted.clients_total,
            "goodbyes": counted.goodbyes_total,
            "losses": counted.losses_total,
            "grants": counted.grants_total,
            "grants_revoked": counted.grants_revoked_total,
            "lost_bytes": counted.lost_bytes,
            "refusals": counted.refusals_total,
        }),
    }
}
