//! Failures of the runtime, with their number, name and text.

use std::ffi::CStr;
use std::fmt;

use mori_core::{Cause, Error, ErrorKind};

use super::sys::{Api, Code, INVALID_DEVICE, NO_DEVICE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS};

/// Which numbering a [`Cause`] of this crate belongs to.
pub(crate) const DOMAIN: &str = "hip";

/// A call that did not return success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The function.
    pub(crate) call: &'static str,
    /// What it returned.
    pub(crate) code: Code,
    /// The number's name, as the library has it.
    pub(crate) name: String,
    /// The number's text, as the library has it.
    pub(crate) text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} returned {} ({}): {}", self.call, self.code, self.name, self.text)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = match failure.code {
            OUT_OF_MEMORY => ErrorKind::ResourceExhausted,
            NO_DEVICE => ErrorKind::Unavailable,
            INVALID_DEVICE => ErrorKind::InvalidArgument,
            NOT_SUPPORTED => ErrorKind::Unsupported,
            _ => ErrorKind::Device,
        };
        let cause = Cause { domain: DOMAIN, number: i64::from(failure.code) };
        Self::with_cause(kind, failure.to_string(), cause)
    }
}

impl Api {
    /// What `call` returned, as a result.
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<(), Failure> {
        if code == SUCCESS { Ok(()) } else { Err(self.failure(call, code)) }
    }

    /// The failure of a call that returned `code`.
    pub(super) fn failure(&self, call: &'static str, code: Code) -> Failure {
        // SAFETY: both calls take any number and return a text that lives as long as the library.
        let name = unsafe { (self.hipGetErrorName)(code) };
        // SAFETY: as above.
        let text = unsafe { (self.hipGetErrorString)(code) };
        Failure { call, code, name: own(name), text: own(text) }
    }
}

/// A copy of a text of the library's.
fn own(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: a text that is not null ends in a zero byte and is not changed while the library is loaded.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_its_number_name_and_text() {
        let failure = Failure {
            call: "hipFree",
            code: 1,
            name: "hipErrorInvalidValue".into(),
            text: "invalid argument".into(),
        };
        let error = Error::from(failure);
        assert_eq!(error.kind(), ErrorKind::Device);
        assert_eq!(error.cause(), Some(Cause { domain: "hip", number: 1 }));
        for part in ["hipFree", "1", "hipErrorInvalidValue", "invalid argument"] {
            assert!(error.message().contains(part), "{error}");
        }
    }
}
