//! What the operating system knows: processors, processor time, context switches, whether a thread sleeps.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts what the statuses take from the heap.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) };
    }
}

/// Bytes and blocks taken from the heap by `body`, whose result is dropped afterwards.
pub(crate) fn taken<T>(body: impl FnOnce() -> T) -> (usize, usize) {
    let before = (BYTES.load(Ordering::Relaxed), BLOCKS.load(Ordering::Relaxed));
    let kept = body();
    let after = (BYTES.load(Ordering::Relaxed), BLOCKS.load(Ordering::Relaxed));
    drop(kept);
    (after.0 - before.0, after.1 - before.1)
}

/// What a thread or the process has used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Microseconds of processor time, of the program and of the kernel for it.
    pub(crate) cpu_us: f64,
    /// Voluntary context switches: how often it went to sleep.
    pub(crate) sleeps: f64,
}

impl Usage {
    /// Of the calling thread.
    pub(crate) fn of_thread() -> Self {
        Self::of(libc::RUSAGE_THREAD)
    }

    /// Of all threads together.
    pub(crate) fn of_process() -> Self {
        Self::of(libc::RUSAGE_SELF)
    }

    fn of(who: libc::c_int) -> Self {
        // SAFETY: all zeroes is a value of this plain structure.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is ours for the whole call.
        let answer = unsafe { libc::getrusage(who, &raw mut usage) };
        assert_eq!(answer, 0, "getrusage");
        let micros = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
        Self { cpu_us: micros(usage.ru_utime) + micros(usage.ru_stime), sleeps: usage.ru_nvcsw as f64 }
    }

    /// What was used since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self { cpu_us: self.cpu_us - earlier.cpu_us, sleeps: self.sleeps - earlier.sleeps }
    }
}

/// The processors that this process may use.
pub(crate) fn processors() -> Vec<usize> {
    // SAFETY: all zeroes is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours for the whole call, and its size is given.
    let answer = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    assert_eq!(answer, 0, "sched_getaffinity");
    // SAFETY: every number is below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Binds the calling thread to these processors.
pub(crate) fn bind(processors: &[usize]) {
    // SAFETY: all zeroes is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in processors {
        // SAFETY: the numbers came out of such a set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: the set is ours for the whole call, and its size is given.
    let answer = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    assert_eq!(answer, 0, "sched_setaffinity");
}

/// The calling thread's number, for [`until_asleep`].
pub(crate) fn thread_number() -> libc::pid_t {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::gettid() }
}

/// Returns once that thread of this process sleeps.
pub(crate) fn until_asleep(thread: libc::pid_t) {
    let stat = format!("/proc/self/task/{thread}/stat");
    loop {
        let text = std::fs::read_to_string(&stat).unwrap();
        // The state follows the name, which stands in parentheses and may hold anything.
        let state = text.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if state == Some('S') {
            return;
        }
        std::thread::yield_now();
    }
}
