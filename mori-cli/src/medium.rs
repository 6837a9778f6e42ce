//! What bytes move over, and the memory that goes with it: copies between processes, TCP or RDMA between pools of host memory,
//! or XGMI between pools of device memory on one node.

use mori_engine::{
    Access, Engine, EngineBuilder, ErrorKind, Memory, MemoryDesc, RdmaConfig, RdmaVerbs, Region, Repoll,
    ShmConfig, TcpConfig, WaitPolicy, XgmiConfig, XgmiRuntime,
};

use crate::args::{LinkArgs, Transport};
use crate::failure::Failure;
use crate::layout::Layout;
use crate::node;

/// The transport of this process, with what it needs of this machine.
#[derive(Debug, Clone)]
pub struct Medium(Kind);

#[derive(Debug, Clone)]
enum Kind {
    Tcp(TcpConfig),
    Shm(ShmConfig),
    /// TCP, and copies between processes where they can be had.
    Auto(TcpConfig, ShmConfig),
    Rdma(Box<RdmaConfig>),
    Xgmi(DeviceChoice),
}

/// A device of the loaded runtime.
#[derive(Debug, Clone)]
struct DeviceChoice {
    runtime: XgmiRuntime,
    id: u32,
    name: String,
}

/// An engine and its pool: what both processes are made of.
#[derive(Debug)]
pub struct Node {
    /// The engine.
    pub engine: Engine,
    /// The pool, registered with it.
    pub pool: Pool,
}

impl Medium {
    /// TCP with this configuration.
    pub fn tcp(config: TcpConfig) -> Self {
        Self(Kind::Tcp(config))
    }

    /// Copies between processes, and nothing else.
    pub fn shm(config: ShmConfig) -> Self {
        Self(Kind::Shm(config))
    }

    /// Copies between processes where they can be had, else TCP.
    pub fn auto(tcp: TcpConfig, shm: ShmConfig) -> Self {
        Self(Kind::Auto(tcp, shm))
    }

    /// RDMA with this configuration; the verbs library is loaded here.
    ///
    /// # Errors
    ///
    /// When this machine has no library, or no device.
    pub fn rdma(config: RdmaConfig) -> Result<Self, Failure> {
        let verbs = RdmaVerbs::load(config.library.as_deref()).map_err(|why| no_rdma(&why.to_string()))?;
        let devices = verbs.devices().map_err(|why| no_rdma(&why.to_string()))?;
        if devices.is_empty() {
            return Err(no_rdma(&format!("{} finds no device", verbs.path().display())));
        }
        // A port is named in a part of its own; the first one stands for those that are not.
        let unknown = config.devices.unknown(devices.iter().map(|device| (device.name(), 1)));
        if let Some(unknown) = unknown.iter().find(|name| !name.contains(':')) {
            let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
            let message = format!("there is no RDMA device {unknown}; there are {}", names.join(", "));
            return Err(Failure::usage(message));
        }
        Ok(Self(Kind::Rdma(Box::new(config))))
    }

    /// XGMI with the memory of a device; the HIP runtime is loaded here.
    ///
    /// # Errors
    ///
    /// When this machine has no runtime, no device, or not that one.
    pub fn xgmi(device: u32) -> Result<Self, Failure> {
        let absent = |why: mori_engine::Error| {
            // One line, whatever the system's loader has to say.
            let why = why.message().split_whitespace().collect::<Vec<_>>().join(" ");
            Failure::usage(format!(
                "the transport xgmi is not available, because {why}. On a machine without AMD GPUs, use --transport tcp"
            ))
        };
        let runtime = XgmiRuntime::load(None).map_err(absent)?;
        let devices = runtime.devices().map_err(absent)?;
        let Some(found) = devices.iter().find(|found| found.id == device) else {
            let message = format!(
                "there is no device {device}; {} shows {} to this process, counted from 0",
                runtime.library().display(),
                devices.len()
            );
            return Err(Failure::usage(message));
        };
        let name = if runtime.is_simulated() {
            format!("simulated device {} ({}), no GPU", found.id, found.bus_id)
        } else {
            format!("GPU {} ({})", found.id, found.bus_id)
        };
        Ok(Self(Kind::Xgmi(DeviceChoice { runtime, id: found.id, name })))
    }

    /// The transport of a process that does not listen for others: any free port of loopback will do.
    ///
    /// # Errors
    ///
    /// As [`Medium::xgmi`].
    pub fn of_replay(link: &LinkArgs, secret: Option<&crate::control::Secret>) -> Result<Self, Failure> {
        Self::of(link, secret, "127.0.0.1:0".to_owned(), None)
    }

    /// The transport that the options name, listening on `bind` if it listens.
    ///
    /// # Errors
    ///
    /// As [`Medium::xgmi`].
    pub fn of(
        link: &LinkArgs,
        secret: Option<&crate::control::Secret>,
        bind: String,
        advertise: Option<String>,
    ) -> Result<Self, Failure> {
        match link.transport {
            Transport::Auto => {
                let tcp = node::tcp_config(link, secret, bind, advertise);
                Ok(Self::auto(tcp, node::shm_config(link, secret)))
            }
            Transport::Shm => Ok(Self::shm(node::shm_config(link, secret))),
            Transport::Tcp => Ok(Self::tcp(node::tcp_config(link, secret, bind, advertise))),
            Transport::Rdma => Self::rdma(node::rdma_config(link, secret, bind, advertise)?),
            Transport::Xgmi => Self::xgmi(number(link.device.as_deref().unwrap_or("0"))?),
        }
    }

    /// How many devices this process sees; none of them counts where pools are in host memory.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn devices(&self) -> Result<u32, Failure> {
        match &self.0 {
            Kind::Tcp(_) | Kind::Shm(_) | Kind::Auto(..) | Kind::Rdma(_) => Ok(0),
            Kind::Xgmi(device) => {
                let devices = device.runtime.devices().map_err(Failure::usage)?;
                Ok(u32::try_from(devices.len()).unwrap_or(u32::MAX))
            }
        }
    }

    /// The device of a serving process that is started here, if devices count: the one that was asked for, or with xgmi the
    /// one after ours, with rdma the same as ours.
    ///
    /// # Errors
    ///
    /// As [`Medium::devices`], and when a device is no number although it has to be one.
    pub fn server_device(&self, link: &LinkArgs, asked: Option<&str>) -> Result<Option<String>, Failure> {
        match link.transport {
            Transport::Rdma => Ok(asked.map(str::to_owned).or_else(|| link.device.clone())),
            Transport::Xgmi => {
                let own = number(link.device.as_deref().unwrap_or("0"))?;
                let next = (own + 1) % self.devices()?.max(1);
                let device = asked.map_or(Ok(next), number)?;
                Ok(Some(device.to_string()))
            }
            Transport::Auto | Transport::Shm | Transport::Tcp => Ok(None),
        }
    }

    /// Where the pool is, for people.
    pub fn memory(&self) -> String {
        match &self.0 {
            Kind::Tcp(_) | Kind::Shm(_) | Kind::Auto(..) | Kind::Rdma(_) => "host".to_owned(),
            Kind::Xgmi(device) => device.name.clone(),
        }
    }

    /// An engine of this name with a pool of this layout.
    ///
    /// # Errors
    ///
    /// When the transport cannot start, or the memory is too small.
    pub fn node(&self, name: &str, layout: &Layout, access: Access) -> Result<Node, Failure> {
        let engine = self.engine(name)?;
        let pool = match &self.0 {
            Kind::Xgmi(device) => device.pool(&engine, layout, access)?,
            _ => Pool::Host(node::allocate(&engine, layout, access)?),
        };
        Ok(Node { engine, pool })
    }

    /// An engine of this name, with no memory yet.
    ///
    /// # Errors
    ///
    /// When the transport cannot start.
    pub fn engine(&self, name: &str) -> Result<Engine, Failure> {
        let failed = |error: mori_engine::Error| match (&self.0, error.kind()) {
            (Kind::Rdma(_), ErrorKind::Unavailable) => no_rdma(error.message()),
            _ => Failure::server(error),
        };
        let engine = self.add(Engine::builder(name)).build().map_err(failed)?;
        if let Kind::Auto(_, shm) = &self.0
            && let Err(error) = engine.add_shm(shm.clone())
        {
            tracing::info!(%error, "no copies between processes here");
        }
        Ok(engine)
    }

    /// Memory of this many bytes, registered with an engine of this medium.
    ///
    /// # Errors
    ///
    /// When there is not as much.
    pub fn buffer(&self, engine: &Engine, bytes: u64, access: Access) -> Result<Pool, Failure> {
        match &self.0 {
            Kind::Xgmi(device) => device.buffer(engine, bytes, access),
            _ => Ok(Pool::Host(node::allocate_bytes(engine, bytes, access)?)),
        }
    }

    fn add(&self, builder: EngineBuilder) -> EngineBuilder {
        match &self.0 {
            Kind::Tcp(config) | Kind::Auto(config, _) => builder.tcp(config.clone()),
            Kind::Shm(config) => builder.shm(config.clone()),
            Kind::Rdma(config) => builder.rdma((**config).clone()),
            // The backend has no notifier, so a wait polls again and again instead of once more at its end.
            Kind::Xgmi(_) => builder
                .xgmi(XgmiConfig::default())
                .wait_policy(WaitPolicy { repoll: Repoll::BACKOFF, ..WaitPolicy::DEFAULT }),
        }
    }
}

/// Why there is no RDMA here, on one line, whatever the system's loader has to say.
fn no_rdma(why: &str) -> Failure {
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    Failure::usage(format!(
        "the transport rdma is not available, because {why}. On a machine without RDMA devices, use --transport tcp; mori doctor tells more"
    ))
}

/// The number of a device.
fn number(text: &str) -> Result<u32, Failure> {
    text.parse()
        .map_err(|_| Failure::usage(format!("with --transport xgmi a device is a number, not {text}")))
}

impl DeviceChoice {
    fn buffer(&self, engine: &Engine, bytes: u64, access: Access) -> Result<Pool, Failure> {
        let length = usize::try_from(bytes).map_err(Failure::usage)?;
        let region = self.runtime.allocate(self.id, length, access).map_err(|error| {
            Failure::usage(format!("{bytes} bytes of {} are needed: {}", self.name, error.message()))
        })?;
        let memory = engine.register(&region).map_err(Failure::usage)?;
        Ok(Pool::Device { memory, runtime: self.runtime.clone() })
    }

    fn pool(&self, engine: &Engine, layout: &Layout, access: Access) -> Result<Pool, Failure> {
        let bytes = usize::try_from(layout.total_bytes()).map_err(Failure::usage)?;
        let region: Region = self.runtime.allocate(self.id, bytes, access).map_err(|error| {
            Failure::usage(format!(
                "a pool of {} blocks needs {bytes} bytes of {}: {}; raise --scale or give it fewer blocks",
                layout.slots(),
                self.name,
                error.message()
            ))
        })?;
        let memory = engine.register(&region).map_err(Failure::usage)?;
        Ok(Pool::Device { memory, runtime: self.runtime.clone() })
    }
}

/// Registered memory that this process can look at.
#[derive(Debug, Clone)]
pub enum Pool {
    /// Host memory.
    Host(Memory),
    /// Device memory, read and written by the runtime's copies.
    Device {
        /// The memory.
        memory: Memory,
        /// Who copies.
        runtime: XgmiRuntime,
    },
}

impl Pool {
    /// The memory, for sessions.
    pub fn memory(&self) -> &Memory {
        match self {
            Self::Host(memory) | Self::Device { memory, .. } => memory,
        }
    }

    /// Its descriptor.
    pub fn desc(&self) -> MemoryDesc {
        self.memory().desc()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    ///
    /// Past the end, or when the device fails.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> mori_engine::Result<()> {
        match self {
            Self::Host(memory) => memory.read_at(offset, into),
            Self::Device { memory, runtime } => runtime.download(memory.region(), offset, into),
        }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    ///
    /// As [`Pool::read_at`].
    pub fn write_at(&self, offset: u64, from: &[u8]) -> mori_engine::Result<()> {
        match self {
            Self::Host(memory) => memory.write_at(offset, from),
            Self::Device { memory, runtime } => runtime.upload(memory.region(), offset, from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use crate::model::{LLAMA_3_8B, Pieces};

    #[test]
    fn a_pool_of_host_memory_is_read_and_written() {
        let shape = LLAMA_3_8B.shape(8192, Pieces::Layer).expect("fits");
        let layout = Layout::new(shape, 2).expect("fits");
        let medium = Medium::tcp(TcpConfig::default());
        assert_eq!((medium.memory().as_str(), medium.devices()), ("host", Ok(0)));
        let node = medium.node("t", &layout, Access::LOCAL).expect("a node");
        node.pool.write_at(7, b"bytes").expect("inside");
        let mut bytes = [0; 5];
        node.pool.read_at(7, &mut bytes).expect("inside");
        assert_eq!(&bytes, b"bytes");
        assert!(node.pool.read_at(layout.total_bytes(), &mut bytes).is_err());
    }

    #[test]
    fn without_a_runtime_the_answer_is_one_line_that_says_what_to_do() {
        // A machine with a runtime and a device has the transport, or not this many devices.
        let failure = Medium::xgmi(u32::MAX).expect_err("no machine has so many devices");
        assert_eq!(failure.exit, Exit::Usage);
        assert!(!failure.message.contains('\n'), "{failure}");
        assert!(
            failure.message.contains("use --transport tcp") || failure.message.contains("there is no device"),
            "{failure}"
        );
    }
}
