//! What the simulation notices: each mistake that the README names, made once, through the exported functions.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::completion::{ibv_create_cq, ibv_destroy_cq};
use crate::device::{ibv_close_device, ibv_free_device_list, ibv_get_device_list, ibv_open_device};
use crate::memory::{ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, ibv_reg_mr};
use crate::queue::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, post_recv};
use crate::types::{
    ibv_context, ibv_cq, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_recv_wr, ibv_sge, number,
};
use crate::world::world;

/// One of everything, as a C program has it.
struct Objects {
    context: *mut ibv_context,
    domain: *mut ibv_pd,
    region: *mut ibv_mr,
    queue: *mut ibv_cq,
    pair: *mut ibv_qp,
    bytes: Vec<u8>,
}

fn make() -> Objects {
    let mut bytes = vec![0; 64];
    // SAFETY: the functions get what they ask for, and the bytes stay.
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&raw mut count);
        let context = ibv_open_device(list.read());
        ibv_free_device_list(list);
        let domain = ibv_alloc_pd(context);
        let region = ibv_reg_mr(domain, bytes.as_mut_ptr().cast(), bytes.len(), 1);
        let queue = ibv_create_cq(context, 8, ptr::null_mut(), ptr::null_mut(), 0);
        let mut wanted: ibv_qp_init_attr = zeroed();
        (wanted.send_cq, wanted.recv_cq, wanted.qp_type) = (queue, queue, 2);
        (wanted.cap.max_recv_wr, wanted.cap.max_recv_sge) = (4, 1);
        let pair = ibv_create_qp(domain, &raw mut wanted);
        Objects { context, domain, region, queue, pair, bytes }
    }
}

impl Objects {
    /// Gives everything back, in the right order.
    fn end(self) -> [c_int; 5] {
        // SAFETY: each is given back once, children first.
        unsafe {
            [
                ibv_destroy_qp(self.pair),
                ibv_destroy_cq(self.queue),
                ibv_dereg_mr(self.region),
                ibv_dealloc_pd(self.domain),
                ibv_close_device(self.context),
            ]
        }
    }

    fn receive(&mut self) -> c_int {
        // SAFETY: the structures consist of numbers and pointers, and live during the call.
        unsafe {
            let address = self.bytes.as_mut_ptr() as u64;
            let mut piece = ibv_sge { addr: address, length: 8, lkey: (*self.region).lkey };
            let mut wr: ibv_recv_wr = zeroed();
            (wr.sg_list, wr.num_sge) = (&raw mut piece, 1);
            let mut refused = ptr::null_mut();
            post_recv(self.pair, &raw mut wr, &raw mut refused)
        }
    }

    fn to_init(&self) -> c_int {
        // SAFETY: the structure consists of numbers, and lives during the call.
        unsafe {
            let mut to: ibv_qp_attr = zeroed();
            (to.qp_state, to.port_num) = (number::INIT, 1);
            ibv_modify_qp(self.pair, &raw mut to, number::MASK_INIT.cast_signed())
        }
    }
}

/// Runs a test on its own in a fresh world, and returns the mistakes that were noticed.
fn noticed(test: impl FnOnce()) -> Vec<String> {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    world().reset();
    test();
    std::mem::take(&mut world().misuse)
}

fn assert_one(misuse: &[String], words: &str) {
    assert!(misuse.len() == 1 && misuse[0].contains(words), "{words}: {misuse:?}");
}

#[test]
fn a_program_that_does_it_right_is_blamed_for_nothing() {
    let misuse = noticed(|| {
        let mut objects = make();
        assert_eq!((objects.to_init(), objects.receive()), (0, 0));
        assert_eq!(objects.end(), [0; 5]);
    });
    assert_eq!(misuse, [""; 0]);
}

#[test]
fn parents_are_not_destroyed_before_their_children() {
    type Call = fn(&Objects) -> c_int;
    // SAFETY: the objects are alive, and the calls refuse.
    let calls: [(Call, &str); 3] = [
        (|objects| unsafe { ibv_destroy_cq(objects.queue) }, "a queue pair of the completion queue is left"),
        (
            |objects| unsafe { ibv_dealloc_pd(objects.domain) },
            "a region or a queue pair of the domain is left",
        ),
        (|objects| unsafe { ibv_close_device(objects.context) }, "made from the context is left"),
    ];
    for (call, words) in calls {
        let misuse = noticed(|| {
            let objects = make();
            assert_eq!(call(&objects), libc::EBUSY);
            assert_eq!(objects.end(), [0; 5]);
        });
        assert_one(&misuse, words);
    }
}

#[test]
fn nothing_is_destroyed_twice_or_used_afterwards() {
    let misuse = noticed(|| {
        let objects = make();
        let (pair, region) = (objects.pair, objects.region);
        assert_eq!(objects.end(), [0; 5]);
        // SAFETY: the addresses are never used again, which is what the simulation is asked for here.
        let codes = unsafe { [ibv_destroy_qp(pair), ibv_dereg_mr(region)] };
        assert_eq!(codes, [libc::EINVAL; 2]);
    });
    assert_eq!(misuse.len(), 2, "{misuse:?}");
    assert!(misuse[0].contains("the queue pair") && misuse[0].contains("was destroyed before"), "{misuse:?}");
    assert!(misuse[1].contains("the memory region"), "{misuse:?}");
}

#[test]
fn a_queue_pair_takes_requests_in_the_right_states_only() {
    let misuse = noticed(|| {
        let mut objects = make();
        assert_eq!(objects.receive(), libc::EINVAL);
        assert_eq!(objects.end(), [0; 5]);
    });
    assert_one(&misuse, "takes no receive");
}

#[test]
fn memory_stays_registered_while_a_request_names_it() {
    let misuse = noticed(|| {
        let mut objects = make();
        assert_eq!((objects.to_init(), objects.receive()), (0, 0));
        // SAFETY: the region is alive.
        assert_eq!(unsafe { ibv_dereg_mr(objects.region) }, 0);
        let codes = objects.end();
        assert_eq!(codes[2], libc::EINVAL);
    });
    assert!(misuse[0].contains("a posted request names the region"), "{misuse:?}");
}

#[test]
fn states_do_not_follow_each_other_as_one_likes() {
    let misuse = noticed(|| {
        let objects = make();
        // SAFETY: the structure consists of numbers, and lives during the call.
        unsafe {
            let mut to: ibv_qp_attr = zeroed();
            to.qp_state = number::RTS;
            assert_eq!(ibv_modify_qp(objects.pair, &raw mut to, c_int::MAX), libc::EINVAL);
            to.qp_state = number::INIT;
            assert_eq!(ibv_modify_qp(objects.pair, &raw mut to, 1), libc::EINVAL);
        }
        assert_eq!(objects.end(), [0; 5]);
    });
    assert!(misuse[0].contains("there is no way from state 0 to 3"), "{misuse:?}");
    assert!(misuse[1].contains("attributes"), "{misuse:?}");
}
