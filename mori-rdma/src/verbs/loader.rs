//! Finding and opening the library.

use std::ffi::{CString, OsString, c_int};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};

use super::error::VerbsError;
use super::sys::Api;

/// The environment variable that names the library; with it, no other is tried.
pub const VARIABLE: &str = "MORI_VERBS_LIBRARY";

/// What is opened otherwise.
const NAME: &str = "libibverbs.so.1";

/// Keeps the library mapped when its last handle is closed: it opens providers of its own, which stay registered with it.
const RTLD_NODELETE: c_int = 0x1000;

/// An open library.
#[derive(Debug)]
pub(super) struct Library(Opened);

impl Library {
    fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: opening runs the library's initialisers. It is the library that the user named, or the one that the
        // system's search path has under the library's name; that it is sound is what installing it says.
        let opened = unsafe { Opened::open(Some(path), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) };
        // The error's own words are only "dlopen failed"; its source says why.
        opened.map(Self).map_err(|error| match std::error::Error::source(&error) {
            Some(source) => source.to_string(),
            None => error.to_string(),
        })
    }

    /// The function of this name, if the library has it.
    ///
    /// # Safety
    ///
    /// `F` is a function pointer of the symbol's real signature, and is not used after the library is gone.
    pub(super) unsafe fn function<F: Copy>(&self, name: &str) -> Option<F> {
        let name = CString::new(name).ok()?;
        // SAFETY: the caller's promise is the one that `get` asks for.
        let symbol = unsafe { self.0.get::<F>(name.as_c_str()) };
        symbol.ok().map(|symbol| *symbol)
    }
}

/// The path to open: `only`, if it is given; else the environment's, else the usual name.
fn candidate(only: Option<&Path>, variable: Option<OsString>) -> PathBuf {
    match only {
        Some(path) => path.to_owned(),
        None => variable.filter(|path| !path.is_empty()).map_or_else(|| PathBuf::from(NAME), PathBuf::from),
    }
}

/// Opens the library, and says which one it was.
///
/// # Errors
///
/// [`VerbsError::NoLibrary`] with what was tried and why it did not do, [`VerbsError::MissingSymbol`] with the symbol's name.
pub(super) fn load(only: Option<&Path>) -> Result<(Api, PathBuf), VerbsError> {
    let path = candidate(only, std::env::var_os(VARIABLE));
    let library = Library::open(&path).map_err(|why| VerbsError::NoLibrary {
        variable: VARIABLE,
        tried: format!("{}: {why}", path.display()),
    })?;
    let api = Api::resolve(library).map_err(|symbol| VerbsError::MissingSymbol {
        library: path.display().to_string(),
        symbol,
        variable: VARIABLE,
    })?;
    Ok((api, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_given_path_comes_before_the_variable_and_that_before_the_usual_name() {
        assert_eq!(candidate(None, None), Path::new(NAME));
        assert_eq!(candidate(None, Some(OsString::new())), Path::new(NAME));
        assert_eq!(candidate(None, Some("mine.so".into())), Path::new("mine.so"));
        assert_eq!(candidate(Some(Path::new("x.so")), Some("mine.so".into())), Path::new("x.so"));
    }

    #[test]
    fn what_is_not_there_is_named_with_the_reason() {
        let error = load(Some(Path::new("no-such-library.so"))).err().unwrap();
        let text = error.to_string();
        for part in ["no-such-library.so: ", "No such file", VARIABLE, "rdma-core"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn a_library_without_the_symbols_is_refused_by_the_name_of_one() {
        // The C library is everywhere and has none of them.
        let error = load(Some(Path::new("libc.so.6"))).err().unwrap();
        assert!(
            matches!(&error, VerbsError::MissingSymbol { symbol: "ibv_get_device_list", .. }),
            "{error:?}"
        );
        assert!(error.to_string().starts_with("libc.so.6 has no symbol ibv_get_device_list"), "{error}");
    }
}
