//! Values that packets of a writer leave out, because an earlier one had them.

use std::{collections::HashMap, rc::Rc};

use anyhow::{Result, bail};

use super::messages::{Defaults, Interned, InternedData};

/// Most bytes of names of all writers, with the memory to keep them.
const MAX_BYTES: usize = 256 << 20;
const ENTRY: usize = 64;

/// Most writers: each thread is one.
const MAX_SEQUENCES: usize = 1 << 16;

type Texts = HashMap<u64, Rc<str>, foldhash::quality::RandomState>;

/// The state of one writer.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    names: Texts,
    categories: Texts,
    pub(super) defaults: Option<Defaults>,
    /// Set if no packet is missing since the state was cleared.
    pub(super) is_whole: bool,
}

impl Sequence {
    pub(super) fn name(&self, iid: u64) -> Option<Rc<str>> {
        self.names.get(&iid).cloned()
    }

    pub(super) fn category(&self, iid: u64) -> Option<&str> {
        self.categories.get(&iid).map(|text| &**text)
    }
}

/// All writers, by number.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    sequences: HashMap<u32, Sequence, foldhash::quality::RandomState>,
    bytes: usize,
}

impl Sequences {
    pub(super) fn get(&mut self, number: u32) -> Result<&mut Sequence> {
        if self.sequences.len() >= MAX_SEQUENCES && !self.sequences.contains_key(&number) {
            bail!("it has more than {MAX_SEQUENCES} writers: not a profiler's trace");
        }
        Ok(self.sequences.entry(number).or_default())
    }

    /// Clears the state, as the writer begins anew.
    pub(super) fn clear(&mut self, number: u32) -> Result<()> {
        let sequence = self.get(number)?;
        let texts = sequence.names.values().chain(sequence.categories.values());
        let bytes: usize = texts.map(|text| text.len() + ENTRY).sum();
        *sequence = Sequence { is_whole: true, ..Sequence::default() };
        self.bytes = self.bytes.saturating_sub(bytes);
        Ok(())
    }

    pub(super) fn intern(&mut self, number: u32, data: &InternedData) -> Result<()> {
        let mut bytes = self.bytes;
        let sequence = self.get(number)?;
        let mut keep = |texts: &mut Texts, interned: &[Interned]| {
            for Interned { iid, name } in interned {
                let text: Rc<str> = String::from_utf8_lossy(name).into();
                bytes += text.len() + ENTRY;
                if let Some(old) = texts.insert(*iid, text) {
                    bytes = bytes.saturating_sub(old.len() + ENTRY);
                }
            }
        };
        keep(&mut sequence.names, &data.event_names);
        keep(&mut sequence.categories, &data.event_categories);
        self.bytes = bytes;
        if bytes > MAX_BYTES {
            bail!("its writers have more than {} MiB of names: not read further", MAX_BYTES >> 20);
        }
        Ok(())
    }
}
