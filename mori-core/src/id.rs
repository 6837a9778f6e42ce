//! Names and numbers: transfers, tags, regions, engines.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a transfer: 64 bits, unique in this process, never reused, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(u64);

impl TransferId {
    /// The next number. Any thread may ask.
    #[must_use]
    pub fn fresh() -> Self {
        Self(fresh_number())
    }

    /// The number itself, for logs and for the wire.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a region: 64 bits, unique in this process, never reused, never zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(u64);

impl RegionId {
    /// The next number.
    pub(crate) fn fresh() -> Self {
        Self(fresh_number())
    }

    /// The number itself, as it stands in a memory descriptor.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One process-wide counter serves all kinds of numbers. At a thousand million a second it lasts 584 years.
fn fresh_number() -> u64 {
    // The counter is outside of the models' world on purpose: a number orders nothing.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// The caller's own mark for a transfer: any 64 bits, handed back in outcomes and notifications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of an engine, chosen by its application and unique among the engines that talk to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EngineKey(Box<str>);

impl EngineKey {
    /// A key of these characters.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into().into_boxed_str())
    }

    /// The characters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for EngineKey {
    fn from(key: &str) -> Self {
        Self::new(key)
    }
}

impl From<String> for EngineKey {
    fn from(key: String) -> Self {
        Self::new(key)
    }
}

impl fmt::Display for EngineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
