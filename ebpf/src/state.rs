//! Values that programs work in: they stand in maps, or in the ring buffer.

use core::mem::MaybeUninit;

use crate::common::{
    LARGEST_RECORD, MAX_CODE_WORDS, MAX_QUEUES, MAX_STACK_FRAMES, PieceHead, PythonWalk, RawFrame, SentStack,
    StackHead, StringHead,
};

/// Room for one record of at most `SIZE` bytes, aligned as the ring buffer aligns it.
#[repr(C, align(8))]
pub struct Room<const SIZE: usize>([u8; SIZE]);

impl Room<8> {
    /// For a plan that writes nothing. Volatile, as kernels before 6.3 want all that a global function is
    /// given to be written, needed or not.
    #[inline(always)]
    pub fn zeroed(room: &mut MaybeUninit<Self>) -> *mut Self {
        let room = room.as_mut_ptr();
        // SAFETY: room for 8 bytes, so aligned.
        unsafe { room.cast::<u64>().write_volatile(0) };
        room
    }
}

/// Something, and whether it is taken.
#[repr(C)]
pub struct Slot<T> {
    /// 1 while a program has the slot; only ever accessed atomically.
    pub claimed: u64,
    pub room: T,
}

/// Room for the largest record.
pub type ScratchSlot = Slot<Room<LARGEST_RECORD>>;

/// A walk in progress. Plain numbers, as the verifier wants it of what global functions are given.
#[repr(C)]
pub struct State {
    /// Address of the node that is next; 0: the list is at its end.
    pub node: u64,
    /// Once the node was sent: the one after it.
    pub after: u64,
    pub ts_ns: u64,
    pub pid_tgid: u64,
    /// Number of the probe's own record.
    pub hit: u64,
    /// By list: the address of its first node; once it was begun, the number of its nodes.
    pub words: [u64; MAX_QUEUES],
    pub identity: [u64; 2],
    /// By list: nodes to follow.
    pub limits: [u16; MAX_QUEUES],
    /// Nodes of the list that were sent.
    pub index: u16,
    /// List that is followed; the lists before it are done.
    pub queue: u16,
    pub cookie: u32,
    /// What a gate lets through: rows and plans that are still to be sent, and where they begin.
    pub tag: u32,
    pub n_plans: u16,
    pub first_plan: u16,
    pub rows_left: u8,
    pub plans_left: u8,
    pub row: u8,
    pub first_row: u8,
    /// Number of rows less one, to wrap around; 255: rows are not wrapped.
    pub row_mask: u8,
    /// Number of rows, where the node names them.
    pub named_rows: u8,
    pub reversed: u8,
    /// 1 once the node was sent; its gates are next.
    pub sent: u8,
    /// The gate that is next for the node, counted from 1; 0: none.
    pub gate: u8,
    /// The gate that let the rows through.
    pub opened: u8,
    /// By list: its gates are not to be left out.
    pub gated: u8,
    /// Of what the gate let through something was lost: it is to be sent again.
    pub lost: u8,
    /// Records in the pack.
    pub packed: u8,
    /// The probe's own record was sent, or lost.
    pub closed: u8,
    /// Where the lists begin could not be read: what there was of them is not known.
    pub unread: u8,
    /// Of what the gate let through something could not be read.
    pub faulted: u8,
    /// How often it was let through before and could not be read.
    pub tries: u8,
}

/// A stack that is being walked.
#[repr(C)]
pub struct Stack {
    pub walk: PythonWalk,
    pub head: StackHead,
    /// The frame that is next; 0: there is none.
    pub frame: u64,
    /// State of the thread; 0: it was not found.
    pub thread: u64,
    /// What has the version: the thread's interpreter, if it was read with the state; else 0.
    pub version_in: u64,
    /// What leads to its innermost frame, if it was read with the state; else 0.
    pub root: u64,
    /// Number of the thread as its process knows it.
    pub tid: u64,
    /// Frames that are left out count, too: a list in a circle ends.
    pub steps: u64,
    /// What is sent with each piece of the native stack.
    pub piece: PieceHead,
    /// The id without what the version spares.
    pub key: u64,
    /// [`mix`] of that, once it was read.
    pub spared: u64,
    pub has_spared: u64,
    /// What [`PythonWalk::version_of`] names, before that was read; 0: not known, or it does not tell.
    pub version: u64,
    /// What was found of the stack among those that were sent.
    pub sent: SentStack,
    /// Of the name that is read.
    pub string: StringHead,
    pub references: u64,
    /// Where `near` begins in the target's memory, and bytes of it that are there.
    pub near_at: u64,
    pub near_len: u64,
    /// A copy of memory near the frame: several frames mostly lie in it. Then of the top of the native stack.
    pub near: [u64; NEAR_WORDS],
    pub code: [u64; MAX_CODE_WORDS],
    pub frames: [RawFrame; MAX_STACK_FRAMES],
    /// By frame: address of its code's name.
    pub names: [u64; MAX_STACK_FRAMES],
}

/// Words that are copied at once.
pub const NEAR_WORDS: usize = 512;
