//! Finding and opening the runtime's library.

use std::ffi::{CString, OsString, c_void};
use std::os::raw::c_int;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};
use mori_core::{Error, ErrorKind, Result};

use super::sys::{Api, SUCCESS};

/// The environment variable that names the library to try first.
pub(crate) const VARIABLE: &str = "MORI_HIP_LIBRARY";

/// What is tried after that, in this order.
const NAMES: [&str; 4] = ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];

/// Keeps the library mapped when its last handle is closed: the runtime starts threads of its own, which would
/// otherwise run in memory that is gone.
const RTLD_NODELETE: c_int = 0x1000;

/// An open library.
pub(crate) struct Library(Opened);

impl Library {
    fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: opening runs the library's initialisers. It is the library that the user named, or the one that the
        // system's search path has under the runtime's name; that it is sound is what installing it says.
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

    /// Whether the library says of itself that it simulates devices: by the function that drives the simulation.
    pub(super) fn is_simulation(&self) -> bool {
        // SAFETY: the pointer is only compared with null, and dropped at once.
        unsafe { self.function::<*const c_void>("mori_hip_sim_control") }
            .is_some_and(|address| !address.is_null())
    }

    /// The runtime's version, for messages about a library that lacks something.
    fn version(&self) -> String {
        // SAFETY: this is the symbol's signature, and it is called while the library is open.
        let get =
            unsafe { self.function::<unsafe extern "C" fn(*mut c_int) -> c_int>("hipRuntimeGetVersion") };
        let Some(get) = get else { return "unknown".to_owned() };
        let mut version = 0;
        // SAFETY: the call writes one number through the pointer.
        let code = unsafe { get(&raw mut version) };
        if code == SUCCESS { version.to_string() } else { "unknown".to_owned() }
    }
}

/// The paths to try: `only`, if it is given; else the environment's and the usual names.
fn candidates(only: Option<&Path>, variable: Option<OsString>) -> Vec<PathBuf> {
    match only {
        Some(path) => vec![path.to_owned()],
        None => variable
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
            .into_iter()
            .chain(NAMES.into_iter().map(PathBuf::from))
            .collect(),
    }
}

/// Opens the first candidate that is there and complete, and says which one it was.
///
/// # Errors
///
/// [`ErrorKind::Unavailable`] with every name that was tried and what was wrong with it.
pub(crate) fn load(only: Option<&Path>) -> Result<(Api, PathBuf)> {
    load_from(candidates(only, std::env::var_os(VARIABLE)))
}

fn load_from(candidates: Vec<PathBuf>) -> Result<(Api, PathBuf)> {
    let mut tried = Vec::new();
    for path in candidates {
        let library = match Library::open(&path) {
            Ok(library) => library,
            Err(why) => {
                let name = path.display().to_string();
                // The system's words often begin with the name themselves.
                let why = why.strip_prefix(&format!("{name}: ")).unwrap_or(&why);
                tried.push(format!("{name}: {why}"));
                continue;
            }
        };
        let version = library.version();
        match Api::resolve(library) {
            Ok(api) => return Ok((api, path)),
            Err(symbol) => tried.push(format!(
                "{}: it has no symbol {symbol} (its version is {version}; 5.2 or later is needed)",
                path.display()
            )),
        }
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!(
            "no usable HIP runtime library was found; install ROCm's, or name one in {VARIABLE}. Tried: {}",
            tried.join("; ")
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_comes_first_and_a_given_path_alone() {
        let usual: Vec<PathBuf> = NAMES.iter().map(PathBuf::from).collect();
        assert_eq!(candidates(None, None), usual);
        assert_eq!(candidates(None, Some(OsString::new())), usual);
        let with_variable = candidates(None, Some("mine.so".into()));
        assert_eq!(with_variable[0], PathBuf::from("mine.so"));
        assert_eq!(with_variable[1..], usual);
        assert_eq!(candidates(Some(Path::new("x.so")), Some("mine.so".into())), [PathBuf::from("x.so")]);
    }

    #[test]
    fn what_is_not_there_is_listed_with_the_reason() {
        let error = load_from(vec!["no-such-library.so".into(), "nor-this.so".into()]).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        for part in ["no-such-library.so: ", "nor-this.so: ", "No such file", VARIABLE] {
            assert!(error.message().contains(part), "{error}");
        }
    }

    #[test]
    fn a_library_without_the_symbols_is_refused_by_the_name_of_one() {
        // The C library is everywhere and has none of them.
        let error = load_from(vec!["libc.so.6".into()]).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("libc.so.6: it has no symbol hipGetDeviceCount"), "{error}");
        assert!(error.message().contains("its version is unknown"), "{error}");
    }
}
