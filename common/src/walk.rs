//! Walks: descriptions, as data, of what a probe collects by following lists in the target's memory.
//!
//! At one hit the kernel side follows the lists that a [`Walk`] describes and sends a record for every node.
//! What is copied of a node is again a [`super::FetchPlan`], stored beside the others in the map `PLANS` and
//! counted beside them in `COUNTERS`, so that a loss is counted where it happens. The probe's own record
//! comes last and says how many nodes there were: without it the walk is not whole.

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

/// Nodes of one list that are followed at one hit; a longer list is cut, and [`CUT`] says so.
pub const MAX_NODES: u32 = 4096;

/// Rows that one gate can send.
pub const MAX_ROWS: u32 = 64;

/// Words of a plan that a walk runs. Slots `0..` start with the values that the walk gives, the others with
/// 0.
pub const PART_SLOTS: usize = 16;

/// Number of words that a walk gives the plan of a node: the node's address, and its number in the list.
pub const NODE_GIVEN: u8 = 2;

/// Number of words that a walk gives the plan of a row: the row's address, its number, the tag, and the first
/// word of the table's identity.
pub const ROW_GIVEN: u8 = 4;

/// Records that one item of the buffer can hold: nodes of a walk, and last the probe's own. Each begins at a
/// multiple of [`PACKED_BYTES`]; a length of 0 ends them. An item of this size is always such a pack.
pub const PACKED: usize = 3;

/// Bytes reserved for each record of a pack: the size of the smallest class.
pub const PACKED_BYTES: usize = RECORD_CLASSES[0].size;

/// Bytes of a pack.
pub const PACK_BYTES: usize = PACKED * PACKED_BYTES;

/// Place in a node's record of the bytes that [`Queue::copied`] counts. The node's address stands before
/// them.
pub const NODE_BYTES_AT: usize = size_of::<RecordHeader>() + 8;

/// Value of [`Queue::count`] for a list of one node.
pub const ONE_NODE: u8 = u8::MAX;

/// Bit in the number of nodes of a list that went on after [`MAX_NODES`], or whose next node could not be
/// read. All lists have it if their beginnings could not be read.
pub const CUT: u64 = 1 << 63;

/// Value of a field that names a place in a node, for "not there".
pub const NOWHERE: u16 = u16::MAX;

/// A list in the target's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Queue {
    /// Index in `PLANS` of the plan that is run for each node.
    pub plan: u32,
    /// Bytes from one node to the next if the nodes lie in a row; 0 if each points to the next.
    pub stride: u32,
    /// Offset in a node of the pointer to the next.
    pub next_at: u16,
    /// Slot of the head plan with the address of the first node; an address of 0: no nodes.
    pub head: u8,
    /// Slot with the number of nodes, if they lie in a row, or [`ONE_NODE`].
    pub count: u8,
    /// Slot that is 0 where the list is not to be followed. [`super::STACK_POINTER_SLOT`] never is.
    pub when: u8,
    pub first_gate: u8,
    pub n_gates: u8,
    /// Slot that is 0 where the list's gates are to be left out.
    pub gates_when: u8,
    /// Bytes of a node that its record has at [`NODE_BYTES_AT`]. The walk takes the fields that it needs from
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
    /// Index of the number of rows in [`Walk::n_rows_at`].
    pub rows: u8,
}

/// Description of rows that are sent once for all nodes that are alike: rows of a table beside the lists,
/// chosen by a tag in the node. The map `SEEN` keeps which have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Gate {
    /// Place of a byte that must be `only` for the gate to count for a node; [`NOWHERE`]: it counts for all.
    pub only_at: u16,
    pub only: u16,
    /// Place and length of the tag: a number of 1 or 4 bytes.
    pub tag_at: u16,
    pub tag_len: u16,
    /// Places of bytes in the node: the number of rows that it means, the first of them, and `modulo`, a
    /// power of two. Row `i` is `(first + i) mod modulo`. A first row alone means that row; neither means all
    /// rows of the table.
    pub rows_at: u16,
    pub first_row_at: u16,
    pub modulo_at: u16,
    /// 1 if rows are numbered by bit-reversed `i`.
    pub reversed: u16,
    /// 1 if only the first of `fans` is used; else they are chosen by the tag.
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

/// Copies that the probe's own record can have in the short way.
pub const SHORT_COPIES: usize = 3;

/// A [`super::StepOp::EmitAndCopy`] or a [`super::StepOp::Copy`], without its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ShortCopy {
    /// Offset of the bytes from the address given.
    pub imm: u32,
    /// Place of the first byte in the record.
    pub at: u16,
    pub len: u16,
}

/// A short way for the most frequent launch: one node in each of the first two lists, none in the others, and
/// nothing to send that was not sent before. The walk finds the same step by step, in twice the time. Where
/// the short way does not apply, it sends nothing, and the walk is taken.
///
/// The table and the struct with the lists are arguments of the probed function. Both nodes have their bytes
/// at [`NODE_BYTES_AT`], both are chained, and the first has one gate, with a tag of one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Short {
    /// Offset, in the struct with the lists, of the part that has the heads of all lists.
    pub heads_at: u32,
    /// Bytes of that part; 0: there is no short way.
    pub heads_len: u16,
    /// Numbers of the arguments: the table, and the struct with the lists.
    pub args: [u8; 2],
    /// Indices of the words of that part that are the heads of the first two lists.
    pub heads: [u8; 2],
    /// Indices of the words of that part that are 0 if nothing else is to be followed.
    pub empty: [u8; 2],
    /// Bytes of the records: of the two nodes, and of the probe's own.
    pub record_len: [u16; 3],
    /// Offset in a node of the pointer to the next, by list.
    pub next_at: [u16; 2],
    /// Place in the first node of its gate's tag, a byte; and, a bit each, the tags for which the gate lets
    /// nothing through.
    pub tag_at: u16,
    pub free_tags: u16,
    /// Place in the probe's own record of the second word of the table's identity.
    pub identity_at: u16,
    /// Bit mask: which of `own` are copied from the struct with the lists, and not from the table.
    pub own_of_lists: u8,
    /// Bit mask: which of `own` have the address that they are copied from in the 8 bytes before.
    pub own_emits: u8,
    pub padding: [u8; 2],
    /// Copies of the nodes, each behind the node's address.
    pub nodes: [ShortCopy; 2],
    /// Copies of the probe's own record; a length of 0 means none.
    pub own: [ShortCopy; SHORT_COPIES],
}

/// A walk. The walk of the probe with cookie `c` is element `c` of the map `WALKS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Walk {
    /// Index in `PLANS` of the plan that finds the lists; run first, without a record.
    pub head_plan: u32,
    /// Lists of the walk; 0 if there is no walk.
    pub n_queues: u32,
    /// Bytes of a row of the table.
    pub row_size: u32,
    /// Offset of row 0 from the table's address, which is the first word of its identity.
    pub rows_at: u32,
    /// Offsets, from there too, of `int`s with the number of rows, for two kinds of fans.
    pub n_rows_at: [u32; 2],
    /// Slots of the head plan that tell one table from another: an address, and a number that changes when
    /// the address is used anew.
    pub identity: [u8; 2],
    /// Place in the probe's own record, which is of the smallest class, of the numbers of nodes that were
    /// found: a word for each of [`MAX_QUEUES`] lists. The record's plan, run after the walk, has
    /// [`PART_SLOTS`] words, the first of which start as those of a probe.
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

/// Value in the map `SEEN` of rows that were sent whole. `SENT + n`: they were sent `n` times with something
/// that could not be read, and are sent again until `n` is [`MAX_TRIES`]. A page that is not in memory mostly
/// is at the next launch.
pub const SENT: u32 = 1;

/// Times that something is sent of which a part cannot be read.
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
    /// First row (above 8 bits) and number of rows, if the node names them; 0: all rows.
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
