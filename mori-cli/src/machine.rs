//! What this machine says about itself: memory that is left, and processor time that this process used.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this process so far, all threads, user and system.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Bytes that can be allocated without pushing others out, as far as the system says: the least of what the machine
/// and the control group have left. None when neither says anything.
pub fn available_memory() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_available(&text));
    let number = |path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .map(|most| most.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    machine.into_iter().chain(group).min()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let rest = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_grows_with_work() {
        let before = cpu_time();
        let mut sum = 0_u64;
        while cpu_time() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_time() > before);
    }

    #[test]
    fn available_memory_is_read_from_its_line() {
        assert_eq!(mem_available("MemTotal: 9 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available("MemTotal: 9 kB\n"), None);
        assert_eq!(mem_available("MemAvailable: many kB\n"), None);
        assert_eq!(mem_available(&format!("MemAvailable: {} kB\n", u64::MAX)), None);
    }
}
