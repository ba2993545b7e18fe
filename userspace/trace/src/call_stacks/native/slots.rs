//! Places of return addresses on the stack, by which the kernel side tells native stacks apart.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
};

use ncclflow_common::{MAX_SLOT_LISTS, MAX_SLOTS, ReturnSlots};

pub(crate) type StoreSlots = dyn FnMut(u64, &ReturnSlots) -> bool + Send;

/// Function that stores a list for the kernel side, and returns whether it is stored.
pub(crate) struct SlotSink(pub(crate) Box<StoreSlots>);

impl fmt::Debug for SlotSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlotSink")
    }
}

/// Lists that the kernel side has.
#[derive(Debug)]
pub(super) struct Slots {
    sink: SlotSink,
    lists: HashMap<u64, BTreeSet<u16>>,
}

impl Slots {
    pub(super) fn new(sink: SlotSink) -> Self {
        Self { sink, lists: HashMap::new() }
    }

    /// Adds places at which stacks of this key have return addresses. Of too many, those of the innermost
    /// frames are kept.
    pub(super) fn add(&mut self, key: u64, slots: &[u16]) {
        if self.lists.len() >= MAX_SLOT_LISTS as usize {
            // The kernel side forgets, too.
            self.lists.clear();
        }
        let list = self.lists.entry(key).or_default();
        let before = list.len();
        list.extend(slots);
        while list.len() > MAX_SLOTS {
            list.pop_last();
        }
        if list.len() == before && before > 0 {
            return;
        }
        let mut stored = ReturnSlots { n: 0, reserved: 0, at: [0; MAX_SLOTS] };
        for (place, slot) in stored.at.iter_mut().zip(list.iter()) {
            *place = *slot;
            stored.n += 1;
        }
        if !(self.sink.0)(key, &stored) {
            self.lists.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn lists_grow_and_are_stored_when_they_do() {
        type Stored = Vec<(u64, Vec<u16>)>;
        let stored: Arc<Mutex<Stored>> = Arc::default();
        let seen = Arc::clone(&stored);
        let mut slots = Slots::new(SlotSink(Box::new(move |key, list| {
            let at = list.at.get(..list.n as usize).unwrap().to_vec();
            seen.lock().unwrap().push((key, at));
            true
        })));
        slots.add(1, &[0, 5]);
        slots.add(1, &[5, 0]);
        slots.add(1, &[0, 3]);
        slots.add(2, &[]);
        let many: Vec<u16> = (0..100).collect();
        slots.add(2, &many);
        let stored = stored.lock().unwrap();
        assert_eq!(stored[..3], [(1, vec![0, 5]), (1, vec![0, 3, 5]), (2, vec![])]);
        assert_eq!(stored[3], (2, (0..60).collect::<Vec<u16>>()));
        assert_eq!(stored.len(), 4);
    }
}
