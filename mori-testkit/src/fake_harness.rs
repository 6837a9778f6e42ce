//! The suite's harness for the fake.

use std::sync::Arc;
use std::time::Duration;

use mori_core::{Backend, Result};

use crate::fake::{FakeBackend, FakeConfig, FakeFabric};
use crate::harness::{Abilities, Bounds, Harness, Node};

/// A harness with every ability, for fakes of one kind.
///
/// ```
/// use mori_testkit::{FakeConfig, FakeHarness};
/// let report = mori_testkit::run_some(FakeHarness::new(FakeConfig::polled(false)), |case| case.rules.contains("A1"));
/// report.assert_good();
/// ```
#[derive(Debug)]
pub struct FakeHarness {
    fabric: FakeFabric,
    config: FakeConfig,
    bounds: Bounds,
}

impl FakeHarness {
    /// A harness whose nodes are on a network of their own.
    #[must_use]
    pub fn new(config: FakeConfig) -> Self {
        Self::on(&FakeFabric::new(), config)
    }

    /// A harness whose nodes are on this network.
    #[must_use]
    pub fn on(fabric: &FakeFabric, config: FakeConfig) -> Self {
        let bounds = Bounds { silence: config.silence + Duration::from_secs(5), ..Bounds::default() };
        Self { fabric: fabric.clone(), config, bounds }
    }

    /// The same harness with other bounds.
    #[must_use]
    pub fn with_bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }
}

struct FakeNode(Arc<FakeBackend>);

impl Harness for FakeHarness {
    fn name(&self) -> String {
        let kind = match (self.config.notifier, self.config.hook) {
            (true, _) => "with a notifier",
            (false, true) => "polled, with a blocking hook",
            (false, false) => "polled",
        };
        format!("the fake, {kind}")
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        Ok(Box::new(FakeNode(self.fabric.backend(self.config.clone()))))
    }

    fn abilities(&self) -> Abilities {
        Abilities::ALL
    }

    fn bounds(&self) -> Bounds {
        self.bounds
    }
}

impl Node for FakeNode {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<FakeBackend>::clone(&self.0)
    }

    fn hold(&self) {
        self.0.hold();
    }

    fn release(&self) {
        self.0.release();
    }

    fn cut(&self) {
        self.0.cut();
    }

    fn silence(&self) {
        self.0.silence();
    }

    fn heal(&self) {
        self.0.heal();
    }
}
