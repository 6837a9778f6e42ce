//! Many statuses that are terminal already, and scans.

use std::hint::black_box;

use mori_core::{Status, Tag, scan, wait_all, wait_any};

use crate::fake::in_progress;
use crate::figures::Figures;

pub(crate) const COUNTS: [usize; 5] = [1, 16, 128, 1024, 10_000];

pub(crate) fn many(figures: &mut Figures) {
    for count in COUNTS {
        let times = u32::try_from(200_000 / count).unwrap_or(1).max(5);
        let statuses: Vec<Status> = (0..count).map(|_| Status::succeeded(Tag(0))).collect();
        figures
            .time(&format!("many/terminal/wait_all/{count}"), times, || wait_all(black_box(&statuses), None));
        figures.time(&format!("many/terminal/scan/{count}"), times, || scan(black_box(&statuses)));
        figures
            .time(&format!("many/terminal/wait_any/{count}"), times, || wait_any(black_box(&statuses), None));
        // The yardstick: nothing but the loads.
        figures.time(&format!("many/terminal/yardstick_loop/{count}"), times, || {
            black_box(&statuses).iter().all(Status::is_success)
        });
        let running: Vec<_> = (0..count).map(|_| in_progress()).collect();
        let statuses: Vec<Status> = running.iter().map(|(_, status)| status.clone()).collect();
        figures.time(&format!("many/running/scan/{count}"), times, || scan(black_box(&statuses)));
    }
}
