//! The failures that were asked for.

/// All of them, each for a later call or request.
#[derive(Default)]
pub(crate) struct Faults {
    /// Name or `*`, calls up to and with the one that fails, its errno.
    calls: Vec<(String, u64, i32)>,
    /// Requests up to and with the one that fails, its status.
    statuses: Vec<(u64, u32)>,
    /// For the next lists of sends and of receives: how many requests are taken, and the errno for the next.
    sends: Vec<(usize, i32)>,
    receives: Vec<(usize, i32)>,
}

impl Faults {
    /// The `nth` call of `name` from now on fails with `errno`.
    pub(crate) fn add_call(&mut self, name: &str, nth: u64, errno: i32) {
        self.calls.push((name.to_owned(), nth.max(1), errno));
    }

    /// The `nth` request that is carried out from now on ends with `status`.
    pub(crate) fn add_status(&mut self, nth: u64, status: u32) {
        self.statuses.push((nth.max(1), status));
    }

    /// Of the next list only the first requests are taken.
    pub(crate) fn add_partial(&mut self, is_send: bool, taken: usize, errno: i32) {
        if is_send { &mut self.sends } else { &mut self.receives }.push((taken, errno));
    }

    /// Forgets all of them; says whether there were any left.
    pub(crate) fn clear(&mut self) -> bool {
        let left = std::mem::take(self);
        !(left.calls.is_empty()
            && left.statuses.is_empty()
            && left.sends.is_empty()
            && left.receives.is_empty())
    }

    pub(crate) fn next_call(&mut self, name: &str) -> Option<i32> {
        let mut found = None;
        self.calls.retain_mut(|(of, left, errno)| {
            if of != "*" && of != name {
                return true;
            }
            *left -= 1;
            if *left == 0 {
                found = Some(*errno);
            }
            *left > 0
        });
        found
    }

    /// What the next request ends with, if it must.
    pub(crate) fn next_status(&mut self) -> Option<u32> {
        let mut found = None;
        self.statuses.retain_mut(|(left, status)| {
            *left -= 1;
            if *left == 0 {
                found = Some(*status);
            }
            *left > 0
        });
        found
    }

    /// How many requests of the next list are taken, if not all.
    pub(crate) fn next_partial(&mut self, is_send: bool) -> Option<(usize, i32)> {
        let partials = if is_send { &mut self.sends } else { &mut self.receives };
        if partials.is_empty() { None } else { Some(partials.remove(0)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_comes_at_its_turn_and_once() {
        let mut faults = Faults::default();
        faults.add_call("a", 2, 12);
        faults.add_call("*", 4, 5);
        assert_eq!(faults.next_call("a"), None);
        assert_eq!(faults.next_call("b"), None);
        assert_eq!(faults.next_call("a"), Some(12));
        assert_eq!(faults.next_call("b"), Some(5));
        assert_eq!(faults.next_call("a"), None);
        assert!(!faults.clear());
        faults.add_partial(true, 3, 12);
        assert_eq!(faults.next_partial(false), None);
        assert_eq!(faults.next_partial(true), Some((3, 12)));
        assert_eq!(faults.next_partial(true), None);
    }
}
