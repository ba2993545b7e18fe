//! What a recording on the disk holds, by its reader.

use std::{collections::HashMap, path::Path};

use anyhow::Result;
use flow::decode::RecordView;
use ncclflow::{
    recording::{Damage, FOLDER, Item, Progress, RecordingReader, Selection},
    sinks::OutputDir,
};

#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) records: u64,
    pub(crate) by_probe: HashMap<u16, u64>,
    /// By the records' clock.
    pub(crate) last_ns: u64,
    /// It says itself that it is whole.
    pub(crate) has_end: bool,
    pub(crate) damage: Damage,
}

/// Reads the recording of the session in this folder.
pub(crate) fn read(output: &Path) -> Result<Contents> {
    let mut reader = RecordingReader::open(OutputDir::open(&output.join(FOLDER))?)?;
    let mut contents = Contents::default();
    let mut take = |item: Item<'_>| match item {
        Item::Record(record) => {
            contents.records += 1;
            if let Ok(view) = RecordView::new(record) {
                *contents.by_probe.entry(view.header.probe).or_default() += 1;
                contents.last_ns = contents.last_ns.max(view.header.ts_ns);
            }
        }
        Item::End(_) => contents.has_end = true,
        Item::Bindings(_) | Item::Event(_) => {}
    };
    while reader.read_next(&Selection::ALL, &mut take)? == Progress::Read {}
    contents.damage = reader.damage();
    Ok(contents)
}
