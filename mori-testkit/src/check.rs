//! How a case says what is wrong.

use std::fmt;

use mori_core::Error;

/// What a case found to be wrong, in words for the backend's author.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem(String);

impl Problem {
    /// A problem with these words.
    #[must_use]
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }

    /// The same problem with `context` and a colon before its words.
    #[must_use]
    pub fn context(&self, context: impl fmt::Display) -> Self {
        Self(format!("{context}: {}", self.0))
    }

    /// The words.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Problem {}

/// How a case ends.
pub type CaseResult<T = ()> = Result<T, Problem>;

/// Ends the case with a problem unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::check::Problem::new(format!($($words)+)));
        }
    };
}
pub(crate) use ensure;

/// Puts what was tried before an error of the core.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl fmt::Display) -> CaseResult<T>;
}

impl<T> Doing<T> for Result<T, Error> {
    fn doing(self, what: impl fmt::Display) -> CaseResult<T> {
        self.map_err(|error| Problem::new(format!("{what} was refused: {error}")))
    }
}

impl<T> Doing<T> for CaseResult<T> {
    fn doing(self, what: impl fmt::Display) -> Self {
        self.map_err(|problem| problem.context(what))
    }
}
