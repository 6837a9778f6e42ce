//! Logs of the engine and its transports, on standard error. The level is `error` unless `MORI_IO_LOG_LEVEL` or
//! `set_log_level` says otherwise; the environment wins.

use std::sync::OnceLock;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt};

static LEVEL: OnceLock<Handle<LevelFilter, Registry>> = OnceLock::new();

const VARIABLE: &str = "MORI_IO_LOG_LEVEL";

/// Sets the log up, once in a process. Where somebody else in the process has set up a log for Rust code, that one is used.
pub(crate) fn install() {
    if LEVEL.get().is_some() {
        return;
    }
    let (filter, handle) = reload::Layer::new(LevelFilter::ERROR);
    let layer = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    if tracing_subscriber::registry().with(filter).with(layer).try_init().is_err()
        || LEVEL.set(handle).is_err()
    {
        return;
    }
    if let Some(text) = environment() {
        match level(&text) {
            Some(level) => apply(level),
            None => tracing::error!(
                "{VARIABLE}={text} is not understood: it must be one of {NAMES}; the level stays at error"
            ),
        }
    }
}

const NAMES: &str = "trace, debug, info, warn, error, critical";

fn environment() -> Option<String> {
    let text = std::env::var_os(VARIABLE)?.to_string_lossy().trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn level(text: &str) -> Option<LevelFilter> {
    match text.to_ascii_lowercase().as_str() {
        "trace" => Some(LevelFilter::TRACE),
        "debug" => Some(LevelFilter::DEBUG),
        "info" => Some(LevelFilter::INFO),
        "warn" | "warning" => Some(LevelFilter::WARN),
        "error" => Some(LevelFilter::ERROR),
        // Nothing here is worse than an error.
        "critical" | "off" => Some(LevelFilter::OFF),
        _ => None,
    }
}

fn apply(level: LevelFilter) {
    if let Some(handle) = LEVEL.get() {
        // The log is there as long as the process.
        let _ = handle.modify(|filter| *filter = level);
    }
}

/// Sets the level of the log: trace, debug, info, warn, error or critical. `MORI_IO_LOG_LEVEL` wins over it.
#[pyfunction]
#[pyo3(name = "set_log_level")]
pub(crate) fn set_log_level(level: &str) -> PyResult<()> {
    let wanted = self::level(level).ok_or_else(|| {
        PyValueError::new_err(format!("the log level must be one of {NAMES}, not {level:?}"))
    })?;
    if environment().as_deref().and_then(self::level).is_none() {
        apply(wanted);
    }
    Ok(())
}
