//! What a recording on the disk holds, by its reader.

use std::path::Path;

use anyhow::Result;
use flow::decode::RecordView;
use ncclflow_common::LOSS_MARK;
use recording::{
    format::{Damage, FOLDER, Item, Progress, RecordingReader, Selection},
    sinks::OutputDir,
};

#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) records: u64,
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
            let header = RecordView::new(record).map(|view| view.header).unwrap_or_default();
            // A mark says that records are missing, and is none.
            if header.probe != LOSS_MARK {
                contents.records += 1;
                contents.last_ns = contents.last_ns.max(header.ts_ns);
            }
        }
        Item::End(_) => contents.has_end = true,
        Item::Bindings(_) | Item::Event(_) | Item::Gap => {}
    };
    while reader.read_next(&Selection::ALL, &mut take)? == Progress::Read {}
    contents.damage = reader.damage();
    Ok(contents)
}
