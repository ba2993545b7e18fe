//! A recording that is read into memory.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result};
use flow::{
    decode::{Event, RecordView},
    recording::{Batch, Binding, Session},
};
use recording::{
    format::{Item, Progress, RecordingReader, Selection},
    sinks::OutputDir,
};

#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) session: Session,
    pub(crate) bindings: Vec<Binding>,
    /// Batches as the drain makes them, by blocks.
    pub(crate) blocks: Vec<Vec<Arc<Batch>>>,
}

impl Recorded {
    pub(crate) fn read(recording: &Path) -> Result<Self> {
        let directory = OutputDir::open(recording).and_then(RecordingReader::open);
        let mut reader = directory.with_context(|| format!("reading `{}`", recording.display()))?;
        let (mut bindings, mut blocks) = (Vec::new(), Vec::new());
        loop {
            let (mut block, mut batch) = (Vec::new(), Batch::default());
            let mut take = |item: Item<'_>| match item {
                Item::Bindings(new) => bindings.extend_from_slice(new),
                Item::Record(record) => {
                    if batch.is_full() {
                        block.push(Arc::new(std::mem::take(&mut batch)));
                    }
                    batch.push(record);
                }
                Item::Event(_) | Item::End(_) | Item::Gap => {}
            };
            let progress = reader.read_next(&Selection::ALL, &mut take)?;
            block.push(Arc::new(batch));
            blocks.push(block);
            if progress == Progress::AtEnd {
                break;
            }
        }
        Ok(Self { session: reader.session().clone(), bindings, blocks })
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &[u8]> {
        self.blocks.iter().flatten().flat_map(|batch| batch.records())
    }
}

/// Returns a record with what is needed to read it.
pub(crate) fn bound<'a>(bindings: &'a [Binding], record: &'a [u8]) -> Option<(RecordView<'a>, &'a Binding)> {
    let view = RecordView::new(record).ok()?;
    let binding = bindings.get(usize::from(view.header.probe))?;
    Some((view, binding))
}

/// Decodes a record.
pub(crate) fn event_of(bindings: &[Binding], record: &[u8]) -> Option<Event> {
    let (view, binding) = bound(bindings, record)?;
    binding.decoder.decode(&binding.kind, &view).ok()
}
