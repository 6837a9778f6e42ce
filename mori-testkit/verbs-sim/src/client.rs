//! The safe face of the control function, for tests: it talks to the shared library, not to the copy of this crate that is
//! linked into the test.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};

/// What the simulation says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Objects that are not destroyed, by kind: `lists`, `contexts`, `domains`, `regions`, `channels`, `completions`, `pairs`.
    pub live: BTreeMap<String, u64>,
    /// How often each function was called.
    pub calls: BTreeMap<String, u64>,
    /// What waits: `sends` and `receives` in queues, `unpolled` completions.
    pub queued: BTreeMap<String, u64>,
    /// The mistakes that were noticed.
    pub misuse: Vec<String>,
}

impl Report {
    /// How many objects of a kind are not destroyed.
    #[must_use]
    pub fn live(&self, kind: &str) -> u64 {
        self.live.get(kind).copied().unwrap_or_default()
    }

    /// How many objects are not destroyed.
    #[must_use]
    pub fn all_live(&self) -> u64 {
        self.live.values().sum()
    }

    /// How often a function was called.
    #[must_use]
    pub fn calls_of(&self, name: &str) -> u64 {
        self.calls.get(name).copied().unwrap_or_default()
    }

    /// How much of a kind waits.
    #[must_use]
    pub fn queued(&self, kind: &str) -> u64 {
        self.queued.get(kind).copied().unwrap_or_default()
    }
}

type Control = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;

/// The loaded simulation. There is one in a process, however often it is opened.
///
/// Commands that fail name what is wrong with them.
#[derive(Clone, Debug)]
pub struct Simulation {
    library: PathBuf,
    control: Control,
}

/// The file's name.
const FILE: &str = "libmori_verbs_sim.so";

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
            .ok_or_else(|| format!("{FILE} lies in none of {folders:?}; build mori-verbs-sim"))
    }

    /// Loads the library that [`find`](Simulation::find) finds.
    ///
    /// # Errors
    ///
    /// What is missing.
    pub fn open() -> Result<Self, String> {
        let library = Self::find()?;
        let path = CString::new(library.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: the library is this crate's own; it has no initialisers.
        let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NODELETE) };
        if opened.is_null() {
            return Err(format!("{} cannot be loaded", library.display()));
        }
        // SAFETY: the library is open, and the name ends in a zero byte.
        let symbol = unsafe { libc::dlsym(opened, c"mori_verbs_sim_control".as_ptr()) };
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

    fn order(&self, command: &str) -> Result<(), String> {
        self.command(command).map(drop)
    }

    /// Changes a setting of the simulated machine.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn set(&self, key: &str, value: &str) -> Result<(), String> {
        self.order(&format!("set {key} {value}"))
    }

    /// The `nth` call of a function from now on fails with `errno` and does nothing; `*` stands for every function. The functions
    /// that the header has inline are called `ibv_post_send`, `ibv_post_recv`, `ibv_poll_cq` and `ibv_req_notify_cq`.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn fault(&self, name: &str, nth: u64, errno: i32) -> Result<(), String> {
        self.order(&format!("fault {name} {nth} {errno}"))
    }

    /// The `nth` request that begins from now on moves no byte and ends with this status, and its queue pair fails.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn fail_request(&self, nth: u64, status: u32) -> Result<(), String> {
        self.order(&format!("status {nth} {status}"))
    }

    /// Of the next list of sends that is posted only the first `taken` are accepted; the next one is refused with `errno`.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn partial_send(&self, taken: usize, errno: i32) -> Result<(), String> {
        self.order(&format!("partial send {taken} {errno}"))
    }

    /// The same for the next list of receives.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn partial_receive(&self, taken: usize, errno: i32) -> Result<(), String> {
        self.order(&format!("partial receive {taken} {errno}"))
    }

    /// Forgets the failures that have not come, and says whether there were any.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn clear(&self) -> Result<bool, String> {
        Ok(self.command("clear")? == "true")
    }

    /// Requests are queued and not carried out from now on, or are again.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn hold(&self, held: bool) -> Result<(), String> {
        self.order(if held { "hold" } else { "release" })
    }

    /// The same for one queue pair, by its device's name and its number: neither its own requests are carried out nor those that
    /// reach it.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn hold_pair(&self, device: &str, pair: u32, held: bool) -> Result<(), String> {
        self.order(&format!("{} {device} {pair}", if held { "hold" } else { "release" }))
    }

    /// Requests are carried out, and their completions are neither seen nor announced from now on, or are again.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn withhold(&self, withheld: bool) -> Result<(), String> {
        self.order(if withheld { "withhold" } else { "deliver" })
    }

    /// With `retries` set to `manual`: what waits for its peer has been tried often enough, and fails.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn expire(&self) -> Result<(), String> {
        self.order("expire")
    }

    /// A port goes down or comes up, with its event.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn set_port(&self, device: &str, port: u8, up: bool) -> Result<(), String> {
        self.order(&format!("port {device} {port} {}", if up { "up" } else { "down" }))
    }

    /// A line of a port's table of GIDs changes, with its event; `None` takes the address away.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn set_gid(
        &self,
        device: &str,
        port: u8,
        index: u32,
        gid: Option<std::net::Ipv6Addr>,
    ) -> Result<(), String> {
        let gid = gid.map_or_else(|| "none".to_owned(), |gid| gid.to_string());
        self.order(&format!("gid {device} {port} {index} {gid}"))
    }

    /// A device fails for good, with its event: what is posted is flushed, calls fail with `EIO`, and it is listed no more.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn kill_device(&self, device: &str) -> Result<(), String> {
        self.order(&format!("kill device {device}"))
    }

    /// A device that failed is there again.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn revive_device(&self, device: &str) -> Result<(), String> {
        self.order(&format!("revive {device}"))
    }

    /// A queue pair fails, with its event.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn kill_pair(&self, device: &str, pair: u32) -> Result<(), String> {
        self.order(&format!("kill pair {device} {pair}"))
    }

    /// Every completion queue of a device overruns, with the events.
    ///
    /// # Errors
    ///
    /// If there is no such device.
    pub fn overrun(&self, device: &str) -> Result<(), String> {
        self.order(&format!("overrun {device}"))
    }

    /// Forgets everything, as if the library had just been loaded; nothing that was made before may be used any more.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn reset(&self) -> Result<(), String> {
        self.order("reset")
    }

    /// Forgets the mistakes that were noticed.
    ///
    /// # Errors
    ///
    /// What is wrong with the command.
    pub fn forgive(&self) -> Result<(), String> {
        self.order("forgive")
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
            let into = match kind {
                Some("live") => &mut report.live,
                Some("call") => &mut report.calls,
                Some("queued") => &mut report.queued,
                _ => {
                    report.misuse.push(line.trim_start_matches("misuse ").to_owned());
                    continue;
                }
            };
            into.insert(name.to_owned(), count());
        }
        Ok(report)
    }
}
