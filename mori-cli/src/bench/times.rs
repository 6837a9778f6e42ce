//! How long transfers took.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest time that is told apart from longer ones, in nanoseconds: an hour.
const LONGEST: u64 = 3_600_000_000_000;

/// Times of many transfers, kept to three digits.
#[derive(Debug, Clone)]
pub struct Times {
    histogram: Option<Histogram<u64>>,
}

impl Times {
    /// No times yet.
    pub fn new() -> Self {
        // These bounds are among those that the histogram documents as valid.
        Self { histogram: Histogram::new_with_bounds(1, LONGEST, 3).ok() }
    }

    /// Adds one.
    pub fn record(&mut self, time: Duration) {
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(LONGEST).max(1));
        }
    }

    /// Adds all of another.
    pub fn add(&mut self, other: &Self) {
        if let (Some(ours), Some(theirs)) = (&mut self.histogram, &other.histogram) {
            // Both have the same bounds, so that each value fits.
            let _ = ours.add(theirs);
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.histogram.as_ref().map_or(0, Histogram::len)
    }

    /// The shortest, in microseconds; zero when there are none, as with the others.
    pub fn min(&self) -> f64 {
        self.micros(|histogram| histogram.min() as f64)
    }

    /// Their mean, in microseconds.
    pub fn mean(&self) -> f64 {
        self.micros(Histogram::mean)
    }

    /// The time, in microseconds, that this part of them did not exceed.
    pub fn at(&self, quantile: f64) -> f64 {
        self.micros(|histogram| histogram.value_at_quantile(quantile) as f64)
    }

    fn micros(&self, nanos: impl Fn(&Histogram<u64>) -> f64) -> f64 {
        self.histogram.as_ref().filter(|histogram| !histogram.is_empty()).map_or(0.0, nanos) / 1e3
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_to_three_digits() {
        let mut times = Times::new();
        assert_eq!((times.count(), times.min(), times.at(0.5)), (0, 0.0, 0.0));
        (1..=100).for_each(|micros| times.record(Duration::from_micros(micros)));
        let mut more = Times::new();
        more.record(Duration::MAX);
        times.add(&more);
        assert_eq!(times.count(), 101);
        for (found, wanted) in [(times.min(), 1.0), (times.at(0.5), 51.0), (times.at(1.0), 3.6e9)] {
            assert!((found / wanted - 1.0).abs() < 2e-3, "{found} {wanted}");
        }
    }
}
