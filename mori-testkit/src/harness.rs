//! What an author implements so that the suite can drive a backend: [`Harness`] and [`Node`].

use std::sync::Arc;
use std::time::Duration;

use mori_core::{Access, Backend, EngineDesc, Region, Result};

/// What a harness can do to the nodes that it makes, beside making them.
///
/// Each ability that is absent skips the cases that need it, by name and with the reason. The suite needs none of them to
/// run; with none of them it cannot see what happens while a transfer is surely in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// [`Node::hold`] and [`Node::release`] work.
    pub hold: bool,
    /// [`Node::cut`] and [`Node::heal`] work.
    pub cut: bool,
    /// [`Node::silence`] and [`Node::heal`] work.
    pub silence: bool,
}

impl Abilities {
    /// All of them.
    pub const ALL: Self = Self { hold: true, cut: true, silence: true };
}

/// How long things may take before the suite calls them broken.
///
/// They are bounds, not expectations: a case ends as soon as what it waits for has happened, so generous bounds cost nothing
/// on a healthy backend. The one exception is [`settle`](Bounds::settle), which is really spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// A transfer with nothing in its way.
    pub transfer: Duration,
    /// A call that must not block, and a bounded wait beyond its bound, on a busy machine.
    pub prompt: Duration,
    /// From the cut of a link to the failure of its transfers (contract E4).
    pub cut: Duration,
    /// From the last sign of life of a peer to the failure of its transfers (contract E4). Make the backend's own bound
    /// short in tests.
    pub silence: Duration,
    /// From a healed link, or from a restarted peer, to the first transfer that works.
    pub reconnect: Duration,
    /// [`Backend::shutdown`], and the end of every transfer with it.
    pub shutdown: Duration,
    /// How long the suite looks for something that must not happen, for example a byte that lands too late.
    pub settle: Duration,
    /// The whole case; then it has failed, hanging.
    pub case: Duration,
    /// The largest single transfer, in bytes.
    pub largest: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            transfer: Duration::from_secs(20),
            prompt: Duration::from_secs(2),
            cut: Duration::from_secs(5),
            silence: Duration::from_secs(15),
            reconnect: Duration::from_secs(10),
            shutdown: Duration::from_secs(10),
            settle: Duration::from_millis(60),
            case: Duration::from_secs(120),
            largest: 8 << 20,
        }
    }
}

/// Makes the nodes that the suite runs transfers between.
///
/// The only methods without a default are [`node`](Harness::node) and [`name`](Harness::name). Cases run on several threads at a
/// time, each with nodes of its own.
///
/// ```
/// use mori_core::{Backend, Result};
/// use mori_testkit::{FakeConfig, FakeFabric, Harness, Node};
/// use std::sync::Arc;
///
/// struct MyNode(Arc<dyn Backend>);
///
/// impl Node for MyNode {
///     fn backend(&self) -> Arc<dyn Backend> {
///         Arc::clone(&self.0)
///     }
/// }
///
/// struct MyHarness(FakeFabric);
///
/// impl Harness for MyHarness {
///     fn name(&self) -> String {
///         "my backend".to_owned()
///     }
///
///     fn node(&self) -> Result<Box<dyn Node>> {
///         Ok(Box::new(MyNode(self.0.backend(FakeConfig::default()))))
///     }
/// }
///
/// let report = mori_testkit::run_some(MyHarness(FakeFabric::new()), |case| case.name.starts_with("read_"));
/// assert!(report.passed() > 0 && report.failed() == 0, "{report}");
/// ```
pub trait Harness: Send + Sync + 'static {
    /// What is tested, for the report.
    fn name(&self) -> String;

    /// A node with a new backend that has not joined an engine yet.
    ///
    /// # Errors
    ///
    /// Whatever keeps the backend from being made; the case fails with it.
    fn node(&self) -> Result<Box<dyn Node>>;

    /// What the nodes can be made to do. None of it unless said otherwise.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Whether a held transfer can end while it is held: by a shutdown of its backend, or with its peer. It can, unless said
    /// otherwise. Where [`Node::hold`] stops a device whose queued work no host can take back, it cannot, and the cases that
    /// want such an end are skipped; there, a transfer ends after [`Node::release`].
    fn held_can_end(&self) -> bool {
        true
    }

    /// How long things may take.
    fn bounds(&self) -> Bounds {
        Bounds::default()
    }
}

/// One backend under test, with the hands that the suite has on it.
///
/// The default of each hand does nothing; [`Harness::abilities`] says which of them work. Dropping the node gives everything up that
/// it holds.
pub trait Node: Send + Sync {
    /// The backend, always the same one.
    fn backend(&self) -> Arc<dyn Backend>;

    /// What peers are told about this node. A harness that puts something between the nodes (a relay that can be
    /// stopped) changes the address here.
    ///
    /// # Errors
    ///
    /// Whatever keeps the thing in between from being made; the case fails with it.
    fn publish(&self, desc: EngineDesc) -> Result<EngineDesc> {
        Ok(desc)
    }

    /// Memory of `length` bytes of the kind that the backend carries: zeroed host memory unless said otherwise.
    ///
    /// # Errors
    ///
    /// As [`Region::zeroed`].
    fn memory(&self, length: usize, access: Access) -> Result<Region> {
        Region::zeroed(length, access)
    }

    /// Copies bytes into memory made by [`Node::memory`].
    ///
    /// # Errors
    ///
    /// As [`Region::write_at`].
    fn store(&self, region: &Region, offset: u64, bytes: &[u8]) -> Result<()> {
        region.write_at(offset, bytes)
    }

    /// Copies bytes out of memory made by [`Node::memory`].
    ///
    /// # Errors
    ///
    /// As [`Region::read_at`].
    fn load(&self, region: &Region, offset: u64, bytes: &mut [u8]) -> Result<()> {
        region.read_at(offset, bytes)
    }

    /// From now on no transfer *to this node as the target* ends, and none that is submitted from now on gets anywhere, until
    /// [`release`](Node::release). Nothing fails because of it, as long as it takes less than half of
    /// [`Bounds::silence`]. Transfers that other nodes serve are not touched.
    fn hold(&self) {}

    /// Ends [`hold`](Node::hold): what was held goes on.
    fn release(&self) {}

    /// Breaks the link between this node as a target and everybody else, in a way that either side can notice at
    /// once (a closed connection). Connections fail until [`heal`](Node::heal).
    fn cut(&self) {}

    /// This node as a target stops answering, and nothing says so (a stopped process, a pulled cable).
    fn silence(&self) {}

    /// Ends [`cut`](Node::cut) and [`silence`](Node::silence). A silenced node comes back to life as it was, with what was
    /// under way.
    fn heal(&self) {}
}
