//! Returns of the exported functions, joined with their calls by thread.
//!
//! A call that communicates passes `ncclEnqueueCheck` before it returns, and no other call comes between on
//! its thread. Functions that do not communicate are probed at their entry. NCCL calls some of them itself
//! (`ncclSend` calls `ncclGroupEnd`, `ncclCommInitAll` too): a call inside of another call is left out, as
//! the program did not make it.
//!
//! Where ops are recorded, too, a call waits for its op elsewhere ([`JoinedCalls`]), before or after its
//! return.
//!
//! Not every call returns: the session ends before, a record is lost, an exception or `longjmp` passes
//! through. The stack tells which calls of the thread are then over: those that lie below the stack pointer
//! of a later entry or return.

use foldhash::HashMap;

use super::{
    api::{ApiOutput, ApiRecord},
    communicator::CommKey,
    flow::RECORD_BYTES,
    joined_calls::JoinedCalls,
};
use crate::{
    decode::{ApiEntryEvent, ApiReturnEvent, Origin},
    schema::Observed,
};
use nccl_library::nccl::{ApiFunction, Name};

/// Threads that are kept apart; a target that has more wants to fill our memory.
const MAX_THREADS: usize = 65_536;

/// Open calls of one thread. The kernel itself traces no more than 64 returns deep (`MAX_URETPROBE_DEPTH`).
const MAX_DEPTH: usize = 64;

/// Return of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The function that returned to the program.
    pub function: ApiFunction,
    /// Time from the call to the return, nanoseconds.
    pub host_ns: u64,
    /// Result that the function returned: `ncclSuccess` …
    pub result: Name,
}

/// A call of an exported function that does not communicate, or one that NCCL refused before it did.
#[derive(Clone, Debug)]
pub struct OtherCall {
    pub function: ApiFunction,
    /// Origin of the entry's record; of the return's where the entry was not seen.
    pub origin: Origin,
    /// Time from the entry to the return; `None`: one of the two was not seen.
    pub host_ns: Option<u64>,
    pub result: Option<Name>,
}

#[derive(Debug, Default)]
struct Thread {
    /// Communicating call that has not returned yet.
    pending: Option<Pending>,
    /// Entered functions that have not returned yet, the innermost last.
    open: Vec<Open>,
}

#[derive(Debug)]
struct Pending {
    ts_ns: u64,
    stack_pointer: u64,
    /// Communicator of the call and its number there, by which [`JoinedCalls`] knows it.
    held: Option<(CommKey, u64)>,
    /// The call itself, once it waits for nothing but its return.
    record: Option<Box<ApiRecord>>,
}

impl Pending {
    /// Gives out a call whose return was not seen.
    fn give_up(self, unreturned: &mut u64, out: &mut impl FnMut(ApiOutput)) {
        *unreturned += 1;
        if let Some(record) = self.record {
            out(ApiOutput::Call(record));
        }
    }
}

#[derive(Debug)]
struct Open {
    entry: ApiEntryEvent,
    /// NCCL called the function, inside of a call of the program.
    is_inner: bool,
}

impl Open {
    /// Gives out a call of the program as it is: its return was not seen.
    fn give_up(self, unreturned: &mut u64, out: &mut impl FnMut(ApiOutput)) {
        if !self.is_inner {
            *unreturned += 1;
            out(ApiOutput::Other(open_call(&self.entry)));
        }
    }
}

/// The open calls of every thread.
#[derive(Debug, Default)]
pub(super) struct Returns {
    threads: HashMap<(u32, u32), Thread>,
    /// Calls whose return was not seen.
    pub(super) unreturned: u64,
    /// Returns whose call was not seen.
    pub(super) uncalled: u64,
}

impl Returns {
    /// Returns about how many bytes of memory the calls take.
    pub(super) fn held_bytes(&self) -> usize {
        let of_thread = |thread: &Thread| {
            size_of::<Thread>()
                + thread.open.len() * size_of::<Open>()
                + usize::from(thread.pending.is_some()) * RECORD_BYTES
        };
        self.threads.values().map(of_thread).sum()
    }

    /// Begins a call: on `key`'s communicator, if that is known. [`Returns::joined`] gets it afterwards.
    pub(super) fn call(&mut self, record: &ApiRecord, key: Option<CommKey>, out: &mut impl FnMut(ApiOutput)) {
        let Some(thread) = thread(&mut self.threads, record.event.origin) else {
            self.unreturned += 1;
            return;
        };
        let pending = Pending {
            ts_ns: record.event.origin.ts_ns,
            stack_pointer: record.event.stack_pointer,
            held: key.map(|key| (key, record.number)),
            record: None,
        };
        if let Some(before) = thread.pending.replace(pending) {
            before.give_up(&mut self.unreturned, out);
        }
    }

    /// Takes a call that waits for nothing but its return.
    pub(super) fn joined(&mut self, record: Box<ApiRecord>, out: &mut impl FnMut(ApiOutput)) {
        let Origin { tgid, tid, ts_ns, .. } = record.event.origin;
        let pending = self.threads.get_mut(&(tgid, tid)).and_then(|thread| thread.pending.as_mut());
        match pending.filter(|pending| pending.ts_ns == ts_ns && pending.record.is_none()) {
            Some(pending) => pending.record = Some(record),
            // The call was given up.
            None => out(ApiOutput::Call(record)),
        }
    }

    pub(super) fn entry(&mut self, event: ApiEntryEvent, out: &mut impl FnMut(ApiOutput)) {
        let Some(thread) = thread(&mut self.threads, event.origin) else {
            self.unreturned += 1;
            return out(ApiOutput::Other(open_call(&event)));
        };
        let over = |open: &Open| {
            let (before, now) = (open.entry.stack_pointer, event.stack_pointer);
            before < now || (before == now && open.entry.function == event.function)
        };
        while thread.open.len() >= MAX_DEPTH || thread.open.last().is_some_and(over) {
            let Some(open) = thread.open.pop() else { break };
            open.give_up(&mut self.unreturned, out);
        }
        let in_call = |pending: &Pending| event.stack_pointer <= pending.stack_pointer;
        let is_inner = !thread.open.is_empty() || thread.pending.as_ref().is_some_and(in_call);
        thread.open.push(Open { entry: event, is_inner });
    }

    pub(super) fn returned(
        &mut self,
        event: ApiReturnEvent,
        calls: &mut JoinedCalls,
        out: &mut impl FnMut(ApiOutput),
    ) {
        let Some(thread) = thread(&mut self.threads, event.origin) else {
            self.uncalled += 1;
            return;
        };
        if event.function.communicates()
            && let Some(pending) = thread.pending.take()
        {
            let returned = Returned {
                function: event.function,
                host_ns: event.origin.ts_ns.saturating_sub(pending.ts_ns),
                result: event.result,
            };
            match (pending.record, pending.held) {
                (Some(mut record), _) => {
                    record.returned = Observed::Known(returned);
                    out(ApiOutput::Call(record));
                }
                (None, Some((key, number))) => calls.returned(&key, number, returned),
                (None, None) => {}
            }
            return;
        }
        let Some(at) = thread.open.iter().rposition(|open| is_return_of(&event, &open.entry)) else {
            self.uncalled += 1;
            // An error goes out, even that of a call which NCCL refused.
            if event.is_error {
                let ApiReturnEvent { origin, function, result, .. } = event;
                out(ApiOutput::Other(OtherCall { function, origin, host_ns: None, result: Some(result) }));
            }
            return;
        };
        for open in thread.open.drain(at + 1..).rev() {
            open.give_up(&mut self.unreturned, out);
        }
        if let Some(Open { entry, is_inner: false }) = thread.open.pop() {
            let host_ns = event.origin.ts_ns.saturating_sub(entry.origin.ts_ns);
            let call = OtherCall { host_ns: Some(host_ns), result: Some(event.result), ..open_call(&entry) };
            out(ApiOutput::Other(call));
        }
    }

    /// Gives out the calls that have not returned, in the order of time.
    pub(super) fn finish(&mut self, out: &mut impl FnMut(ApiOutput)) {
        let mut left: Vec<(u64, ApiOutput)> = Vec::new();
        for thread in std::mem::take(&mut self.threads).into_values() {
            let pending = thread.pending.and_then(|pending| pending.record);
            left.extend(pending.map(|record| (record.event.origin.ts_ns, ApiOutput::Call(record))));
            let open = thread.open.iter().filter(|open| !open.is_inner).map(|open| &open.entry);
            left.extend(open.map(|open| (open.origin.ts_ns, ApiOutput::Other(open_call(open)))));
        }
        self.unreturned += left.len() as u64;
        left.sort_by_key(|(ts_ns, _)| *ts_ns);
        for (_, output) in left {
            out(output);
        }
    }
}

fn thread(threads: &mut HashMap<(u32, u32), Thread>, origin: Origin) -> Option<&mut Thread> {
    let key = (origin.tgid, origin.tid);
    if threads.len() >= MAX_THREADS && !threads.contains_key(&key) {
        return None;
    }
    Some(threads.entry(key).or_default())
}

/// Tells whether the return is that of the entry, by function and stack pointer. On x86-64 the return address
/// is off the stack when the return is seen; on aarch64 it never was on it.
fn is_return_of(event: &ApiReturnEvent, open: &ApiEntryEvent) -> bool {
    open.function == event.function
        && (event.stack_pointer == open.stack_pointer
            || event.stack_pointer == open.stack_pointer.wrapping_add(8))
}

fn open_call(open: &ApiEntryEvent) -> OtherCall {
    OtherCall { function: open.function, origin: open.origin, host_ns: None, result: None }
}

#[cfg(test)]
mod tests;
