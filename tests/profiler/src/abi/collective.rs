//! The parts of `coll` that v2 and later have in common. What stands before, between and after them differs.
//!
//! Both parts end at a multiple of eight bytes, so that as members of their own they lie where NCCL's flat
//! struct has their fields.

use std::ffi::{c_char, c_int, c_void};

use super::text;
use crate::event;

/// From `seqNumber` to `datatype`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Operation {
    seq_number: u64,
    func: *const c_char,
    send_buff: *const c_void,
    recv_buff: *const c_void,
    count: usize,
    pub(super) root: c_int,
    pub(super) datatype: *const c_char,
}

/// From the number of channels to `proto`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Tuning {
    /// `nMaxChannels` up to v3, `nChannels` from v4 on.
    pub(super) channels: u8,
    warps: u8,
    algo: *const c_char,
    pub(super) proto: *const c_char,
}

impl Operation {
    /// All but the channels, which mean different things.
    ///
    /// # Safety
    /// The strings of both must be null or terminated.
    pub(super) unsafe fn read(&self, tuning: &Tuning) -> event::Coll {
        // SAFETY: the caller's promise about the strings.
        let [func, datatype, algo, proto] =
            unsafe { [self.func, self.datatype, tuning.algo, tuning.proto].map(|string| text(string)) };
        event::Coll {
            seq_number: self.seq_number,
            send_buff: Some(self.send_buff.addr()),
            func,
            count: self.count,
            datatype,
            root: self.root,
            algo,
            proto,
            warps: tuning.warps,
            ..event::Coll::default()
        }
    }
}
