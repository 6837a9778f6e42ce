//! The safe face of the control function, for tests: it talks to the shared library, not to the copy of this crate that is
//! linked into the test.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

/// What the simulation says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Allocations of this process.
    pub allocations: usize,
    /// Open mappings of other processes' allocations.
    pub mappings: usize,
    /// Streams that are not destroyed.
    pub streams: usize,
    /// Events that are not destroyed.
    pub events: usize,
    /// How often each function was called.
    pub calls: BTreeMap<String, u64>,
    /// The mistakes that were noticed.
    pub misuse: Vec<String>,
}

impl Report {
    /// How often a function was called.
    #[must_use]
    pub fn calls_of(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or_default()
    }

    /// How many calls there were.
    #[must_use]
    pub fn all_calls(&self) -> u64 {
        self.calls.values().sum()
    }
}

type Control = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;

/// The loaded simulation. There is one in a process, however often it is opened.
#[derive(Clone, Debug)]
pub struct Simulation {
    library: PathBuf,
    control: Control,
}

/// The file's name.
const FILE: &str = "libmori_hip_sim.so";

impl Simulation {
    /// Where the library lies: cargo builds it beside the programs of the tests that depend on this crate.
    ///
    /// # Errors
    ///
    /// Where it was looked for.
    pub fn find() -> Result<PathBuf, String> {
        let program = std::env::current_exe().map_err(|error| format!("the program has no path: {error}"))?;
        let folders: Vec<&Path> = program.ancestors().skip(1).take(3).collect();
        let places = folders.iter().flat_map(|folder| [folder.join(FILE), folder.join("deps").join(FILE)]);
        places
            .into_iter()
            .find(|path| path.is_file())
            .ok_or_else(|| format!("{FILE} lies in none of {folders:?}; build mori-hip-sim"))
    }

    /// Loads the library that [`find`](Simulation::find) finds.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn open() -> Result<Self, String> {
        Self::open_at(Self::find()?)
    }

    /// Loads a copy of the library that lacks a function, as an earlier release would, from the folder that it is written to. It is a
    /// machine of its own, beside the one that [`open`](Simulation::open) loads.
    ///
    /// # Errors
    ///
    /// If there is no such function, or the file cannot be written.
    pub fn open_without(symbol: &str, folder: &Path) -> Result<Self, String> {
        let wrong = |error: std::io::Error| error.to_string();
        let mut bytes = std::fs::read(Self::find()?).map_err(wrong)?;
        let name = [b"\0", symbol.as_bytes(), b"\0"].concat();
        let mut places = 0;
        // The name stands in the tables of strings; with another last letter, nobody who looks it up finds it.
        while let Some(at) = bytes.windows(name.len()).position(|window| window == name) {
            if let Some(last) = bytes.get_mut(at + symbol.len()) {
                *last = b'~';
            }
            places += 1;
        }
        if places == 0 {
            return Err(format!("{FILE} has no symbol {symbol}"));
        }
        let library = folder.join(FILE);
        std::fs::write(&library, bytes).map_err(wrong)?;
        Self::open_at(library)
    }

    fn open_at(library: PathBuf) -> Result<Self, String> {
        let path = CString::new(library.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the library is this crate's own; it has no initialisers.
        let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NODELETE) };
        if opened.is_null() {
            return Err(format!("{} cannot be loaded", library.display()));
        }
        // SAFETY: the library is open, and the name ends in a zero byte.
        let symbol = unsafe { libc::dlsym(opened, c"mori_hip_sim_control".as_ptr()) };
        if symbol.is_null() {
            return Err(format!("{} has no control function", library.display()));
        }
        // SAFETY: this is the type of the function of that name, and the library is never unmapped.
        let control = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Control>(symbol) };
        Ok(Self { library, control })
    }

    /// The library's path, for the loader under test.
    #[must_use]
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// Gives a command and returns the answer.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn command(&self, command: &str) -> Result<String, String> {
        let command = CString::new(command).map_err(|error| error.to_string())?;
        let mut out: Vec<u8> = vec![0; 1 << 16];
        loop {
            // SAFETY: the command ends in a zero byte, and the buffer is as long as it says.
            let length = unsafe { (self.control)(command.as_ptr(), out.as_mut_ptr().cast(), out.len()) };
            if length.unsigned_abs() >= out.len() {
                out.resize(length.unsigned_abs() + 4096, 0);
                continue;
            }
            let text = CStr::from_bytes_until_nul(&out).map_err(|error| error.to_string())?;
            let text = text.to_string_lossy().into_owned();
            return if length < 0 { Err(text) } else { Ok(text) };
        }
    }

    /// Changes a setting of the simulated machine.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn set(&self, key: &str, value: &str) -> Result<(), String> {
        self.command(&format!("set {key} {value}")).map(drop)
    }

    /// The `nth` call of a function from now on returns `code` and does nothing; `*` stands for every function.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn fault(&self, name: &str, nth: u64, code: i32) -> Result<(), String> {
        self.command(&format!("fault {name} {nth} {code}")).map(drop)
    }

    /// The `nth` queued copy from now on fails with `code` when its stream gets there.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn fault_later(&self, nth: u64, code: i32) -> Result<(), String> {
        self.command(&format!("async {nth} {code}")).map(drop)
    }

    /// Forgets the failures that have not come, and says whether there were any.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn clear(&self) -> Result<bool, String> {
        Ok(self.command("clear")? == "true")
    }

    /// Copies that touch the allocation at this address wait from now on, or do no longer.
    ///
    /// # Errors
    ///
    /// If nothing is allocated there.
    pub fn hold(&self, address: usize, held: bool) -> Result<(), String> {
        self.command(&format!("{} {address}", if held { "hold" } else { "release" })).map(drop)
    }

    /// The calling thread's current device.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn current_device(&self) -> Result<i32, String> {
        self.command("device")?.parse().map_err(|error| format!("{error}"))
    }

    /// Makes a device the calling thread's current one, as an application does.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn set_current_device(&self, device: i32) -> Result<(), String> {
        self.command(&format!("device {device}")).map(drop)
    }

    /// What the simulation says of itself.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn report(&self) -> Result<Report, String> {
        let mut report = Report::default();
        for line in self.command("report")?.lines() {
            let mut words = line.splitn(3, ' ');
            let (kind, name, rest) = (words.next(), words.next().unwrap_or_default(), words.next());
            let count = || rest.and_then(|count| count.parse::<u64>().ok()).unwrap_or_default();
            let live = || usize::try_from(count()).unwrap_or(usize::MAX);
            match (kind, name) {
                (Some("live"), "allocations") => report.allocations = live(),
                (Some("live"), "mappings") => report.mappings = live(),
                (Some("live"), "streams") => report.streams = live(),
                (Some("live"), "events") => report.events = live(),
                (Some("call"), name) => {
                    report.calls.insert(name.to_owned(), count());
                }
                _ => report.misuse.push(line.trim_start_matches("misuse ").to_owned()),
            }
        }
        Ok(report)
    }
}
