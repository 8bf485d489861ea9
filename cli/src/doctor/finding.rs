//! What one check found.

use serde::Serialize;
use serde_json::Value;

/// How it stands with what was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingState {
    /// As it should be.
    Ok,
    /// There, and less than it could be: something is slower, or a fallback serves.
    Limited,
    /// Not there.
    Missing,
    /// Cannot be told, by this user or on this machine.
    Unknown,
    /// Nothing that this machine has depends on it.
    Unneeded,
}

impl FindingState {
    /// As it is printed, and spelled in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
            Self::Unneeded => "unneeded",
        }
    }
}

/// One check's result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// A name for scripts, which does not change.
    pub id: &'static str,
    /// What was looked at.
    pub title: &'static str,
    /// How it stands.
    pub state: FindingState,
    /// What was found.
    pub found: String,
    /// Why it matters.
    pub why: &'static str,
    /// The command, or the step, that mends it.
    pub mend: Option<String>,
    /// What was found, for scripts, where there is more than a sentence.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

/// What a check looks at, before its result.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// See [`Finding::id`].
    pub id: &'static str,
    /// See [`Finding::title`].
    pub title: &'static str,
    /// See [`Finding::why`].
    pub why: &'static str,
}

impl Check {
    /// The result without a mend.
    pub fn is(self, state: FindingState, found: impl Into<String>) -> Finding {
        Finding {
            id: self.id,
            title: self.title,
            state,
            found: found.into(),
            why: self.why,
            mend: None,
            details: Value::Null,
        }
    }

    /// Nothing depends on it, and why not.
    pub fn unneeded(self, reason: &str) -> Finding {
        self.is(FindingState::Unneeded, reason)
    }
}

impl Finding {
    /// With what mends it.
    pub fn mend(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }

    /// With what scripts want to know.
    pub fn details(mut self, details: Value) -> Self {
        self.details = details;
        self
    }
}
