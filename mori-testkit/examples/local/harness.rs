//! The hands that the conformance suite gets on the `local` backend.

use std::sync::Arc;

use mori_core::{Backend, Result};
use mori_testkit::{Abilities, Harness, Node};

use crate::backend::Local;

// [harness]
pub(crate) struct LocalHarness;

struct LocalNode(Arc<Local>);

impl Harness for LocalHarness {
    fn name(&self) -> String {
        "the local backend".to_owned()
    }

    fn node(&self) -> Result<Box<dyn Node>> {
        Ok(Box::new(LocalNode(Local::new())))
    }

    fn abilities(&self) -> Abilities {
        // Inside one process there is no link that could be cut, and no silence.
        Abilities { hold: true, ..Abilities::default() }
    }
}

impl Node for LocalNode {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::<Local>::clone(&self.0)
    }

    fn hold(&self) {
        self.0.pause(true);
    }

    fn release(&self) {
        self.0.pause(false);
    }
}
// [end]
