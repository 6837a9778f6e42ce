//! Fault injection without a script is as good as the backend behind it: the whole suite passes.

use std::sync::Arc;

use mori_core::{Backend, Result};
use mori_testkit::{Abilities, Bounds, FakeConfig, FakeHarness, Faulty, Harness, Node};

struct FaultyHarness(FakeHarness);

struct FaultyNode {
    faulty: Arc<Faulty>,
    node: Box<dyn Node>,
}

impl Harness for FaultyHarness {
    fn name(&self) -> String {
        format!("{}, behind fault injection", self.0.name())
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        let node = self.0.node()?;
        Ok(Box::new(FaultyNode { faulty: Faulty::new(node.backend()), node }))
    }

    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }

    fn bounds(&self) -> Bounds {
        self.0.bounds()
    }
}

impl Node for FaultyNode {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<Faulty>::clone(&self.faulty)
    }

    fn hold(&self) {
        self.node.hold();
    }

    fn release(&self) {
        self.node.release();
    }

    fn cut(&self) {
        self.node.cut();
    }

    fn silence(&self) {
        self.node.silence();
    }

    fn heal(&self) {
        self.node.heal();
    }
}

mori_testkit::conformance_suite!(FaultyHarness(FakeHarness::new(FakeConfig::polled(true))));
