//! Network devices of communicators, read once of each by what `ncclflow dump` asks of its library.

use std::collections::HashMap;

use dump::NicReader;
use flow::{identity::CommunicatorFacts, schema::NicRow};
use inspect::{
    process::{LibraryId, Process},
    resolver::{self, What},
};
use nccl_library::symbols::DebugFiles;

/// Maximum number of libraries that are kept.
const MAX_LIBRARIES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct NicReaders {
    /// `None`: the library does not tell enough.
    known: HashMap<LibraryId, Option<NicReader>>,
}

impl NicReaders {
    /// Reads the devices of the communicator at this address, if it is the one of these facts. There are none
    /// where nothing tells of any.
    pub(super) fn read(&mut self, process: &Process, address: u64, facts: &CommunicatorFacts) -> Vec<NicRow> {
        let Ok(files) = resolver::libraries(process, None) else { return Vec::new() };
        for file in &files {
            if self.known.len() >= MAX_LIBRARIES && !self.known.contains_key(&file.id) {
                self.known.clear();
            }
            let resolve = || {
                let resolved = resolver::resolve(file, What::Dump, &DebugFiles::default()).ok()?;
                NicReader::of(&resolved.resolution)
            };
            let reader = self.known.entry(file.id).or_insert_with(resolve);
            let nics = reader.as_ref().map(|reader| reader.read(process, address, facts)).unwrap_or_default();
            if !nics.is_empty() {
                return nics;
            }
        }
        Vec::new()
    }
}
