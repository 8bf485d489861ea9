//! What a virtual memory is to be, as Python says it.

use std::time::Duration;

use gpuvm::VmBuilder;
use pyo3::prelude::*;

use crate::errors::{self, Raised};

/// A number of seconds.
///
/// # Errors
/// `SettingError`, which calls it `what`.
pub fn seconds(value: f64, what: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|error| errors::setting(format!("{what} is {value}: {error}")))
}

/// The settings that there are: of each its name, what a value is, and what it is for.
#[pyfunction]
pub fn settings() -> Vec<(&'static str, &'static str, String)> {
    let all = VmBuilder::named_settings().flat_map(|setting| {
        let (name, other) = setting.names;
        let other = other.map(|other| (other, setting.kind, format!("The same as `{name}`.")));
        [Some((name, setting.kind, setting.what)), other]
    });
    all.flatten().collect()
}

/// The builder that follows settings, whose values are written out, and the NVIDIA GPU's place in the driver's list, if it is named by that.
///
/// # Errors
/// `SettingError` for values that cannot be, `TypeError` for a name that no setting has.
pub fn builder(settings: &[(String, String)]) -> PyResult<(VmBuilder, Option<i32>)> {
    let named = gpuvm::Vm::builder().named(settings.iter().map(|(name, value)| (name, value)));
    let gpu = settings.iter().find(|(name, _)| ["gpu", "gpus"].contains(&&**name));
    let gpu = gpu.map_or("", |(_, gpu)| gpu);
    if gpu.contains(',') {
        return Err(errors::setting(format!("gpu is `{gpu}`: a Vm has one GPU in Python")));
    }
    Ok((
        named.raised()?,
        gpu.strip_prefix("cuda:").and_then(|place| place.parse().ok()),
    ))
}
