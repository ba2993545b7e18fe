//! Entries of the ring.

use crate::{
    Offsets, Unknown,
    containers::{Fetch, Fetched, numbers, small_vector, string, text, vector_place},
    memory::Record,
    traceback::Stack,
};

/// Most elements of a list of tensors, and of all their dimensions together.
const MAX_TENSORS: u32 = 16_384;
const MAX_SIZES: u32 = 65_536;
/// Unix times in ns between which an entry can have been made: 2020 and 2100.
const MADE: std::ops::Range<i64> = 1_577_836_800_000_000_000..4_102_444_800_000_000_000;

/// Progress of an operation, as far as torch has noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Called; torch has noticed no more.
    Scheduled,
    Started,
    Completed,
}

/// An operation that torch recorded. The names are those of torch's own dump.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Number of the entry, counting all that the ring has had.
    pub record_id: u64,
    pub pg_id: u64,
    pub group_name: String,
    pub group_description: String,
    /// Number of the group's collectives so far, this one included.
    pub collective_seq: u64,
    /// Number of the group's sends and receives so far, this one included.
    pub p2p_seq: u64,
    pub op_id: u64,
    /// Name such as `nccl:all_reduce`
    pub profiling_name: String,
    /// Unix time in ns.
    pub time_created_ns: i64,
    /// 2.5 and later
    pub timeout_ms: Option<i64>,
    pub is_p2p: bool,
    /// Time on the GPU in ms, where torch times its collectives.
    pub duration_ms: Option<f32>,
    /// Unix times in ns at which torch's watchdog noticed start and end: it looks every 100 ms.
    pub time_started_ns: Option<i64>,
    pub time_completed_ns: Option<i64>,
    pub input_sizes: Vec<Vec<i64>>,
    /// Element types, for [`dtype_name`](crate::dtype_name).
    pub input_dtypes: Vec<u8>,
    pub output_sizes: Vec<Vec<i64>>,
    pub output_dtypes: Vec<u8>,
    /// `pthread_self()` of the calling thread (2.8 and later).
    pub thread_id: Option<u64>,
    pub thread_name: Option<String>,
    /// True if torch's watchdog is done with the entry. An entry that is retired and not completed has timed
    /// out.
    pub retired: bool,
    /// Python's frames, innermost first; `None` if they are not known.
    pub frames: Option<Stack>,
}

impl Entry {
    /// Returns the state as torch's own dump states it.
    pub fn state(&self) -> State {
        if self.time_completed_ns.is_some() {
            State::Completed
        } else if self.time_started_ns.is_some() {
            State::Started
        } else {
            State::Scheduled
        }
    }
}

const WRONG: Unknown = Unknown::Contradiction("an entry of the ring cannot be one");

/// Containers of one entry.
const PARTS: usize = 9;

/// Asks for everything that an entry has elsewhere, in this order.
pub(crate) fn ask(fetch: &mut Fetch, offsets: &Offsets, record: &Record) -> Result<(), Unknown> {
    let entry = &offsets.entry;
    let empty = crate::containers::Place::Here(Vec::new());
    let text = |offset| string(record, offset, offsets.cxx11);
    let parts: [_; PARTS] = [
        text(entry.group_name)?,
        text(entry.group_description)?,
        text(entry.profiling_name)?,
        entry.thread_name.map_or(Ok(empty), text)?,
        small_vector(record, entry.input_dims, entry.dim_bytes, MAX_TENSORS)?,
        vector_place(record, entry.input_dtypes, 1, MAX_TENSORS as usize)?,
        small_vector(record, entry.output_dims, entry.dim_bytes, MAX_TENSORS)?,
        vector_place(record, entry.output_dtypes, 1, MAX_TENSORS as usize)?,
        small_vector(record, entry.sizes, 8, MAX_SIZES)?,
    ];
    for part in parts {
        fetch.ask(part);
    }
    Ok(())
}

/// Returns the part of the fetched elements that belongs to the entry `number`.
pub(crate) fn parts(fetched: &Fetched, number: usize) -> Option<&[Option<Vec<u8>>]> {
    fetched.get(number.checked_mul(PARTS)?..)?.get(..PARTS)
}

/// Makes an entry of its struct and of the elements that were fetched for it.
pub(crate) fn entry(offsets: &Offsets, record: &Record, parts: &[Option<Vec<u8>>]) -> Result<Entry, Unknown> {
    let layout = &offsets.entry;
    let [
        Some(name),
        Some(description),
        Some(profiling_name),
        Some(thread_name),
        Some(input_dims),
        Some(input_dtypes),
        Some(output_dims),
        Some(output_dtypes),
        Some(sizes),
    ] = parts
    else {
        return Err(WRONG);
    };
    let time_created_ns = record.i64(layout.time_created);
    let mut sizes = numbers(sizes, 8).into_iter();
    let input_sizes = shapes(&numbers(input_dims, layout.dim_bytes), &mut sizes).ok_or(WRONG)?;
    let output_sizes = shapes(&numbers(output_dims, layout.dim_bytes), &mut sizes).ok_or(WRONG)?;
    let fits = MADE.contains(&time_created_ns)
        && sizes.next().is_none()
        && input_dtypes.len() == input_sizes.len()
        && output_dtypes.len() == output_sizes.len()
        && !name.is_empty()
        && !profiling_name.is_empty();
    if !fits {
        return Err(WRONG);
    }
    Ok(Entry {
        record_id: record.u64(layout.id),
        pg_id: record.u64(layout.pg_id),
        group_name: text(name),
        group_description: text(description),
        collective_seq: record.u64(layout.collective_seq),
        p2p_seq: record.u64(layout.p2p_seq),
        op_id: record.u64(layout.op_id),
        profiling_name: text(profiling_name),
        time_created_ns,
        timeout_ms: layout.timeout_ms.map(|at| record.i64(at)),
        is_p2p: record.bool(layout.is_p2p).ok_or(WRONG)?,
        duration_ms: record.optional_f32(layout.duration)?,
        time_started_ns: record.optional_i64(layout.time_started)?,
        time_completed_ns: record.optional_i64(layout.time_completed)?,
        input_sizes,
        input_dtypes: input_dtypes.clone(),
        output_sizes,
        output_dtypes: output_dtypes.clone(),
        thread_id: layout.thread_id.map(|at| record.u64(at)),
        thread_name: layout.thread_name.map(|_| text(thread_name)),
        retired: record.bool(layout.retired).ok_or(WRONG)?,
        frames: None,
    })
}

/// Splits sizes into those of tensors with so many dimensions each.
fn shapes(dims: &[i64], sizes: &mut impl Iterator<Item = i64>) -> Option<Vec<Vec<i64>>> {
    let shape = |dims: &i64| {
        let dims = usize::try_from(*dims).ok().filter(|dims| *dims <= 64)?;
        let shape: Vec<i64> = sizes.by_ref().take(dims).collect();
        (shape.len() == dims && shape.iter().all(|size| *size >= 0)).then_some(shape)
    };
    dims.iter().map(shape).collect()
}
