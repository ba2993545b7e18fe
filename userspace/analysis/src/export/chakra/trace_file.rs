//! A `.et` file: the metadata, then the nodes, each after its length.

use std::io::{self, BufWriter, Write as _};

use prost::Message;

use super::messages::{Attribute, AttributeValue, GlobalMetadata};
use recording::sinks::{NewFile, OutputDir};

/// Bytes that are gathered before they are written: an export has a file for each rank of the job.
const BATCH: usize = 64 << 10;

/// Version of the schema, `GlobalMetadata.version`.
const VERSION: &str = "1.0.0";

#[derive(Debug)]
pub(super) struct EtFile(BufWriter<NewFile>);

impl EtFile {
    pub(super) fn create(dir: &OutputDir, name: String) -> io::Result<Self> {
        let mut made = Self(BufWriter::with_capacity(BATCH, NewFile::within(dir, name)?));
        let text = |text: &str| AttributeValue::Text(text.to_owned());
        made.push(&GlobalMetadata {
            version: VERSION.to_owned(),
            attributes: vec![
                Attribute::new("schema", text(VERSION)),
                Attribute::new("made_by", text(concat!("ncclflow ", env!("CARGO_PKG_VERSION")))),
            ],
        })?;
        Ok(made)
    }

    pub(super) fn push(&mut self, message: &impl Message) -> io::Result<()> {
        self.0.write_all(&message.encode_length_delimited_to_vec())
    }

    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.0.flush()?;
        self.0.get_mut().publish()
    }
}
