//! Use of items that came out of the kernel's buffers: they are taken apart, and decoded by the bindings of a real
//! session.
//!
//! An input is items, one after the other: length (2 bytes), and as many bytes.

use std::{path::Path, sync::LazyLock};

use flow::recording::Binding;
use recording::{
    format::{Item, Progress, RecordingReader, Selection},
    rows::Pipeline,
    sinks::{OutputDir, SessionFiles},
};
use trace::kernel::stream::records_of;

/// Recording whose bindings are used.
const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/traces/net_steps");

static BINDINGS: LazyLock<Vec<Binding>> = LazyLock::new(|| {
    let mut bindings = Vec::new();
    let reader = OutputDir::open(Path::new(RECORDING)).and_then(RecordingReader::open);
    let Ok(mut reader) = reader else { return bindings };
    let mut take = |item: Item<'_>| {
        if let Item::Bindings(new) = item {
            bindings.extend_from_slice(new);
        }
    };
    while reader.read_next(&Selection::ALL, &mut take).is_ok_and(|progress| progress == Progress::Read) {}
    bindings
});

/// Decodes them and all that follows. Errors are fine; the fuzzer looks for panics, time and memory.
///
/// # Panics
/// If it takes too long, or the recording that has the bindings is not there.
pub fn use_items(input: &[u8]) {
    assert!(!BINDINGS.is_empty(), "{RECORDING} has no bindings");
    super::in_time(input.len(), || {
        let mut pipeline = Pipeline::new(BINDINGS.clone(), SessionFiles::nowhere());
        let mut rest = input;
        while let Some((length, items)) = rest.split_first_chunk::<2>() {
            let (item, others) = items.split_at(items.len().min(usize::from(u16::from_le_bytes(*length))));
            records_of(item).for_each(|record| pipeline.record(record));
            rest = others;
        }
        pipeline.finish();
    });
}
