//! Entries of the ring.

use std::{collections::HashMap, sync::Arc};

use cpython::Record;

use crate::{
    Offsets, Unknown,
    containers::{Fetch, Fetched, numbers, small_vector, string, text, vector_place},
    dtype::dtype_name,
    flight_recorder::{Entry, State},
    memory::optional,
};

/// Most elements of a list of tensors, and of all their dimensions together.
const MAX_TENSORS: u32 = 16_384;
const MAX_SIZES: u32 = 65_536;
/// Unix times in ns between which an entry can have been made: 2020 and 2100.
const MADE: std::ops::Range<i64> = 1_577_836_800_000_000_000..4_102_444_800_000_000_000;

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

/// Names that many entries share.
pub(crate) type Names = HashMap<Vec<u8>, Arc<str>>;

/// Makes an entry of its struct and of the elements that were fetched for it. Its frames are not known yet.
pub(crate) fn entry(
    offsets: &Offsets,
    record: &Record,
    parts: &[Option<Vec<u8>>],
    names: &mut Names,
) -> Result<Entry, Unknown> {
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
    let mut shared = |name: &Vec<u8>| {
        let known = names.entry(name.clone()).or_insert_with(|| text(name).into());
        Arc::clone(known)
    };
    let dtypes = |dtypes: &[u8]| dtypes.iter().map(|dtype| dtype_name(*dtype).to_owned()).collect();
    let time = |at| optional(record, at, 8, || record.i64(at));
    let (started, completed) = (time(layout.time_started)?, time(layout.time_completed)?);
    Ok(Entry {
        record_id: record.u64(layout.id),
        pg_id: record.u64(layout.pg_id),
        process_group: [name, description].map(&mut shared),
        collective_seq_id: record.u64(layout.collective_seq),
        p2p_seq_id: record.u64(layout.p2p_seq),
        op_id: record.u64(layout.op_id),
        profiling_name: text(profiling_name),
        input_sizes,
        input_dtypes: dtypes(input_dtypes),
        output_sizes,
        output_dtypes: dtypes(output_dtypes),
        state: match (started, completed) {
            (_, Some(_)) => State::Completed,
            (Some(_), None) => State::Started,
            (None, None) => State::Scheduled,
        },
        time_created_ns,
        time_discovered_started_ns: started,
        time_discovered_completed_ns: completed,
        duration_ms: optional(record, layout.duration, 4, || f32::from_bits(record.u32(layout.duration)))?,
        timeout_ms: layout.timeout_ms.map(|at| record.i64(at)),
        is_p2p: record.bool(layout.is_p2p).ok_or(WRONG)?,
        retired: record.bool(layout.retired).ok_or(WRONG)?,
        thread_id: layout.thread_id.map(|at| record.u64(at)),
        thread_name: layout.thread_name.map(|_| text(thread_name)),
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
