//! What one check found.

use serde::Serialize;
use serde_json::Value;

use crate::doctor::view::View;

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

/// One thing to look at.
pub struct Check {
    /// A name for scripts, which does not change.
    pub id: &'static str,
    /// What is looked at.
    pub title: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// Looks.
    pub look: fn(&View) -> Found,
}

impl Check {
    /// Looks at that machine.
    pub fn finding(&self, view: &View) -> Finding {
        Finding {
            id: self.id,
            title: self.title,
            why: self.why,
            result: (self.look)(view),
        }
    }
}

/// One check's result, with its name.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// See [`Check::id`].
    pub id: &'static str,
    /// See [`Check::title`].
    pub title: &'static str,
    /// See [`Check::why`].
    pub why: &'static str,
    /// The result.
    #[serde(flatten)]
    pub result: Found,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// How it stands.
    pub state: FindingState,
    /// What was found, in words.
    pub found: String,
    /// The command, or the step, that fixes it.
    pub fix: Option<String>,
    /// What was found, for scripts, where there is more than a sentence.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

impl Found {
    /// With what fixes it.
    pub fn fix(mut self, command: impl Into<String>) -> Self {
        self.fix = Some(command.into());
        self
    }

    /// With what scripts want to know.
    pub fn details(mut self, details: impl Into<Value>) -> Self {
        self.details = details.into();
        self
    }
}

/// A result without a fix.
pub fn found(state: FindingState, found: impl Into<String>) -> Found {
    Found {
        state,
        found: found.into(),
        fix: None,
        details: Value::Null,
    }
}

/// See [`FindingState::Ok`].
pub fn ok(text: impl Into<String>) -> Found {
    found(FindingState::Ok, text)
}

/// See [`FindingState::Limited`].
pub fn limited(text: impl Into<String>) -> Found {
    found(FindingState::Limited, text)
}

/// See [`FindingState::Missing`].
pub fn missing(text: impl Into<String>) -> Found {
    found(FindingState::Missing, text)
}

/// See [`FindingState::Unknown`].
pub fn unknown(text: impl Into<String>) -> Found {
    found(FindingState::Unknown, text)
}

/// See [`FindingState::Unneeded`].
pub fn unneeded(text: impl Into<String>) -> Found {
    found(FindingState::Unneeded, text)
}
