//! What the host and the agent in a machine say to each other: one JSON object a line.

use serde::{Deserialize, Serialize};

/// From the host to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Run a shell command under this id, which no other command has had.
    Start {
        id: u64,
        command: String,
        /// Where; the agent's own folder if there is none of that name.
        folder: String,
        /// What its environment has beside the agent's own.
        environment: Vec<(String, String)>,
        /// Whether there will be input; else it reads an end of file at once.
        input: bool,
    },
    /// Write to the command's standard input.
    Input { id: u64, text: String },
    /// End the command's standard input.
    EndInput { id: u64 },
    /// Send a signal to the command's process group.
    Signal { id: u64, number: i32 },
}

/// From the agent to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// The machine is set up; the first thing an agent says.
    Ready,
    /// The machine could not be set up; the last thing an agent says.
    Broken { reason: String },
    /// A line that the command wrote, without its end.
    Line { id: u64, stream: Stream, text: String },
    /// The command has ended; nothing follows about it. 128 + n stands for signal n, 127 for what could not be started.
    Exit { id: u64, code: i32 },
}

/// Where a command wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Its standard output.
    Stdout,
    /// Its standard error.
    Stderr,
}

/// The longest piece of a line that travels; a longer line comes as several.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line() {
        let event = Event::Line {
            id: 7,
            stream: Stream::Stderr,
            text: "a\nb \u{0} \"c\" é".into(),
        };
        let text = serde_json::to_string(&event).unwrap();
        assert!(!text.contains('\n'), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }

    #[test]
    fn garbage_is_an_error() {
        for text in ["", "{", "{\"start\":{\"id\":-1}}", "{\"unknown\":{}}", "null"] {
            assert!(serde_json::from_str::<Request>(text).is_err(), "{text}");
        }
    }
}
