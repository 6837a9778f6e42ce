//! Why the program ends early: an exit status and a line for people.

use crate::exit::Exit;

/// Ends the program with a status and a reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The status.
    pub exit: Exit,
    /// The reason, on one line.
    pub message: String,
}

#[allow(clippy::needless_pass_by_value, reason = "so that they fit `map_err` by name")]
impl Failure {
    /// A failure with the command line, or with what it asks for.
    pub fn usage(message: impl ToString) -> Self {
        Self { exit: Exit::Usage, message: message.to_string() }
    }

    /// A failure to start or reach the serving process.
    pub fn server(message: impl ToString) -> Self {
        Self { exit: Exit::NoServer, message: message.to_string() }
    }

    /// A failure that has no status of its own.
    pub fn internal(message: impl ToString) -> Self {
        Self { exit: Exit::Internal, message: message.to_string() }
    }
}
