//! Walks: what a probe collects by following lists in the target's memory, as data.
//!
//! At one hit the kernel side follows the lists that a [`Walk`] describes and sends a record for every node.
//! What it copies of a node is again a [`super::FetchPlan`], stored beside the others in the map `PLANS` and
//! counted beside them in `COUNTERS`, so that a loss is counted where it happens. Last it sends the probe's
//! own record, which says how many nodes there were: without it the walk is not whole.

use super::{
    plan::STACK_POINTER_SLOT,
    record::{RECORD_CLASSES, RecordHeader},
};

/// Lists that one walk can follow.
pub const MAX_QUEUES: usize = 6;

/// Gates that one walk can have.
pub const MAX_GATES: usize = 4;

/// Values of a tag that have plans of their own.
pub const GATE_TAGS: usize = 16;

/// Nodes of one list that are followed at one hit; of a longer one the rest is cut, and [`CUT`] says so.
pub const MAX_NODES: u32 = 4096;

/// Rows that one gate can send.
pub const MAX_ROWS: u32 = 64;

/// Words of a plan that a walk runs. Slots `0..` start with what the walk gives, the others as 0.
pub const PART_SLOTS: usize = 16;

/// What a walk gives the plan of a node: the node's address, its number in the list.
pub const NODE_GIVEN: u8 = 2;

/// What a walk gives the plan of a row: the row's address, its number, the tag, the first word of the table's
/// identity.
pub const ROW_GIVEN: u8 = 4;

/// Records that one item of the buffer can hold: nodes of a walk, and last the probe's own. Each begins at a
/// multiple of [`PACKED_BYTES`]; the length of the first that is not there is 0. An item of this size is
/// always such a pack.
pub const PACKED: usize = 3;

/// Room of each record of a pack: that of the smallest class.
pub const PACKED_BYTES: usize = RECORD_CLASSES[0].size;

/// Bytes of a pack.
pub const PACK_BYTES: usize = PACKED * PACKED_BYTES;

/// A node's record begins with its address, and where [`Queue::copied`] says so its bytes follow here.
pub const NODE_BYTES_AT: usize = size_of::<RecordHeader>() + 8;

/// In [`Queue::count`]: one node.
pub const ONE_NODE: u8 = u8::MAX;

/// Set in the number of nodes of a list that went on after [`MAX_NODES`], or whose next node could not be
/// read; of all lists where it could not be read where they begin.
pub const CUT: u64 = 1 << 63;

/// "Not there", in a field that names a place in a node.
pub const NOWHERE: u16 = u16::MAX;

/// A list in the target's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Queue {
    /// The plan that is run for each node; its index in `PLANS`.
    pub plan: u32,
    /// Bytes from one node to the next if they lie in a row; 0 if each points to the next.
    pub stride: u32,
    /// Where a node has the address of the next.
    pub next_at: u16,
    /// Slot of the head plan with the address of the first node; 0 there: no nodes.
    pub head: u8,
    /// Slot with the number of nodes, if they lie in a row, or [`ONE_NODE`].
    pub count: u8,
    /// Slot that is 0 where the list is not to be followed. [`super::STACK_POINTER_SLOT`] never is.
    pub when: u8,
    pub first_gate: u8,
    pub n_gates: u8,
    /// Slot that is 0 where the list's gates are to be left out.
    pub gates_when: u8,
    /// Bytes of a node that its record has at [`NODE_BYTES_AT`]: what the walk needs of them it takes from
    /// there, without reading the target's memory again.
    pub copied: u16,
    pub padding: u16,
}

/// Plans that are run for each row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Fan {
    pub first_plan: u16,
    pub n_plans: u8,
    /// Which of [`Walk::n_rows_at`] says how many rows there are.
    pub rows: u8,
}

/// What is sent once for all nodes that are alike: rows of a table beside the lists, by a tag in the node.
/// The map `SEEN` keeps which have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Gate {
    /// The gate counts only for nodes that have the byte `only` here, unless [`NOWHERE`].
    pub only_at: u16,
    pub only: u16,
    /// The tag: a number of 1 or 4 bytes.
    pub tag_at: u16,
    pub tag_len: u16,
    /// Byte with the number of rows that the node means, and with the first of them: row `(first + i) mod
    /// modulo`, where
    /// `modulo` is a power of two in another byte. Only with a first row: that one. With neither: all rows of the table.
    pub rows_at: u16,
    pub first_row_at: u16,
    pub modulo_at: u16,
    /// 1: rows are numbered by bit-reversed `i`.
    pub reversed: u16,
    /// By tag; only the first if `one_fan` is 1.
    pub one_fan: u32,
    pub fans: [Fan; GATE_TAGS],
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            only_at: NOWHERE,
            only: 0,
            tag_at: 0,
            tag_len: 1,
            rows_at: NOWHERE,
            first_row_at: NOWHERE,
            modulo_at: NOWHERE,
            reversed: 0,
            one_fan: 0,
            fans: [Fan::default(); GATE_TAGS],
        }
    }
}

/// Bytes of [`Short::heads_len`] at most.
pub const SHORT_HEADS: usize = 192;

/// Copies that the short way's own record can have.
pub const SHORT_COPIES: usize = 3;

/// What a [`super::StepOp::EmitAndCopy`] or a [`super::StepOp::Copy`] does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ShortCopy {
    /// Offset of the bytes from the address that is copied from.
    pub imm: u32,
    /// Place of the first byte in the record.
    pub at: u16,
    pub len: u16,
}

/// What the most frequent launch takes: one node in each of the first two lists, none in the others, and
/// nothing that was not sent before. The walk finds the same step by step, in twice the time; where this does
/// not apply, nothing is sent, and the walk is gone.
///
/// The table and the struct with the lists are arguments of the probed function; both nodes have their bytes
/// at [`NODE_BYTES_AT`], both are chained, and the first has one gate, with a tag of one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Short {
    /// Where the heads of all lists are in the struct with the lists, with what lies between them.
    pub heads_at: u32,
    /// Bytes of that; 0: there is no short way.
    pub heads_len: u16,
    /// Numbers of the arguments: the table, and the struct with the lists.
    pub args: [u8; 2],
    /// Which words of what is read are the heads of the first two lists.
    pub heads: [u8; 2],
    /// Those that are 0 where nothing else is to be followed.
    pub empty: [u8; 2],
    /// Bytes of the records: of both nodes, and of the probe's own.
    pub record_len: [u16; 3],
    /// Where a node has the address of the next, by list.
    pub next_at: [u16; 2],
    /// Byte of the first node that has its gate's tag, and the tags whose gate lets nothing through: a bit
    /// each.
    pub tag_at: u16,
    pub free_tags: u16,
    /// Where the probe's own record has the second word of the table's identity.
    pub identity_at: u16,
    /// Which of `own` are from the struct with the lists, and not from the table; a bit each.
    pub own_of_lists: u8,
    /// Which of `own` have the address that they are from in the 8 bytes before; a bit each.
    pub own_emits: u8,
    pub padding: [u8; 2],
    /// Of the nodes, whose address stands before the bytes.
    pub nodes: [ShortCopy; 2],
    /// Of the probe's own record; one of length 0 is none.
    pub own: [ShortCopy; SHORT_COPIES],
}

/// A walk. That of the probe with cookie `c` is element `c` of the map `WALKS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Walk {
    /// The plan that finds the lists; run first, without a record. Its index in `PLANS`.
    pub head_plan: u32,
    /// 0 where there is no walk.
    pub n_queues: u32,
    /// Bytes of a row of the table.
    pub row_size: u32,
    /// Row 0, counted from the first word of the table's identity.
    pub rows_at: u32,
    /// `int`s with the number of rows, for two kinds of fans, counted from there too.
    pub n_rows_at: [u32; 2],
    /// Slots of the head plan with what tells one table from another: an address, and a number that changes
    /// when the address is used anew.
    pub identity: [u8; 2],
    /// Where the probe's own record, which is of the smallest class, has the number of nodes that were found:
    /// a word for each of [`MAX_QUEUES`] lists. Its plan, run after the walk, has [`PART_SLOTS`] words, of
    /// which the first start as those of a probe's.
    pub nodes_at: u16,
    pub padding: [u8; 4],
    pub short: Short,
    pub queues: [Queue; MAX_QUEUES],
    pub gates: [Gate; MAX_GATES],
}

impl Default for Walk {
    fn default() -> Self {
        Self {
            head_plan: 0,
            n_queues: 0,
            row_size: 0,
            rows_at: 0,
            n_rows_at: [0; 2],
            identity: [0; 2],
            nodes_at: 0,
            padding: [0; 4],
            short: Short::default(),
            queues: [Queue::default(); MAX_QUEUES],
            gates: [Gate::default(); MAX_GATES],
        }
    }
}

/// In the map `SEEN`: it was sent whole. Above that: it was sent, with something that could not be read, so many times,
/// and is sent again until that is [`MAX_TRIES`]. A page that is not in memory mostly is at the next launch.
pub const SENT: u32 = 1;

/// How often something is sent that cannot be read.
pub const MAX_TRIES: u32 = 8;

/// Key of the map `SEEN`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Seen {
    pub identity: [u64; 2],
    pub tgid: u32,
    /// The probe's cookie.
    pub cookie: u32,
    pub gate: u32,
    pub tag: u32,
    /// First row and number of rows, where the node names them; 0: all that there are.
    pub rows: u32,
    pub padding: u32,
}

const _: () = {
    assert!(size_of::<Queue>() == 20);
    assert!(size_of::<Gate>() == 20 + GATE_TAGS * 4);
    assert!(size_of::<Short>() == 72);
    assert!(
        size_of::<Walk>() == 32 + size_of::<Short>() + MAX_QUEUES * 20 + MAX_GATES * (20 + GATE_TAGS * 4)
    );
    assert!(size_of::<Seen>() == 40);
    assert!(
        PACK_BYTES > RECORD_CLASSES[1].size && PACK_BYTES + 8 <= RECORD_CLASSES[2].size,
        "told by its size"
    );
    assert!(STACK_POINTER_SLOT as usize + 4 < PART_SLOTS, "a walk's own plan has words of its own");
};
