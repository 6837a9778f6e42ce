//! What the simulated machine looks like.

/// The simulated machine. What concerns devices themselves counts from the next time they are listed or made from.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// How many devices there are.
    pub(crate) devices: usize,
    /// How many ports each has.
    pub(crate) ports: u8,
    /// How many completion vectors each has.
    pub(crate) vectors: i32,
    /// Whether the wire is Ethernet (RoCE) rather than InfiniBand.
    pub(crate) ethernet: bool,
    /// Whether the kernel knows RDMA at all; without, listing devices fails as it does there.
    pub(crate) kernel: bool,
    /// The longest queue of work requests.
    pub(crate) max_requests: u32,
    /// The most pieces of a request.
    pub(crate) max_pieces: u32,
    /// The most inline bytes of a request.
    pub(crate) max_inline: u32,
    /// The longest completion queue.
    pub(crate) max_completions: i32,
    /// The longest message.
    pub(crate) max_message: u32,
    /// How many bytes may be registered in all; beyond, registering fails as over a limit of locked memory.
    pub(crate) memory: u64,
    /// Whether a peer that does not answer, or has no receive, fails a request at once rather than when `expire` is commanded.
    pub(crate) impatient: bool,
    /// Whether posting only queues, and a thread of the simulation carries requests out.
    pub(crate) threaded: bool,
    /// The folder that the devices' folders in sysfs seem to be in.
    pub(crate) sysfs: String,
}

impl Config {
    /// What the environment says.
    pub(crate) fn from_environment() -> Self {
        let mut config = Self {
            devices: 2,
            ports: 1,
            vectors: 4,
            ethernet: true,
            kernel: true,
            max_requests: 4096,
            max_pieces: 16,
            max_inline: 256,
            max_completions: 65_536,
            max_message: 1 << 30,
            memory: u64::MAX,
            impatient: true,
            threaded: false,
            sysfs: "/sys/class/infiniband".to_owned(),
        };
        for setting in std::env::var("MORI_VERBS_SIM").unwrap_or_default().split_whitespace() {
            if let Some((key, value)) = setting.split_once('=') {
                // A setting that is none is ignored here, as the real library ignores its variables' mistakes.
                let _ = config.set(key, value);
            }
        }
        config
    }

    /// Changes one setting.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        fn number<T: std::str::FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> Result<T, String> {
            value.parse().map_err(|error| format!("{key}={value}: {error}"))
        }
        let either = |yes: &str, no: &str| {
            if value == yes {
                Ok(true)
            } else if value == no {
                Ok(false)
            } else {
                Err(format!("{key} is {yes} or {no}, not {value}"))
            }
        };
        match key {
            "devices" => self.devices = number(key, value)?,
            "ports" => self.ports = number(key, value)?,
            "vectors" => self.vectors = number(key, value)?,
            "link" => self.ethernet = either("ethernet", "infiniband")?,
            "kernel" => self.kernel = either("yes", "no")?,
            "max_requests" => self.max_requests = number(key, value)?,
            "max_pieces" => self.max_pieces = number(key, value)?,
            "max_inline" => self.max_inline = number(key, value)?,
            "max_completions" => self.max_completions = number(key, value)?,
            "max_message" => self.max_message = number(key, value)?,
            "memory" => self.memory = number(key, value)?,
            "retries" => self.impatient = either("instant", "manual")?,
            "progress" => self.threaded = either("thread", "inline")?,
            "sysfs" => value.clone_into(&mut self.sysfs),
            _ => return Err(format!("there is no setting {key}")),
        }
        Ok(())
    }
}
